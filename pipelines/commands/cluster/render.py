"""`shiplift render`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Namespace, ValuesFile


def render(
    folder: Annotated[Path, typer.Argument(help="Where to write.")],
    namespace: Namespace = None,
    values: ValuesFile = None,
) -> None:
    """Write what `shiplift install` would apply as YAML files, for GitOps. Example: `shiplift render deploy/`"""
    from shiplift.pipelines.installation import manifests

    wanted = edge.values(values, namespace)
    for path in manifests.render(wanted, folder):
        edge.say(f"wrote {path}")
    for line in manifests.left_to_do(wanted):
        edge.say(line)
