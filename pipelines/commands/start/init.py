"""`shiplift init`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    github_actions: Annotated[
        bool, typer.Option("--github-actions", help="Write a GitHub Actions workflow that releases changed specs.")
    ] = False,
) -> None:
    """Write a commented shiplift.yaml, its JSON schema and an example training script. Example: `shiplift init`"""
    from shiplift.pipelines.commands.start import init_files

    for path in init_files.write(folder, force=force, github_actions=github_actions):
        edge.say(f"wrote {path}")
