"""`shiplift values`."""

import typer


def values() -> None:
    """Print a commented file of what can be chosen on a cluster. Example: `shiplift values > values.yaml`"""
    from shiplift.pipelines.installation.values import commented

    typer.echo(commented(), nl=False)
