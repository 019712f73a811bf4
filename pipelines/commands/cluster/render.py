"""`shiplift render`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Namespace, ValuesFile


def render(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")],
    namespace: Namespace = None,
    values: ValuesFile = None,
) -> None:
    """Write what `shiplift install` would apply as YAML files, for GitOps. Example: `shiplift render deploy/`"""
    from shiplift.pipelines.installation import manifests

    chosen = edge.values(values, namespace)
    for path in manifests.render(chosen, folder):
        edge.say(f"wrote {path}")
    for line in manifests.left_to_do(chosen):
        edge.say(line)
