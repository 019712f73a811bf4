"""`shiplift values`."""

import typer


def values() -> None:
    """Print a commented values file for `shiplift install`. Example: `shiplift values > values.yaml`"""
    from shiplift.pipelines.installation.values import commented

    typer.echo(commented(), nl=False)
