"""`shiplift demo`."""

import json
from typing import Annotated

import typer

from shiplift.pipelines.commands import edge


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running at the end.")] = False,
) -> None:
    """Run a complete demo: three versions of a digit classifier, a refusal, a promotion under load, a rollback.

    The last line on stdout is JSON. Example: `shiplift demo`
    """
    from shiplift.pipelines.commands.start import demo_story

    typer.echo(json.dumps(demo_story.play(edge.settings(free_ports=True), edge.say, keep=keep)))
