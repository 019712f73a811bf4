"""Daemons that are forks of one process, which imported what they need: they share its memory until they change it.

    python -m shiplift.runtime.host.forks MODULE...

That process imports the modules, forks itself once per order, and ends with its client. What it forked goes on alone.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, cast

from shiplift.runtime.base.daemon import run_main
from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.host.processes import fork, identify
from shiplift.runtime.records.process import Process

_PR_SET_NAME = 15


class Forks:
    """Forks daemons from a process that imports `modules` meanwhile; what it prints is appended to `log`."""

    def __init__(self, modules: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,
                text=True,
            )
        self._orders, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    def start(self, name: str, module: str, *arguments: str | Path, log: Path) -> Process:
        """Runs a module's `main` with arguments, in a session of its own; its output is appended to `log`.

        `name` is what the process is called.

        Raises:
            ServerFailed: the modules can't be imported.
        """
        order = {"name": name, "module": module, "arguments": [*map(str, arguments)], "log": str(log)}
        with contextlib.suppress(BrokenPipeError):  # its end is told below
            self._orders.write(json.dumps(order) + "\n")
            self._orders.flush()
        if not (pid := self._answers.readline()):
            raise ServerFailed(f"{name} did not start: its modules can't be imported", do=f"See {self._log}.")
        return identify(int(pid))

    def close(self) -> None:
        """Ends the process that forks; its forks go on."""
        with contextlib.suppress(BrokenPipeError):  # what could not be written
            self._orders.close()
        self._answers.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _become(order: dict[str, Any]) -> int:
    """Turns this fork into the daemon, and returns the exit code of one that ends by itself."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, order["name"].encode(), 0, 0, 0)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    sys.argv = [order["module"], *order["arguments"]]
    run_main(importlib.import_module(order["module"]).main)
    return 0


def main() -> None:
    """Imports modules, then forks a daemon for each line of stdin, and tells its pid."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every object, and so copy the pages that are shared
    while line := sys.stdin.readline():
        print(fork(partial(_become, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
