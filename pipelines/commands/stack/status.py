"""`shiplift status`."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shiplift.pipelines.commands import completion, edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace

if TYPE_CHECKING:
    from shiplift.pipelines.engines.answers import Status
    from shiplift.pipelines.engines.protocol import Engine as AnyEngine

_EVERY_S = 2


def status(
    model: Annotated[
        str | None,
        typer.Argument(help="Show the versions of this model.", metavar="[MODEL]", autocompletion=completion.models),
    ] = None,
    engine: Engine = None,
    namespace: Namespace = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help=f"Refresh every {_EVERY_S} s, until interrupted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the stack, or a model: its versions, their aliases, and how their releases ended or how far they are.

    Examples: `shiplift status`, `shiplift status digits --watch`, `shiplift status --engine argo --json`
    """
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.commands.stack import status_tables

    chosen = edge.engine(engine, namespace)
    shown = chosen.status(model)
    edge.print_result(shown, status_tables.show, as_json=as_json)
    before = shown
    while watch:
        try:
            time.sleep(_EVERY_S)
            shown = _again(chosen, model, before)
        except KeyboardInterrupt:
            return
        if shown == before and not console.stdout.is_terminal:
            continue  # a pipe gets what changes
        before = shown
        if not as_json:
            console.stdout.clear()  # has no effect unless stdout is a terminal
        edge.print_result(shown, status_tables.show, as_json=as_json)


def _again(chosen: "AnyEngine", model: str | None, before: "Status") -> "Status":
    """The status now; while nothing answers, the last one, and why on stderr: a registry that restarts comes back."""
    from shiplift.runtime.base.errors import StackDown, Temporary

    try:
        return chosen.status(model)
    except (StackDown, Temporary) as error:
        edge.say(f"{error.title}: {error}")
        return before
