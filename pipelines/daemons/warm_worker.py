"""A warm worker: the process for the next release, started while none runs, with its first sandboxes ready.

Without it, a release begins with seconds of imports: the scanner of models, then the framework that exports them. One
process can't import them for all releases, because a sandbox is confined before it imports anything, and serves a
single request. So the process of the next release starts early and waits, with sandboxes that are its own children.

It uses the memory of these imports, so it is kept only for a while after each release (`shiplift up --warm-minutes`).
It is replaced if packages are installed in the meantime.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.confinement import workplace
from shiplift.runtime.host.folders import sweep
from shiplift.runtime.host.interpreter import python_paths
from shiplift.runtime.host.processes import fork, free_memory_mb
from shiplift.runtime.records.site import SandboxSettings

_LOOK_S = 2.0
_AGAIN_S = 30.0  # wait this long before replacing a worker that ended by itself
_END_S = 5.0
_FREE_MB = 2048  # no worker is started with less free memory than this
_KEPT = 2
_INSTALLED = {"torch": "pytorch", "skl2onnx": "sklearn"}  # in a new home, installed packages hint at the flavor
_MOST_BYTES = 4096  # longest name of a release: a write of up to this size to a pipe is atomic (PIPE_BUF)


class WarmWorker:
    """At most one process that waits for the name of a release, then calls `work(name)` and exits with its result."""

    def __init__(self, home: Path, work: Callable[[str], int]) -> None:
        self._home, self._work = home, work
        self._pid, self._orders = 0, -1
        self._stamp: object = None
        self._next_look = 0.0
        self._last_release = time.monotonic()

    def keep(self) -> None:
        """Keeps a worker waiting for the stack's `warm_minutes` after the last release. Cheap to call often.

        While the machine is short of memory, it starts none.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        if self._pid and self._ended():
            self._next_look = now + _AGAIN_S
            return
        running = stack.read(self._home)
        wanted = running is not None and now < self._last_release + 60 * running.warm_minutes
        if self._pid and not (wanted and self._stamp == _stamp()):
            self.end()
        if running and wanted and not self._pid and free_memory_mb() > _FREE_MB:
            self._start(running.sandbox)

    def take(self, name: str) -> int:
        """Gives a release to the waiting worker; returns its pid, or 0 if no worker waits."""
        if not self._pid or self._ended():
            return 0
        if self._stamp != _stamp():
            self.end()
            return 0
        try:
            os.write(self._orders, name.encode())
        except OSError:  # it ended just now
            self.end()
            return 0
        pid = self._pid
        self._forget()
        return pid

    def released(self) -> None:
        """Call this when a release has ended: a worker is kept for `warm_minutes` from now."""
        self._last_release = time.monotonic()

    def end(self) -> None:
        """Ends the waiting worker and its sandboxes; returns when they are gone."""
        pid = self._pid
        if not pid:
            return
        self._forget()
        deadline = time.monotonic() + _END_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        sweep(self._home / stack.AHEAD)  # a worker that was killed leaves its folders

    def _start(self, settings: SandboxSettings) -> None:
        self._stamp = _stamp()
        orders, self._orders = os.pipe()

        def wait() -> int:
            os.close(self._orders)
            return _wait(self._home, settings, orders, self._work)

        self._pid = fork(wait)
        os.close(orders)

    def _ended(self) -> bool:
        """Whether the process has ended. If so, reaps it."""
        if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        os.close(self._orders)  # the process then reads the order that was written, or the end of the pipe
        self._pid, self._orders = 0, -1


def note_flavor(home: Path, flavor: str) -> None:
    """Remembers the flavor of a release, latest first: the next version most likely has the same."""
    known = [each for each in _noted(home) if each != flavor]
    write_atomically(home / "flavors.json", json.dumps([flavor, *known][:_KEPT]))


def flavors(home: Path) -> list[str]:
    """The flavors that the next version probably has: the last ones or, in a new home, an installed framework's."""
    return _noted(home) or [flavor for package, flavor in _INSTALLED.items() if find_spec(package)][:1] or [""]


def _noted(home: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError, TypeError):  # a missing or broken file counts as a new home
        return [str(each) for each in json.loads((home / "flavors.json").read_text())]
    return []


def _wait(home: Path, settings: SandboxSettings, orders: int, work: Callable[[str], int]) -> int:
    """Starts the sandboxes, waits for an order, and carries it out. Ends if the pipe is closed without an order."""
    root = home / stack.AHEAD
    root.mkdir(exist_ok=True)
    sweep(root)
    for stage in RELEASE:
        if isinstance(stage, Stage) and stage.at.warm:
            workplace.warm(stage.at.warm, root, settings)
    for flavor in flavors(home):
        workplace.expect(flavor, rehearse=True)
    name = os.read(orders, _MOST_BYTES).decode()
    os.close(orders)
    if name:
        return work(name)
    workplace.cool()
    return 0


def _stamp() -> object:
    """A value that changes when packages are installed or removed.

    A sandbox that imports some packages before and some after would mix two installations.
    """
    times = []
    for path in python_paths():
        with contextlib.suppress(OSError):
            times.append((path, path.stat().st_mtime_ns))
    return times
