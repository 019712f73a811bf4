"""`make bench-release`: what a release of the demo model costs, as medians of three runs in JSON.

It measures the time from registration to promotion, the part of it outside export, calibration and measurement windows
(in total and by stage), a rerun with everything cached, and the memory of the stack: at its start, and when idle, with
what waits for the next release. Every run has a fresh home, so nothing is cached from the previous one. `make
bench-own` measures more.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

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
        cold = sum(stack.memory(running).values())
        version = demo.train(home, running, print_nothing, epochs=6, samples=1200)
        releases, name = Releases(home), release_name(demo.MODEL, version, "")
        while releases.result(name) is None:
            time.sleep(0.1)
        report = releases.result(name)
        if report is None or report.exit_code:
            raise SystemExit(f"the release failed: {report}")
        shiplift = [sys.executable, "-m", "shiplift.pipelines.commands.app", "--home", str(home)]
        rerun = timed([*shiplift, "rerun", f"{demo.MODEL}/{version}"])
        settle(running)
        warm = sum(stack.memory(running).values())
    finally:
        stack.down(home)
    return {
        "registered_to_promoted_s": report.since_request_seconds,
        "overhead_s": report.overhead_seconds,
        "cached_rerun_s": rerun,
        "stack_at_start_mb": cold,
        "idle_stack_mb": warm,
        **{f"stage.{stage.name}_s": stage.seconds - stage.measured_seconds for stage in report.stages},
    }


def settle(running: stack.Stack) -> None:
    """Waits until the process that waits for the next release has imported what it needs."""
    dispatcher = psutil.Process(running.processes["dispatcher"].pid)
    used = -1.0
    while (now := sum(sum(each.cpu_times()[:2]) for each in dispatcher.children(recursive=True))) > used + 0.2:
        used = now
        time.sleep(4)


def timed(command: list[str]) -> float:
    """The seconds that a command takes; it must succeed."""
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def print_nothing(_: str) -> None:
    """A listener that drops every message."""


def measured_release(runs: int = RUNS) -> dict[str, Any]:
    """The median and runs of each figure; `stage.*` leave out export, calibration and measurement windows."""
    measured = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="shiplift-bench-") as folder:
            measured.append(one_run(Path(folder) / "home"))
    return {
        name: {
            "median": round(median(run[name] for run in measured), 2),
            "runs": [round(run[name], 2) for run in measured],
        }
        for name in measured[0]
    }


def main() -> None:
    """Prints the median and runs of each figure."""
    print(json.dumps(measured_release(), indent=1))


if __name__ == "__main__":
    main()
