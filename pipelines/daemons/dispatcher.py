"""Runs accepted releases one after another, each in its own process, and repairs what was lost or moved by hand.

The dispatcher imports everything once and forks for each release: a release starts in milliseconds, its memory is freed
with its process, and a crash affects nothing else. It runs one release at a time, because releases take measurements,
and two at once would disturb each other. It kills a release that no longer reacts to signals (`watchdog`), and keeps
the rest of the stack alive, with a watchdog of its own for Triton (`server_watchdog`).
"""

import argparse
import contextlib
import fcntl
import gc
import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from shiplift.pipelines.daemons import server_watchdog
from shiplift.pipelines.daemons.deaths import Deaths
from shiplift.pipelines.daemons.warm_worker import WarmWorker, note_flavor
from shiplift.pipelines.daemons.watchdog import Watchdog
from shiplift.pipelines.engines.local import incidents, leftovers, runner, stack
from shiplift.pipelines.engines.local.aborting import moved_by
from shiplift.pipelines.engines.local.notes import Notes
from shiplift.pipelines.engines.local.releases import MAX_ATTEMPTS, Order, Releases
from shiplift.pipelines.engines.local.retiring import finish as finish_retirements
from shiplift.pipelines.graph import Stage
from shiplift.pipelines.release import RELEASE
from shiplift.pipelines.triggers import approval_sweep, drift_sweep, registry_sweep
from shiplift.runtime.base.errors import RegistryHeld, ShipliftError, StackDown, Temporary
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.base.text import printable
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import begun, ended
from shiplift.runtime.host.folders import sweep as sweep_folders
from shiplift.runtime.host.installed import package_digest
from shiplift.runtime.host.processes import die_with_parent, fork
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.model import ModelVersion
from shiplift.runtime.records.release import Ending, ReleaseReport
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.champion import ADVICE
from shiplift.runtime.serving.machine.served import served_version
from shiplift.runtime.serving.reinstate import reinstate
from shiplift.runtime.store.ledger import Ledger
from shiplift.runtime.store.registry.rest import PATIENT_S, RestRegistry

_POLL_S = 0.05
_SUPERVISE_S = 2.0
_TICK_S = 1.0


def tell(message: str) -> None:
    """Writes a line to the dispatcher's log; names in it can't break the line."""
    print(printable(message), flush=True)


class ReleaseQueue:
    """The queued releases, cheap enough to poll twenty times a second: the folder is scanned only if it has changed.

    The folder's modification time tells, but only once it is older than a clock tick: a second change within the same
    tick would leave the same time. Every `full_scan_s` the folder is scanned regardless.
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
            self._changed_at = -1.0  # only the first runs now: scan again for the others
        return pending


class Dispatcher:
    """The loop of a home's dispatcher."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._releases = Releases(home)
        self._queue = ReleaseQueue(self._releases)
        self._warm_worker = WarmWorker(home, partial(work, home))
        self._child = 0
        self._watchdog = 0
        self._deaths = Deaths()
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
                self._release(pending[0])
            else:
                self._warm_worker.keep()
                time.sleep(_POLL_S)
        self._warm_worker.end()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGTERM)

    def _release(self, name: str) -> None:
        """Runs a release in the warm worker, or in a new process. No other worker is kept warm meanwhile."""
        child = self._warm_worker.take(name) or fork(partial(work, self._home, name))
        self._wait(child, Watchdog(self._releases, name))
        self._warm_worker.released()

    def _wait(self, child: int, watchdog: Watchdog | None = None) -> None:
        """Waits until a child ends, or its watchdog ends it. Supervision continues meanwhile."""
        self._child = child
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            self._supervise()
            if watchdog:
                watchdog.check()
            time.sleep(_POLL_S)
        self._child = 0

    def _sweep(self) -> None:
        running = stack.read(self._home)
        if running is not None and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + running.sweep_s
            site, since = stack.site(self._home, running), running.since
            self._wait(fork(lambda: sweep(site, self._releases, since=since)))

    def _supervise(self) -> None:
        if time.monotonic() < self._next_supervision or self._stopping:
            return
        self._next_supervision = time.monotonic() + _SUPERVISE_S
        self.watch()
        running = stack.read(self._home)
        if running is not None:
            self._revive(running)

    def _revive(self, running: stack.Stack) -> None:
        """Starts the processes that died; one that goes on dying waits, and `status` says so."""
        dead = [name for name in running.names if not running.runs(name)]
        for name, (count, pause) in self._deaths.note(dead, time.monotonic()).items():
            if pause:
                incidents.note(self._home, "", f"{name} died {count} times in a row: it waits {pause:.0f} s")
        if due := self._deaths.due(time.monotonic()):
            try:
                stack.start_missing(
                    self._home,
                    running,
                    lambda message: tell(f"{message}: it had died"),
                    but=frozenset(dead) - due,
                )
            except ShipliftError as error:
                tell(str(error))

    def watch(self) -> None:
        """Starts the watchdog, unless it is already running."""
        if self._watchdog and os.waitpid(self._watchdog, os.WNOHANG) == (0, 0):
            return
        self._watchdog = fork(self._watch)

    def _watch(self) -> int:
        die_with_parent()
        gc.freeze()
        server_watchdog.watch(self._home)
        return ShipliftError.exit_code


