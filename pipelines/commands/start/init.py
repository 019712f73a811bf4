"""`shiplift init`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to write to.", metavar="[FOLDER]")] = Path(),
    library: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="LIBRARY",
            help="The script's library: torch, sklearn, xgboost, onnx, transformers or pyfunc; pipeline: two models "
            "and a pipeline of them. [default: asks on a terminal, else torch]",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    github_actions: Annotated[
        bool, typer.Option("--github-actions", help="Write a GitHub Actions workflow that releases changed specs.")
    ] = False,
) -> None:
    """Write a commented shiplift.yaml, its JSON schema and an example training script; print the next two commands.

    Examples: `shiplift init --for sklearn`, `shiplift init pages --for pipeline`, `shiplift init --github-actions`
    """
    from shiplift.pipelines.commands.start import init_files

    starter = init_files.STARTERS[0] if github_actions else library or _asked(init_files.STARTERS)
    for path in init_files.write(folder, force=force, starter=starter, github_actions=github_actions):
        edge.say(f"wrote {path}")
    if not github_actions:
        edge.say("next:")
        for command in init_files.next_commands(folder, starter, edge.home()):
            edge.say(f"  {command}")


def _asked(starters: tuple[str, ...]) -> str:
    """The library that somebody at a terminal names; without one, the first."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return starters[0]
    from rich.prompt import Prompt

    from shiplift.pipelines.commands import console

    return Prompt.ask("Which library", choices=[*starters], default=starters[0], console=console.stderr)
