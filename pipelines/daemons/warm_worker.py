"""A warm worker: the process for the next release, started while none runs, with the first sandboxes ready.

A release would begin with seconds of imports: what scans models, then the framework that exports them. They can't be
imported once for all releases, since a sandbox is confined before it imports anything and serves a single request. So
the process of the next release waits with its sandboxes, and those that confine models are its own children.

It costs the memory of these imports, so it is kept for a while after each release (`shiplift up --warm-minutes`), and
is given up for a new one when packages are installed meanwhile.
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
_AGAIN_S = 30.0  # after one that ended by itself
_END_S = 5.0
_FREE_MB = 2048  # with less free memory, none is kept
_KEPT = 2
_INSTALLED = {"torch": "pytorch", "skl2onnx": "sklearn"}  # packages that a flavor needs, for a new home
_MOST_BYTES = 4096  # of a release's name; a pipe takes so many at once


class WarmWorker:
    """At most one process that waits for the name of a release, then calls `work(name)` and exits with its result."""

    def __init__(self, home: Path, work: Callable[[str], int]) -> None:
        self._home, self._work = home, work
        self._pid, self._orders = 0, -1
        self._stamp: object = None
        self._next_look = 0.0
        self._last_release = time.monotonic()

    def keep(self) -> None:
        """Sees to it that one waits, for the stack's `warm_minutes` after the last release. Cheap to call often.

        While the machine is short of memory, none is started.
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
        """Lets the process that waits work on a release; returns its pid, or 0 if none waits."""
        if not self._pid or self._ended():
            return 0
        if self._stamp != _stamp():
            self.end()
            return 0
        try:
            os.write(self._orders, name.encode())
        except OSError:  # it has ended just now
            self.end()
            return 0
        pid = self._pid
        self._forget()
        return pid

    def released(self) -> None:
        """Says that a release has ended: the time that one waits for the next begins anew."""
        self._last_release = time.monotonic()

    def end(self) -> None:
        """Ends the process that waits and its sandboxes; returns when they are gone."""
        pid = self._pid
        if not pid:
            return
        self._forget()
        deadline = time.monotonic() + _END_S
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        sweep(self._home / stack.AHEAD)  # one that was killed left its folders

    def _start(self, settings: SandboxSettings) -> None:
        self._stamp = _stamp()
        orders, self._orders = os.pipe()

        def wait() -> int:
            os.close(self._orders)
            return _wait(self._home, settings, orders, self._work)

        self._pid = fork(wait)
        os.close(orders)

    def _ended(self) -> bool:
        """Whether the process is gone, which also reaps it."""
        if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        os.close(self._orders)  # what the process reads next: the order, if there is one, else that there is none
        self._pid, self._orders = 0, -1


def note_flavor(home: Path, flavor: str) -> None:
    """Remembers a flavor that was released, the latest first: the next version is most likely of the same."""
    known = [each for each in _noted(home) if each != flavor]
    write_atomically(home / "flavors.json", json.dumps([flavor, *known][:_KEPT]))


def flavors(home: Path) -> list[str]:
    """The flavors that the next version may have: the last ones, or that of an installed framework in a new home."""
    return _noted(home) or [flavor for package, flavor in _INSTALLED.items() if find_spec(package)][:1] or [""]


def _noted(home: Path) -> list[str]:
    with contextlib.suppress(OSError, ValueError, TypeError):  # none yet, or unreadable: then it is a new home
        return [str(each) for each in json.loads((home / "flavors.json").read_text())]
    return []


def _wait(home: Path, settings: SandboxSettings, orders: int, work: Callable[[str], int]) -> int:
    """Starts the sandboxes, waits for an order, and follows it; ends if the dispatcher does, or wants none."""
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
    """What changes when packages are installed or removed: a sandbox must not import one half before and one after."""
    times = []
    for path in python_paths():
        with contextlib.suppress(OSError):
            times.append((path, path.stat().st_mtime_ns))
    return times
