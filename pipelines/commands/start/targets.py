"""`shiplift targets`."""

from typing import Annotated, Literal

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def targets(
    action: Annotated[
        Literal["list", "detect"],
        typer.Argument(help="list: show the catalogue; detect: add the detected targets to it."),
    ] = "list",
    cluster: Annotated[bool, typer.Option("--cluster", help="Same as `--engine argo`.")] = False,
    name: Annotated[str, typer.Option(help="Name for the detected target, if there is only one.")] = "",
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """List the targets that a spec can name, or detect those of this machine or of a cluster's nodes.

    Example: `shiplift targets detect --engine argo`
    """
    from shiplift.pipelines.commands.start import targets_table

    chosen = edge.engine("argo" if cluster else engine, namespace)
    catalogue = chosen.detect(name) if action == "detect" else chosen.targets()
    edge.print_result(catalogue, targets_table.show, as_json=as_json)
