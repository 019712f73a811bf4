"""`shiplift status`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def status(
    model: Annotated[str | None, typer.Argument(help="Show one model's versions.", metavar="[MODEL]")] = None,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the stack, or one model: its champion, its versions and how their releases ended.

    Example: `shiplift status digits --json`, `shiplift status --engine argo`
    """
    from shiplift.pipelines.commands.stack import status_tables

    edge.give(edge.engine(engine, namespace).status(model), status_tables.show, as_json=as_json)
