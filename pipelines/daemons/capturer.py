"""Writes what production's server captures to files, and keeps these within their limits. A child of the watchdog.

It has a process of its own: Parquet takes memory and time, of which the watchdog and the server get none. It runs while
a model is captured, or rows of one are kept. A thread of it compares what was captured with the validation data; the
reading and the arithmetic of that are in a sandbox.
"""

import argparse
import contextlib
import fcntl
import os
import signal
import threading
import time
from pathlib import Path

from shiplift.pipelines.daemons.drift_keeper import DriftKeeper
from shiplift.pipelines.engines.local import incidents, stack
from shiplift.pipelines.engines.local.captured import secret_of, wanted
from shiplift.runtime.base.daemon import stop_on_signals
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.capture.ring import FOLDER
from shiplift.runtime.capture.root import root_of
from shiplift.runtime.capture.writer import CaptureWriter
from shiplift.runtime.confinement.watch import worker

LOOK_S = 0.25
TIDY_S = 60.0
_SETTINGS_S = 1.0


def run(home: Path) -> None:
    """Writes until it is stopped."""
    stop = stop_on_signals()
    threading.Thread(target=DriftKeeper(home).run, daemon=True).start()
    writer = CaptureWriter(root_of(home), secret_of(home))
    captured, looked, tidied = wanted(home), time.monotonic(), 0.0
    told: dict[str, str] = {}
    while not stop.wait(LOOK_S):
        now = time.monotonic()
        if now - looked >= _SETTINGS_S:
            captured, looked = wanted(home), now
        running = stack.read(home)
        if running is not None and running.runs("triton"):
            pid = worker(running.processes["triton"].pid)
            writer.look(Path(f"/proc/{pid}/root{FOLDER}"), captured)
        for name, problem in writer.problems.items():
            if told.get(name) != problem:
                with contextlib.suppress(ShipliftError):  # the disk that is full may be that of the incidents
                    incidents.note(home, name, problem)
        told = writer.problems
        if now - tidied >= TIDY_S:
            tidied = now
            for name, problem in writer.tidy().items():
                print(f"captured rows of {name} can't be tidied: {problem}", flush=True)
    writer.close()


def main() -> None:
    """Captures for a home."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    root_of(arguments.home).mkdir(parents=True, exist_ok=True)
    with (root_of(arguments.home) / ".lock").open("w") as lock:  # one that is just ending may still write
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(arguments.home)


if __name__ == "__main__":
    main()
