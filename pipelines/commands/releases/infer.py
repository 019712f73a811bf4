"""`shiplift infer`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Json, Model, Namespace


def infer(
    model: Model,
    file: Annotated[Path, typer.Option("--input", help="NPZ or JSON file of arrays by input name.")],
    version: Annotated[
        int | None, typer.Option(min=1, help="An earlier version that still serves (`serving.version_policy`).")
    ] = None,
    sequence: Annotated[bool, typer.Option("--sequence", help="Send the samples one by one, as a sequence.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Send a request to production and print the answer. Example: `shiplift infer digits --input sample.npz`

    On a cluster, the request goes through the API server to the pods that serve the model.
    """
    from shiplift.pipelines.commands import console

    answer = edge.engine(engine, namespace).infer(model, file, version=version, sequence=sequence)
    edge.print_result(answer, console.show_answer, as_json=as_json)
