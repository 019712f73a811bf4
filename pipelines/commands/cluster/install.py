"""`shiplift install`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json, Namespace, Timeout, ValuesFile


def install(
    namespace: Namespace = None,
    values: ValuesFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print it all and let the cluster check it.")] = False,
    timeout: Timeout = 300,
    as_json: Json = False,
) -> None:
    """Put everything on the current cluster, or bring it up to date, and wait until it is ready.

    Example: `shiplift install --values values.yaml`
    """
    from shiplift.pipelines.installation import install as installation
    from shiplift.pipelines.installation import manifests

    wanted = edge.values(values, namespace)
    if dry_run and not as_json:
        typer.echo(manifests.text_of(manifests.documents(wanted)), nl=False)
    done = installation.install(wanted, dry_run=dry_run, timeout_s=timeout, tell=edge.say)
    edge.give(done, lambda installed: edge.say(installation.summary(installed)), as_json=as_json)
