"""`shiplift init`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    library: Annotated[
        str,
        typer.Option("--for", help="The script's library: torch, sklearn, xgboost, onnx, transformers or pyfunc."),
    ] = "torch",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    github_actions: Annotated[
        bool, typer.Option("--github-actions", help="Write a GitHub Actions workflow that releases changed specs.")
    ] = False,
) -> None:
    """Write a commented shiplift.yaml, its JSON schema and an example training script.

    Example: `shiplift init --for sklearn`, then `shiplift up` and `python train.py`
    """
    from shiplift.pipelines.commands.start import init_files

    for path in init_files.write(folder, force=force, starter=library, github_actions=github_actions):
        edge.say(f"wrote {path}")
    if not github_actions:
        edge.say(f"next: `shiplift up`, then `python {folder / 'train.py'}`")
