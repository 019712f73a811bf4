"""`shiplift doctor`."""

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json


def doctor(as_json: Json = False) -> None:
    """Check what this machine has, what is missing, and how to get it. Example: `shiplift doctor --json`"""
    from shiplift.pipelines.commands.stack import doctor_checks
    from shiplift.runtime.base.errors import MissingTool

    examination = doctor_checks.examine(edge.settings())
    edge.print_result(examination, doctor_checks.show, as_json=as_json)
    if not examination.usable:
        raise typer.Exit(MissingTool.exit_code)
