"""`shiplift lab`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Engine, Model, Namespace, Port


def lab(
    model: Model,
    folder: Annotated[
        Path | None, typer.Option(help="Where the notebook and the data go. [default: lab-MODEL]")
    ] = None,
    idle: Annotated[str, typer.Option(help="How long nobody works in it before it ends: 90s, 30m or 2h.")] = "30m",
    port: Port = None,
    no_start: Annotated[bool, typer.Option("--no-start", help="Write the notebook, and start nothing.")] = False,
    engine: Engine = None,
    namespace: Namespace = None,
) -> None:
    """Open JupyterLab with a notebook that asks a served model, profiles it and compares its versions.

    It listens on this machine alone, with a token, and ends when idle. It needs `pip install 'shiplift[lab]'`. The
    folder gets the version's example and validation data; a notebook that is there already stays as it is.
    Examples: `shiplift lab digits`, `shiplift lab digits --idle 2h`
    """
    from shiplift.pipelines.commands.releases import laboratory

    laboratory.require_jupyter()
    seconds = laboratory.seconds_of(idle)
    notebook = laboratory.write(edge.engine(engine, namespace), model, folder, edge.home())
    edge.say(f"wrote {notebook}")
    if not no_start:
        raise typer.Exit(laboratory.start(notebook, seconds, port))
