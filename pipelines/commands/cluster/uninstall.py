"""`shiplift uninstall`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json, Namespace, Timeout, ValuesFile


def uninstall(
    namespace: Namespace = None,
    values: ValuesFile = None,
    data: Annotated[bool, typer.Option("--data", help="Also remove MLflow's volume and the secrets.")] = False,
    timeout: Timeout = 300,
    as_json: Json = False,
) -> None:
    """Remove Shiplift from the current cluster, with its releases and the models it serves.

    Example: `shiplift uninstall --data`
    """
    from shiplift.pipelines.installation import uninstall as removal

    result = removal.uninstall(edge.values(values, namespace), data=data, timeout_s=timeout, tell=edge.say)
    edge.print_result(result, lambda removed: edge.say(removal.summary(removed)), as_json=as_json)
