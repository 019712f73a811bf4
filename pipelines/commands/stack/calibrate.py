"""`shiplift calibrate`."""

from typing import Annotated

import typer

from shiplift.pipelines.commands import edge
from shiplift.pipelines.commands.options import Json


def calibrate(
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer cases in shorter windows, in seconds.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again, even if nothing has changed.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what this machine computes how fast, so that searches begin where it is fastest.

    Takes less than a minute, and is kept until the processor, the cores or the engines' versions change. Without it,
    releases search as well, from no knowledge of the machine. Run it while the machine is quiet.
    Examples: `shiplift calibrate`, `shiplift calibrate --force --json`
    """
    from shiplift.pipelines.commands import console
    from shiplift.pipelines.commands.stack import calibration_table
    from shiplift.pipelines.engines.local.calibrating import calibrated
    from shiplift.runtime.records.calibration import Calibrating

    with console.stderr.status("calibrating this machine") as line:
        calibration = calibrated(
            edge.settings(), Calibrating(quick=quick, force=force), lambda message, _: line.update(message)
        )
    edge.print_result(calibration, calibration_table.show, as_json=as_json)
