"""`shiplift check`."""

from pathlib import Path
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge


def check(
    files: Annotated[list[Path] | None, typer.Argument(help="Specs and pipelines.", metavar="[FILE]...")] = None,
) -> None:
    """Check release specs and pipelines of models without a stack, as before a commit. By default, shiplift.yaml.

    Lists every mistake with its line or field, and exits with 65 if it finds any.
    Examples: `shiplift check`, `shiplift check releases/digits.yaml pipeline.yaml`
    """
    from shiplift.pipelines.commands.start.checked_files import mistake_in
    from shiplift.runtime.base.errors import SpecInvalid

    found = {file: mistake for file in files or [Path("shiplift.yaml")] if (mistake := mistake_in(file))}
    for file, mistake in found.items():
        edge.say(f"{file}: {mistake}")
    if found:
        raise SpecInvalid(
            f"{len(found)} of the files can't be released as they are", do="Fix what is named above, and check again."
        )
