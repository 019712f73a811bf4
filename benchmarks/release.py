"""What Shiplift itself costs: `make bench-release` releases the demo model three times and prints medians as JSON.

Registration to promoted, the part of it outside export, calibration and measurement windows, a rerun with everything
cached, and the memory of the idle stack. Every run is a fresh home, so nothing of the run before is found again.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from pipelines import demo, stack
from pipelines.releases import Releases
from runtime.names import release_name
from runtime.settings import Settings

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
        rerun = timed([sys.executable, "-m", "pipelines.cli", "--home", str(home), "rerun", f"{demo.MODEL}/{version}"])
    finally:
        stack.down(home)
    return {
        "registered_to_promoted_s": report.since_request_seconds,
        "overhead_s": report.overhead_seconds,
        "scan_s": next(stage.seconds for stage in report.stages if stage.name == "admit"),
        "cached_rerun_s": rerun,
        "idle_stack_mb": idle,
    }


def timed(command: list[str]) -> float:
    """Seconds a command takes; it must succeed."""
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def print_nothing(_: str) -> None:
    """A listener that does not listen."""


def main() -> None:
    """Prints each figure's median and its runs."""
    runs = []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
            runs.append(one_run(Path(folder) / "home"))
    found: dict[str, Any] = {
        name: {"median": round(median(run[name] for run in runs), 2), "runs": [round(run[name], 2) for run in runs]}
        for name in runs[0]
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
