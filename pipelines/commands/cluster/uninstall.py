"""`shiplift uninstall`."""

import sys
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json, Namespace, Timeout, ValuesFile


def uninstall(
    namespace: Namespace = None,
    values: ValuesFile = None,
    data: Annotated[bool, typer.Option("--data", help="Also remove MLflow's volume and the secrets.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation, even if models serve.")] = False,
    timeout: Timeout = 300,
    as_json: Json = False,
) -> None:
    """Remove Shiplift from the current cluster, with its releases and the models it serves.

    Example: `shiplift uninstall --data --yes`
    """
    from shiplift.pipelines.installation import uninstall as removal

    parsed = edge.values(values, namespace)
    if not yes:
        _ask(removal.served(parsed), parsed.serving_namespace)
    result = removal.uninstall(parsed, data=data, timeout_s=timeout, tell=edge.say)
    edge.print_result(result, lambda removed: edge.say(removal.summary(removed)), as_json=as_json)


def _ask(models: list[str], namespace: str) -> None:
    """Asks whether the models that serve may be removed.

    Raises:
        UsageError: models serve, and there is no terminal to ask on.
    """
    from shiplift.runtime.base.errors import UsageError

    if not models:
        return
    what = f"{', '.join(models)} {'serves' if len(models) == 1 else 'serve'} in the namespace {namespace}"
    if not sys.stdin.isatty():
        raise UsageError(f"{what}, and would be removed", do="Pass --yes to remove them.")
    typer.confirm(f"{what}, and will be removed. Continue?", abort=True, err=True)
