"""`shiplift status`."""

import time
from typing import Annotated

import typer

from shiplift.pipelines.commands import completion, edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace

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

    Example: `shiplift status digits --watch`, `shiplift status --engine argo --json`
    """
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.commands.stack import status_tables

    chosen = edge.engine(engine, namespace)
    shown = chosen.status(model)
    edge.print_result(shown, status_tables.show, as_json=as_json)
    while watch:
        try:
            time.sleep(_EVERY_S)
            shown = chosen.status(model)
        except KeyboardInterrupt:
            return
        if not as_json:
            console.stdout.clear()  # has no effect unless stdout is a terminal
        edge.print_result(shown, status_tables.show, as_json=as_json)
