"""`shiplift status`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def status(
    model: Annotated[str | None, typer.Argument(help="Show the versions of this model.", metavar="[MODEL]")] = None,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the stack, or a model: its versions, their aliases and how their releases ended.

    Example: `shiplift status digits --json`, `shiplift status --engine argo`
    """
    from shiplift.pipelines.commands.stack import status_tables

    edge.print_result(edge.engine(engine, namespace).status(model), status_tables.show, as_json=as_json)
