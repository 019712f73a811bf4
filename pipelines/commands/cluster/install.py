"""`shiplift install`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json, Namespace, Timeout, ValuesFile


def install(
    namespace: Namespace = None,
    values: ValuesFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the manifests and have the cluster validate them; change nothing.")
    ] = False,
    timeout: Timeout = 300,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the registry over from another installation of Shiplift.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Install Shiplift on the current cluster, or upgrade it, and wait until it is ready.

    Example: `shiplift install --values values.yaml`
    """
    from shiplift.pipelines.installation import install as installation
    from shiplift.pipelines.installation import manifests

    chosen = edge.values(values, namespace)
    if dry_run and not as_json:
        typer.echo(manifests.text_of(manifests.documents(chosen)), nl=False)
    result = installation.install(chosen, dry_run=dry_run, timeout_s=timeout, tell=edge.say, take_over=take_over)
    edge.print_result(result, lambda installed: edge.say(installation.summary(installed)), as_json=as_json)
