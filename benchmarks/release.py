"""What a release of the demo model costs, thrice, medians as JSON: `make bench-release`; `make bench-own` has more.

Registration to promoted, the part of it outside export, calibration and measurement windows, in all and by stage, a
rerun with everything cached, and the memory of the idle stack. Every run is a fresh home, so nothing of the run before
is found again.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from shiplift.pipelines.commands.start import demo_story as demo
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.names import release_name

RUNS = 3


def one_run(home: Path) -> dict[str, float]:
    """Starts a stack, registers the demo model, waits for its release, reruns it, and measures the idle stack."""
    settings = Settings(home=home, free_ports=True)
    running = stack.up(settings)
    try:
        idle = sum(stack.memory(running).values())
        version = demo.train(home, running, print_nothing, epochs=6, samples=1200)
        releases, name = Releases(home), release_name(demo.MODEL, version, "")
        while releases.result(name) is None:
            time.sleep(0.1)
        report = releases.result(name)
        if report is None or report.exit_code:
            raise SystemExit(f"the release failed: {report}")
        rerun = timed(
            [
                sys.executable,
                "-m",
                "shiplift.pipelines.commands.app",
                "--home",
                str(home),
                "rerun",
                f"{demo.MODEL}/{version}",
            ]
        )
    finally:
        stack.down(home)
    return {
        "registered_to_promoted_s": report.since_request_seconds,
        "overhead_s": report.overhead_seconds,
        "cached_rerun_s": rerun,
        "idle_stack_mb": idle,
        **{f"stage.{stage.name}_s": stage.seconds - stage.measured_seconds for stage in report.stages},
    }


def timed(command: list[str]) -> float:
    """Seconds a command takes; it must succeed."""
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def print_nothing(_: str) -> None:
    """A listener that does not listen."""


def measured_release(runs: int = RUNS) -> dict[str, Any]:
    """Each figure's median and its runs; `stage.*` are stages without export, calibration and measurement windows."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
            found.append(one_run(Path(folder) / "home"))
    return {
        name: {"median": round(median(run[name] for run in found), 2), "runs": [round(run[name], 2) for run in found]}
        for name in found[0]
    }


def main() -> None:
    """Prints each figure's median and its runs."""
    print(json.dumps(measured_release(), indent=1))


if __name__ == "__main__":
    main()
