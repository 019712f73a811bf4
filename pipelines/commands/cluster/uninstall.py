"""`shiplift uninstall`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json, Namespace, Timeout, ValuesFile


def uninstall(
    namespace: Namespace = None,
    values: ValuesFile = None,
    data: Annotated[bool, typer.Option("--data", help="Remove MLflow's volume and the secrets too.")] = False,
    timeout: Timeout = 300,
    as_json: Json = False,
) -> None:
    """Remove everything from the current cluster: releases, models that are served, the pipeline.

    Example: `shiplift uninstall --data`
    """
    from shiplift.pipelines.installation import uninstall as removal

    gone = removal.uninstall(edge.values(values, namespace), data=data, timeout_s=timeout, tell=edge.say)
    edge.give(gone, lambda removed: edge.say(removal.summary(removed)), as_json=as_json)
