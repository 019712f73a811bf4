"""What the watchdog noticed about production's server and did about it, newest last, for `shiplift status`."""

import time
from pathlib import Path

from pydantic import ValidationError

from shiplift.pipelines.engines.answers import Incident
from shiplift.runtime.base.storage import write_atomically

_KEPT = 50
_SHOWN_S = 24 * 3600


def note(home: Path, model: str, event: str) -> None:
    """Adds an incident, and prints it to this process's log."""
    print(f"watchdog: {model}: {event}" if model else f"watchdog: {event}", flush=True)
    kept = [*_read(home), Incident(at=time.time(), model=model, event=event)][-_KEPT:]
    write_atomically(_file(home), "".join(f"{incident.model_dump_json()}\n" for incident in kept))


def recent(home: Path) -> tuple[Incident, ...]:
    """The incidents of the last day."""
    return tuple(incident for incident in _read(home) if time.time() - incident.at < _SHOWN_S)


def _file(home: Path) -> Path:
    return home / "production" / "incidents.jsonl"


def _read(home: Path) -> list[Incident]:
    try:
        return [Incident.model_validate_json(line) for line in _file(home).read_text().splitlines()]
    except (FileNotFoundError, ValidationError):
        return []
