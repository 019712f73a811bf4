"""Runs accepted releases one after another, each in its own process, and starts those whose webhook was lost.

The dispatcher imports everything once and forks for each release: a release starts in milliseconds, its memory is freed
with its process, and a crash affects nothing else. It runs a single release at a time, because releases measure, and
two measurements at once would both be wrong. It also keeps the rest of the stack alive.
"""

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from shiplift.pipelines.engines import cache_key
from shiplift.pipelines.engines.local import runner, stack
from shiplift.pipelines.engines.local.releases import MAX_ATTEMPTS, Order, Releases
from shiplift.pipelines.release import RELEASE
from shiplift.pipelines.triggers import registry_sweep
from shiplift.runtime.base.errors import ShipliftError, StackDown, Temporary
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry_rest import PATIENT_S, RestRegistry

_POLL_S = 0.05
_SUPERVISE_S = 2.0
_TICK_S = 1.0


class Queue:
    """The queued releases, cheap enough to poll twenty times a second: the folder is scanned only if it has changed.

    Its modification time says so, once that is older than a clock tick. Every `full_scan_s` it is scanned regardless.
    """

    def __init__(self, releases: Releases, *, full_scan_s: float = 10.0) -> None:
        self._releases = releases
        self._full_scan_s = full_scan_s
        self._changed_at, self._scanned_at, self._next_full_scan = -1.0, 0.0, 0.0

    def waiting(self) -> list[str]:
        """The names of the queued releases, in the order in which to run them."""
        changed = self._releases.changed_at()
        settled = changed == self._changed_at and self._scanned_at - changed > _TICK_S
        if settled and time.monotonic() < self._next_full_scan:
            return []
        self._changed_at, self._scanned_at = changed, time.time()
        self._next_full_scan = time.monotonic() + self._full_scan_s
        pending = self._releases.pending()
        if pending:
            self._changed_at = -1.0  # the first is run now; scan again for the others
        return pending


class Dispatcher:
    """The loop of a home's dispatcher."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._releases = Releases(home)
        self._queue = Queue(self._releases)
        self._child = 0
        self._stopping = False
        self._next_sweep = 0.0
        self._next_supervision = time.monotonic() + _SUPERVISE_S

    def serve(self) -> None:
        """Runs until SIGTERM; a release under way at that time resumes at the next start."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not self._stopping:
            self._supervise()
            self._sweep()
            pending = self._queue.waiting()
            if pending:
                self._fork(partial(work, self._home, pending[0]))
            else:
                time.sleep(_POLL_S)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGTERM)

    def _fork(self, job: Callable[[], int]) -> None:
        """Runs a job in a child and waits for it; supervision goes on meanwhile."""
        sys.stdout.flush()
        self._child = os.fork()
        if self._child == 0:
            code = ShipliftError.exit_code
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                code = job()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        while os.waitpid(self._child, os.WNOHANG) == (0, 0):
            self._supervise()
            time.sleep(_POLL_S)
        self._child = 0

    def _sweep(self) -> None:
        running = stack.read(self._home)
        if running is not None and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + running.sweep_s
            self._fork(lambda: sweep(stack.site(self._home, running), self._releases, since=running.since))

    def _supervise(self) -> None:
        if time.monotonic() < self._next_supervision or self._stopping:
            return
        self._next_supervision = time.monotonic() + _SUPERVISE_S
        running = stack.read(self._home)
        if running is not None and not all(running.runs(name) for name in running.names):
            try:
                stack.start_missing(self._home, running, lambda message: print(f"{message}: it had died", flush=True))
            except ShipliftError as error:
                print(error, flush=True)


def work(home: Path, name: str) -> int:
    """Runs an accepted release to its end; returns its exit code."""
    os.setsid()
    releases = Releases(home)
    with (releases.folder(name) / "log.txt").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    lock = (home / "engine.lock").open("w")  # held until this process ends, however it ends
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not releases.active(name):
        return 0  # a worker that outlived its dispatcher has finished it
    order, attempt = releases.order(name), releases.begin(name)
    if attempt > MAX_ATTEMPTS:
        report = _given_up(order, name)
        releases.end(name, report)
        return report.exit_code
    running = stack.read(home)
    if running is None:
        return StackDown.exit_code
    return _run(releases, order, name, stack.site(home, running))


def _run(releases: Releases, order: Order, name: str, site: Site) -> int:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    ending, known = runner.run(
        RELEASE, site, order.request, order.trigger, release=name, cache=Ledger(site, order.request),
        tell=lambda event: releases.tell(name, event), on_signal=stopped.append, scratch=Path(site.home),
    )  # fmt: skip
    if signal.SIGTERM in stopped and ending.failure and ending.failure.outcome == "cancelled":
        return Temporary.exit_code  # the stack is going down: the release stays queued and resumes at the next start
    report: ReleaseReport = known[ReleaseReport.parameter()]
    releases.end(name, report)
    return report.exit_code


def _given_up(order: Order, name: str) -> ReleaseReport:
    """The report of a release whose process died every time."""
    do = f"See `shiplift logs {name}`, then `shiplift rerun {order.request.model}/{order.request.version}`."
    failure = Failure.of(ShipliftError(f"the release's process died {MAX_ATTEMPTS} times", do=do))
    return ReleaseReport(
        model=order.request.model,
        version=order.request.version,
        verdict=Outcome.INCONCLUSIVE,
        alias="",
        endpoint=None,
        stages=(),
        checks=(),
        release=name,
        reason=failure.message,
        exit_code=failure.exit_code,
        failure=failure,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
        trigger=order.trigger.kind,
    )


def sweep(site: Site, releases: Releases, *, since: float) -> int:
    """Accepts versions whose webhook was lost; returns exit code 0."""
    try:
        registry_sweep.sweep(
            RestRegistry(site.registry_uri, timeout_s=PATIENT_S),
            releases.accept,
            since=since,
            tell=partial(print, flush=True),
        )
    except ShipliftError as error:
        print(error, flush=True)
    return 0


def _preload() -> None:
    """Imports everything that a release needs outside the sandbox, and digests that code: forks share both."""
    cache_key.take_digests(RELEASE.flat())
    import matplotlib.figure  # noqa: F401, PLC0415
    import mlflow  # noqa: F401, PLC0415
    import onnxruntime.quantization  # noqa: F401, PLC0415
    import optuna  # noqa: F401, PLC0415


def main() -> None:
    """Dispatches a home's releases."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    _preload()
    Dispatcher(arguments.home).serve()


if __name__ == "__main__":
    main()
