"""`shiplift targets`."""

from typing import Annotated, Literal

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Namespace


def targets(
    what: Annotated[
        Literal["list", "detect"], typer.Argument(help="list: show the catalogue; detect: add to it.")
    ] = "list",
    cluster: Annotated[bool, typer.Option("--cluster", help="The same as `--engine argo`.")] = False,
    name: Annotated[str, typer.Option(help="Call the one target detected by this name.")] = "",
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """List the places a spec may name as targets, or detect those of this machine or of a cluster's nodes.

    Example: `shiplift targets detect --engine argo`
    """
    from shiplift.pipelines.commands.start import targets_table

    place = edge.engine("argo" if cluster else engine, namespace)
    edge.give(place.detect(name) if what == "detect" else place.targets(), targets_table.show, as_json=as_json)
