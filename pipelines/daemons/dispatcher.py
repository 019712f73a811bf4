"""Runs accepted releases, one after another, each in a process of its own; and starts what a lost webhook missed.

The dispatcher imports everything once and forks for each release: a release starts in milliseconds, its memory goes
with it, and a crash takes nothing else along. One at a time, because releases measure, and a machine that measures two
models measures neither. It also keeps the rest of the stack alive.
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
    """The releases that wait, for one who asks twenty times a second: they are looked through when one was queued.

    Their folder's time tells, once it is older than a clock's tick; every `full_look_s` it is not believed.
    """

    def __init__(self, releases: Releases, *, full_look_s: float = 10.0) -> None:
        self._releases = releases
        self._full_look_s = full_look_s
        self._changed_at, self._looked_at, self._next_full_look = -1.0, 0.0, 0.0

    def waiting(self) -> list[str]:
        """What is to run, in its order."""
        changed = self._releases.changed_at()
        settled = changed == self._changed_at and self._looked_at - changed > _TICK_S
        if settled and time.monotonic() < self._next_full_look:
            return []
        self._changed_at, self._looked_at = changed, time.time()
        self._next_full_look = time.monotonic() + self._full_look_s
        found = self._releases.pending()
        if found:
            self._changed_at = -1.0  # one is run now; the others are found after it
        return found


class Dispatcher:
    """The loop of one home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._releases = Releases(home)
        self._queue = Queue(self._releases)
        self._child = 0
        self._stopping = False
        self._next_sweep = 0.0
        self._next_look = time.monotonic() + _SUPERVISE_S

    def serve(self) -> None:
        """Runs until SIGTERM; a release then under way goes on at the next start."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while not self._stopping:
            self._look_after_stack()
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
            self._look_after_stack()
            time.sleep(_POLL_S)
        self._child = 0

    def _sweep(self) -> None:
        found = stack.read(self._home)
        if found is not None and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + found.sweep_s
            self._fork(lambda: sweep(stack.site(self._home, found), self._releases, since=found.since))

    def _look_after_stack(self) -> None:
        if time.monotonic() < self._next_look or self._stopping:
            return
        self._next_look = time.monotonic() + _SUPERVISE_S
        found = stack.read(self._home)
        if found is not None and not all(found.runs(name) for name in found.names):
            try:
                stack.start_missing(self._home, found, lambda said: print(f"{said}: it was gone", flush=True))
            except ShipliftError as error:
                print(error, flush=True)


def work(home: Path, name: str) -> int:
    """Runs one accepted release to its end; gives its exit code."""
    os.setsid()
    releases = Releases(home)
    with (releases.folder(name) / "log.txt").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    alone = (home / "engine.lock").open("w")  # held until this process ends, however it ends
    fcntl.flock(alone, fcntl.LOCK_EX)
    if not releases.active(name):
        return 0  # a worker that outlived its dispatcher finished it meanwhile
    order, attempt = releases.order(name), releases.begin(name)
    if attempt > MAX_ATTEMPTS:
        report = _given_up(order, name)
        releases.end(name, report)
        return report.exit_code
    found = stack.read(home)
    if found is None:
        return StackDown.exit_code
    return _run(releases, order, name, stack.site(home, found))


def _run(releases: Releases, order: Order, name: str, site: Site) -> int:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    ending, known = runner.run(
        RELEASE, site, order.request, order.trigger, release=name, cache=Ledger(site, order.request),
        tell=lambda event: releases.tell(name, event), on_signal=stopped.append, scratch=Path(site.home),
    )  # fmt: skip
    if signal.SIGTERM in stopped and ending.failure and ending.failure.outcome == "cancelled":
        return Temporary.exit_code  # the stack is going down: it stays queued and goes on at the next start
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
    """Accepts what no webhook announced."""
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
    """Everything a release imports outside the sandbox, and the digests of that code: forks share both."""
    cache_key.take_digests(RELEASE.flat())
    import matplotlib.figure  # noqa: F401, PLC0415
    import mlflow  # noqa: F401, PLC0415
    import onnxruntime.quantization  # noqa: F401, PLC0415
    import optuna  # noqa: F401, PLC0415


def main() -> None:
    """Dispatches one home's releases."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    words = parser.parse_args()
    _preload()
    Dispatcher(words.home).serve()


if __name__ == "__main__":
    main()
