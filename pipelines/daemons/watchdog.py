"""Ends a release's process that no longer reacts to signals, after a cancel or after its stage's deadline.

Normally this isn't needed: models run in sandboxes with limits, and a signal interrupts a step at once. But a process
that is stuck in C code ignores SIGINT, SIGTERM and its own alarm. Before the watchdog ends it, it notes how the release
has to end, and the release's next process concludes it that way.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

import psutil

from shiplift.pipelines.engines.local.notes import RESUME
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.runtime.base.errors import Cancelled, ShipliftError
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.process import Process

_EVERY_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a process may clean up after a cancel, and after the SIGTERM that follows."""

    cancelled_s: float = 20
    terminated_s: float = 5


class Watchdog:
    """Watches the process of one release."""

    def __init__(self, releases: Releases, name: str, patience: Patience | None = None) -> None:
        self._releases, self._name, self._patience = releases, name, patience or Patience()
        self._notes = releases.notes(name)
        self._next_check = 0.0
        self._cancelled_since: float | None = None
        self._terminated_at: float | None = None

    def check(self) -> None:
        """Ends the process if it is overdue. Cheap enough to call twenty times a second."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + _EVERY_S
        worker = self._releases.worker(self._name)
        if worker is None:
            self._terminated_at = None
        elif self._terminated_at is None:
            if error := self._overdue(now):
                self._terminate(worker, error, now)
        elif now > self._terminated_at + self._patience.terminated_s:
            kill_session(worker)

    def _overdue(self, now: float) -> ShipliftError | None:
        position = self._notes.position()
        if position and now > position.until:
            return position.late
        if not self._notes.cancelled or (position and not position.cancellable):
            return None
        self._cancelled_since = self._cancelled_since or now
        if now > self._cancelled_since + self._patience.cancelled_s:
            if ordered := self._notes.ordered():
                return ordered.error()
            return Cancelled("the release was cancelled; its process did not stop by itself and was killed", do=RESUME)
        return None

    def _terminate(self, worker: Process, error: ShipliftError, now: float) -> None:
        print(f"{self._name}: {error}", flush=True)
        self._releases.end_with(self._name, Failure.of(error))
        self._terminated_at = now
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)


def kill_session(worker: Process) -> None:
    """Kills a release's process and every process in its session. Its servers and sandboxes die with it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if process.pid == worker.pid or os.getsid(process.pid) == worker.pid:
                process.kill()
