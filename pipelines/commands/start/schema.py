"""`shiplift schema`."""

import json
from typing import Annotated, Literal

import typer


def schema(
    document: Annotated[
        Literal["release", "pipeline"], typer.Argument(help="release: shiplift.yaml; pipeline: pipeline.yaml.")
    ] = "release",
) -> None:
    """Print the JSON schema of shiplift.yaml, or of a pipeline of models, for editors.

    Example: `shiplift schema > shiplift.schema.json`
    """
    from shiplift.runtime.spec import document as release
    from shiplift.runtime.spec import pipeline

    body = pipeline.schema() if document == "pipeline" else release.schema()
    typer.echo(json.dumps(body, indent=2))