def work(home: Path, name: str) -> int:
    """Runs an accepted release to its end; returns its exit code."""
    os.setsid()
    releases = Releases(home)
    with (releases.folder(name) / "log.txt").open("ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    lock = (home / "engine.lock").open("w")  # the kernel frees it when this process ends, even if it is killed
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not releases.active(name):
        return 0  # a worker that outlived its dispatcher finished it while this one waited for the lock
    sweep_folders(home)  # left by a killed release; folders in use are locked, and stay
    order, attempt, failure = releases.order(name), releases.begin(name), releases.notes(name).failure()
    if attempt > MAX_ATTEMPTS:
        report = _given_up(order, name, failure)
        _end(home, releases, name, order, report)
        return report.exit_code
    running = stack.read(home)
    if running is None:
        return StackDown.exit_code
    site = stack.site(home, running)
    emit(home, begun(name, order.request, order.trigger, time.time(), _link(site, order)))
    moved = moved_by(home, order)
    if failure and not (moved and moved.abort):  # a promotion that a person aborted gives its traffic back first
        return _conclude(releases, order, name, site, failure)
    return _run(releases, order, name, site)


def _run(releases: Releases, order: Order, name: str, site: Site) -> int:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    ending, known = runner.run(
        RELEASE,
        site,
        order.request,
        order.trigger,
        release=name,
        cache=Ledger(site, order.request),
        tell=lambda event: releases.tell(name, event),
        on_signal=stopped.append,
        scratch=Path(site.home),
        entering=partial(_enter, releases.notes(name)),
        ordered=releases.notes(name).ordered,
    )
    if isinstance(version := known.get(ModelVersion.parameter()), ModelVersion):
        note_flavor(Path(site.home), version.flavor)
    leftovers.clear(Path(site.home))
    if signal.SIGTERM in stopped and ending.failure and ending.failure.outcome == "cancelled":
        return Temporary.exit_code  # the stack is going down: the release stays queued and resumes at the next start
    report: ReleaseReport = known[ReleaseReport.parameter()]
    _end(Path(site.home), releases, name, order, report)
    return report.exit_code


def _end(home: Path, releases: Releases, name: str, order: Order, report: ReleaseReport) -> None:
    """Tells others how a release ended, and takes it off the queue. A process killed in between tells nothing new."""
    running = stack.read(home)
    link = _link(stack.site(home, running), order) if running else ""
    emit(home, ended(report, order.trigger, time.time(), link))
    releases.end(name, report)


def _link(site: Site, order: Order) -> str:
    """Where a release can be looked at."""
    return site.page_of(order.request.model, order.request.version)


def _enter(notes: Notes, stage: Stage) -> None:
    notes.conclude(stage) if stage is RELEASE.on_exit else notes.enter(stage)


def _conclude(releases: Releases, order: Order, name: str, site: Site, failure: Failure) -> int:
    """Concludes a release whose process was killed, with the failure in its notes. No other stage runs."""
    ending = Ending(
        release=name,
        started_at=releases.queued_at(name),
        stages=releases.stage_runs(name, failure),
        givers=RELEASE.givers,
        failure=failure,
    )
    known = runner.conclude(
        RELEASE, site, order.request, order.trigger, ending=ending, entering=partial(_enter, releases.notes(name))
    )
    report: ReleaseReport = known[ReleaseReport.parameter()]
    _end(Path(site.home), releases, name, order, report)
    return report.exit_code


def _given_up(order: Order, name: str, known: Failure | None) -> ReleaseReport:
    """The report of a release whose process died on every attempt, or of one that could not be concluded."""
    do = f"See `shiplift logs {name}`, then `shiplift rerun {order.request.model}/{order.request.version}`."
    failure = known or Failure.of(ShipliftError(f"the release's process died {MAX_ATTEMPTS} times", do=do))
    return order.report(name, failure)


def sweep(site: Site, releases: Releases, *, since: float) -> int:
    """Accepts versions whose webhook was lost, and moves back aliases that were moved by hand; returns exit code 0.

    Follows decisions that people made in the registry. Finishes what killed commands began to retire.
    """
    registry = RestRegistry(site.registry_uri, timeout_s=PATIENT_S)
    running = stack.read(Path(site.home))
    if running is not None:
        try:
            stack.renew_lease(Path(site.home), running)
        except ShipliftError as error:
            tell(str(error))
            if isinstance(error, RegistryHeld):
                return 0  # another installation releases from this registry: start nothing here
    parts: tuple[Callable[[], object], ...] = (
        lambda: registry_sweep.sweep(registry, releases.accept, since=since, tell=tell),
        lambda: approval_sweep.sweep(
            registry,
            lambda info, decision: releases.decide(info.name, info.version, decision),
            site.policy,
            tell=tell,
        ),
        lambda: finish_retirements(site, tell),
        lambda: reinstate_aliases(site, registry, tell),
    )
    for part in parts:
        try:
            part()
        except ShipliftError as error:
            tell(str(error))
    return 0


def reinstate_aliases(site: Site, registry: drift_sweep.ListedRegistry, tell: Callable[[str], object]) -> None:
    """Moves the aliases of every model back to what production serves.

    Raises:
        Temporary: the registry does not respond.
    """
    home = Path(site.home)
    file = home / "production" / "aliases.json"
    known: dict[str, drift_sweep.State] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # without the file, check every model
        known = {model: tuple(state) for model, state in json.loads(file.read_text()).items()}
    before = dict(known)

    def look_into(model: str, _state: drift_sweep.State) -> bool:
        moved = reinstate(site, model).moved
        for drift in moved:
            tell(f"{drift.sentence}. It was moved back; {ADVICE}.")
        return not moved

    drift_sweep.sweep(registry, lambda model: served_version(home, model), look_into, known, tell=tell)
    if known != before:
        write_atomically(file, json.dumps(known))


def _preload() -> None:
    """Imports everything that a release needs outside the sandbox, and digests the package: forks inherit both.

    The cache keys of this daemon's releases therefore describe the code that it imported, even if files change later.
    """
    package_digest()
    import matplotlib.figure  # noqa: F401, PLC0415
    import optuna  # noqa: F401, PLC0415


def main() -> None:
    """Dispatches a home's releases."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    dispatcher = Dispatcher(arguments.home)
    dispatcher.watch()  # first: production must not wait for the imports of releases
    _preload()
    gc.freeze()  # a collection would write to every object, and so copy the pages that forks share
    dispatcher.serve()


if __name__ == "__main__":
    main()
