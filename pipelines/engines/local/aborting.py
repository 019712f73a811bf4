"""Ends releases that are under way, on a person's order: by a signal or, while traffic moves, by an order to go back.

The order is on disk before the process is told, so that it counts even if the process or this one is killed.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from shiplift.pipelines.engines.answers import AbortedRelease, aborted_release, already_aborted
from shiplift.pipelines.engines.local.releases import Order, Releases
from shiplift.runtime.base.errors import Cancelled, Temporary
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import ended
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.promotion import Abort, Moving
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.serving.abort import aborted
from shiplift.runtime.serving.machine import moving
from shiplift.runtime.serving.machine.served import served_version

_POLL_S = 0.05
_CANCEL_S = 120


def abort(home: Path, model: str, order: Abort) -> AbortedRelease:
    """Aborts the release of a model that has begun, and waits until it has ended.

    Raises:
        NothingToAbort: none has begun, or it ended in another way.
        Temporary: the release did not end in time.
    """
    releases = Releases(home)
    names = [name for name in releases.pending() if releases.order(name).request.model == model]
    name = next((name for name in names if releases.worker(name) or moved_by(home, releases.order(name))), "")
    if not name:
        return already_aborted(_newest(releases, model), model, served_version(home, model), waiting=bool(names))
    request = releases.order(name).request
    releases.notes(name).abort(Failure.of(aborted(order, model, request.version)))
    end(home, name, order)
    return aborted_release(releases.result(name), model, served_version(home, model))


def end(home: Path, name: str, order: Abort) -> None:
    """Interrupts a release and waits until it has cleaned up; takes a queued release off the queue.

    Raises:
        Temporary: the release did not end in time.
    """
    releases, deadline = Releases(home), time.monotonic() + _CANCEL_S
    interrupted = ordered = False
    while releases.active(name) and time.monotonic() < deadline:
        worker, accepted = releases.worker(name), releases.order(name)
        moved = moved_by(home, accepted)
        if (moved or worker) and not ordered:
            ordered = True
            this = Moving(version=accepted.request.version, requested_at=accepted.trigger.requested_at)
            moving.abort(home, accepted.request.model, order, before=this)
        if worker and not interrupted:
            interrupted = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGINT)
        elif not (worker or interrupted or moved):
            _take_off_the_queue(home, releases, name, accepted, order)
        time.sleep(_POLL_S)
    if releases.active(name):
        raise Temporary(f"release {name} did not stop within {_CANCEL_S} s", do="Run the same command again.")


def _take_off_the_queue(home: Path, releases: Releases, name: str, accepted: Order, order: Abort) -> None:
    """Ends a release that has not begun. It has a result, so neither a sweep nor a repeated webhook queues it again."""
    request = accepted.request
    why = Cancelled(
        f"cancelled by {order.by} before it began",
        do=f"If it should be released, run `shiplift release {request.model}/{request.version}`.",
    )
    report = accepted.report(name, Failure.of(why))
    emit(home, ended(report, accepted.trigger, time.time()))
    releases.end(name, report)


def moved_by(home: Path, order: Order) -> Moving | None:
    """The promotion of a release, if its traffic moves and can still go back."""
    known = moving.moving(home, order.request.model)
    this = known is not None and known.is_of(order.request.version, order.trigger.requested_at)
    return known if known and this and known.begun and not known.committed else None


def _newest(releases: Releases, model: str) -> ReleaseReport | None:
    """The report of the model's release that ended last."""
    ended = [(releases.folder(name) / "result.json", name) for name in releases.of(model)]
    dated = [(file.stat().st_mtime, name) for file, name in ended if file.is_file()]
    return releases.result(max(dated)[1]) if dated else None
