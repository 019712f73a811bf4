"""Emits an event: keeps it in the outbox. Nothing fails because it could not be told."""

from pathlib import Path

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.events.event import ModelEvent
from shiplift.runtime.events.outbox import Outbox


def emit(home: Path, event: ModelEvent) -> None:
    """Keeps an event for the targets; one that was told before is not told again."""
    try:
        Outbox(home).add(event)
    except ShipliftError as error:
        progress(f"{event.sentence}: this could not be told, because {error}")
