"""`shiplift schema`."""

import json

import typer


def schema() -> None:
    """Print the JSON schema of shiplift.yaml, for editors. Example: `shiplift schema > shiplift.schema.json`"""
    from shiplift.runtime.spec import document

    typer.echo(json.dumps(document.schema(), indent=2))
