"""`shiplift events`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace

if TYPE_CHECKING:
    from shiplift.runtime.events.event import ModelEvent
    from shiplift.runtime.events.outbox import Place


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new events.")] = False,
    model: Annotated[str, typer.Option(help="Only those of this model.")] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", help="Number of events to show.", min=1, max=10_000)] = 50,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show what happened to models: releases, rollbacks, retirements, health. Example: `shiplift events -f --json`"""
    chosen = edge.engine(engine, namespace)
    for place in chosen.told():
        _warn(place)
    for event in chosen.model_events(model, newest=lines, follow=follow):
        edge.print_result(event, _show, as_json=as_json)


def _show(event: "ModelEvent") -> None:
    from shiplift.runtime.base.text import printable

    at = datetime.fromtimestamp(event.at, tz=UTC).astimezone()
    typer.echo(printable(f"{at:%Y-%m-%d %H:%M:%S}  {event.kind.value:<30}{event.sentence}"))


def _warn(place: "Place") -> None:
    if place.problem:
        edge.say(f"target {place.target}: {place.waiting} events wait, {place.problem}")
    if place.dead:
        edge.say(f"target {place.target}: {place.dead} dead letters")
