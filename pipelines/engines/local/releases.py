"""Releases as folders: accepted exactly once, queued until they end, and readable while they run.

A folder is named after the model, the version and the spec. If that version was deleted and another one has its number,
the other one's release gets a folder of its own.

A folder appears by a single rename, complete with its request, so fifty simultaneous deliveries make one release. The
file `queued` stays until the release has ended: if a process dies before that, the dispatcher picks the release up
again. Requests, events and results are JSON, and none of this needs the registry.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import time
import uuid
from bisect import bisect_left
from functools import lru_cache
from pathlib import Path

from shiplift.pipelines.engines.answers import Accepted, final, not_to_decide, waits
from shiplift.pipelines.engines.local.notes import Notes
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.base.names import release_name, release_prefix
from shiplift.runtime.base.storage import room_for, write_atomically
from shiplift.runtime.host.processes import alive
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.decision import Decision
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.release import Event, ReleaseReport, StageRun
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome

MAX_ATTEMPTS = 3
_SETTLED_NS = 2_000_000_000  # a folder's time may not tell of a change that follows at once


@lru_cache(maxsize=4)
def _listed(root: Path, _changed_ns: int) -> tuple[str, ...]:
    """The releases in a folder, sorted; it is read again when its time of change is another."""
    return tuple(sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith(".")))


class Order(Record):
    """An accepted request, and what triggered it."""

    request: Request
    trigger: Trigger

    def report(self, name: str, failure: Failure) -> ReleaseReport:
        """The report of a release of this order that ended without any stage: it was cancelled, or could not run."""
        return ReleaseReport(
            model=self.request.model,
            version=self.request.version,
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
            trigger=self.trigger.kind,
        )


class Releases:
    """The releases of a home folder."""

    def __init__(self, home: Path) -> None:
        self.root = home / "releases"

    def folder(self, name: str) -> Path:
        """The folder of a release's files."""
        return self.root / name

    # --- accepting ---

    def accept(self, request: Request, trigger: Trigger, *, again: bool = False) -> Accepted:
        """Creates the release of a request, or returns the existing one.

        A release of another version, which had the same number and was deleted, is not the existing one.
        An ended release is queued again if `again` is true, or if a person asks for it and the model was not the
        reason why it ended.

        Raises:
            StorageFull: the disk is full.
        """
        name = self._name(request)
        if self._create(name, Order(request=request, trigger=trigger)):
            return Accepted(name=name, created=True, queued=True)
        if self.active(name):
            return Accepted(name=name, created=False, queued=False)
        ended = self.result(name)
        unfinished = ended is None or (trigger.kind == "manual" and not final(ended.exit_code))
        if again or unfinished or trigger.allow_older:
            self._queue_again(name, Order(request=request, trigger=trigger))
            return Accepted(name=name, created=False, queued=True)
        return Accepted(name=name, created=False, queued=False)

    def decide(self, model: str, version: int, decision: Decision) -> Accepted:
        """Queues the release of a version that waits for approval again, with a person's decision. The first counts.

        Raises:
            NothingToDecide: the version does not wait for approval.
            AlreadyDecided: another person decided before.
        """
        names = self.of(model, version)
        name = max(names, key=self._decided_on, default="")
        if not name:
            raise not_to_decide(f"{model}/{version}", None, "it was not released from this home")
        with (self.folder(name) / "decision.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            order, report = self.order(name), self.result(name)
            if self.active(name) or not waits(report):
                why = "its release is under way" if self.active(name) else "its release ended in another way"
                raise not_to_decide(f"{model}/{version}", order.trigger.decision, why)
            trigger = order.trigger.model_copy(update={"decision": decision, "requested_at": time.time()})
            self._queue_again(name, Order(request=order.request, trigger=trigger))
        return Accepted(name=name, created=False, queued=True)

    def _decided_on(self, name: str) -> tuple[bool, float]:
        """Orders a version's releases: one that waits for approval last, then the newest."""
        file = self.folder(name) / "order.json"
        return waits(self.result(name)), file.stat().st_mtime

    def _name(self, request: Request) -> str:
        name = release_name(request.model, request.version, request.spec)
        with contextlib.suppress(NotFound, ValueError):
            if not request.same_version(self.order(name).request):
                return release_name(request.model, request.version, request.spec, request.registered_at)
        return name

    def _create(self, name: str, order: Order) -> bool:
        folder = self.folder(name)
        if folder.exists():
            return False
        partial = self.root / f".{name}.{uuid.uuid4().hex}"
        try:
            with room_for("a release", self.root):
                partial.mkdir(parents=True)
                (partial / "order.json").write_text(order.model_dump_json())
                (partial / "queued").write_text(str(time.time()))
            partial.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False  # another process was faster: a rename onto a folder with files in it fails
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return True

    def _queue_again(self, name: str, order: Order) -> None:
        folder = self.folder(name)
        for old in ("result.json", "attempts", "events.jsonl"):
            (folder / old).unlink(missing_ok=True)
        self.notes(name).clear()
        write_atomically(folder / "order.json", order.model_dump_json())
        write_atomically(folder / "queued", str(time.time()))
        os.utime(self.root)

    # --- the queue ---

    def order(self, name: str) -> Order:
        """The order of a release.

        Raises:
            NotFound: there is no such release.
        """
        file = self.folder(name) / "order.json"
        if not file.is_file():
            raise NotFound(f"there is no release {name!r}", do="`shiplift status MODEL` lists a model's releases.")
        return Order.model_validate_json(file.read_text())

    def names(self) -> list[str]:
        """Every release, in the order of their names."""
        return list(self._names())

    def _names(self) -> tuple[str, ...]:
        try:
            changed_ns = self.root.stat().st_mtime_ns
        except FileNotFoundError:
            return ()
        settled = time.time_ns() - changed_ns > _SETTLED_NS
        return (_listed if settled else _listed.__wrapped__)(self.root, changed_ns)

    def of(self, model: str, version: int | None = None) -> list[str]:
        """The releases of a model, or of one of its versions, in no particular order."""
        prefix, names = release_prefix(model, version), []
        listed = self._names()  # a home may have tens of thousands of releases: look at these few
        for name in itertools.takewhile(lambda name: name.startswith(prefix), listed[bisect_left(listed, prefix) :]):
            with contextlib.suppress(NotFound, ValueError):
                request = self.order(name).request
                if request.model == model and version in (None, request.version):
                    names.append(name)
        return names

    def active(self, name: str) -> bool:
        """Whether a release is queued or running."""
        return os.access(f"{self.root}/{name}/queued", os.F_OK)

    def changed_at(self) -> float:
        """When a release was last queued, in seconds since the epoch, to a clock tick.

        Other changes to the folder count too, so the time may be later than the last queuing, but never earlier.
        """
        return self.root.stat().st_mtime if self.root.is_dir() else 0.0

    def pending(self) -> list[str]:
        """The queue: models in the order of their oldest queued release, a model's versions in ascending order."""
        queued: list[tuple[float, str, int, str]] = []
        for name in filter(self.active, self.names()):
            with contextlib.suppress(OSError, ValueError):
                since = self.queued_at(name)
                request = self.order(name).request
                queued.append((since, request.model, request.version, name))
        first: dict[str, float] = {}
        for since, model, _, _ in queued:
            first[model] = min(since, first.get(model, since))
        return [name for _, _, _, name in sorted((first[m], m, version, name) for _, m, version, name in queued)]

    def queued_at(self, name: str) -> float:
        """When a release was queued, in seconds since the epoch."""
        return float((self.folder(name) / "queued").read_text())

    def begin(self, name: str) -> int:
        """Notes that this process works on a release; returns the attempt's number, from 1."""
        folder = self.folder(name)
        from shiplift.runtime.host.processes import identify  # noqa: PLC0415

        attempts = folder / "attempts"
        number = int(attempts.read_text()) + 1 if attempts.is_file() else 1
        write_atomically(attempts, str(number))
        self.notes(name).begin()
        write_atomically(folder / "worker.json", identify(os.getpid()).model_dump_json())
        return number

    def end(self, name: str, report: ReleaseReport) -> None:
        """Writes the result, then takes the release off the queue."""
        folder = self.folder(name)
        write_atomically(folder / "result.json", report.model_dump_json(indent=1))
        (folder / "queued").unlink(missing_ok=True)
        self.notes(name).clear()

    def end_with(self, name: str, failure: Failure) -> None:
        """Notes how a release has to end. Its next process concludes it, with as many attempts as a new release has."""
        self.notes(name).end_with(failure)
        (self.folder(name) / "attempts").unlink(missing_ok=True)

    def notes(self, name: str) -> Notes:
        """The notes about a release."""
        return Notes(self.folder(name))

    def worker(self, name: str) -> Process | None:
        """The process that works on a release, if it is alive."""
        file = self.folder(name) / "worker.json"
        process = Process.model_validate_json(file.read_text()) if file.is_file() else None
        return process if process and self.active(name) and alive(process) else None

    # --- what happened ---

    def stage_runs(self, name: str, failure: Failure) -> tuple[StageRun, ...]:
        """How each stage went according to the events, for a release that `failure` ended from outside.

        Events don't say under which cache keys results are stored, so the runs have none.
        """
        runs: dict[tuple[str, str], StageRun] = {}
        for event in self.events(name)[0]:
            if event.kind == "started":
                run = StageRun(name=event.stage, target=event.target, outcome=failure.outcome, message=failure.message)
                runs[event.stage, event.target] = run
            elif event.kind == "finished":
                runs[event.stage, event.target] = StageRun(
                    name=event.stage,
                    target=event.target,
                    seconds=event.seconds,
                    cached=event.cached,
                    outcome=event.outcome,
                    message=event.message,
                )
        return tuple(runs.values())

    def result(self, name: str) -> ReleaseReport | None:
        """How a release ended; None while it is under way."""
        file = self.folder(name) / "result.json"
        return ReleaseReport.model_validate_json(file.read_text()) if file.is_file() else None

    def tell(self, name: str, event: Event) -> None:
        """Appends an event.

        Raises:
            StorageFull: no space is left.
        """
        line = json.dumps({"at": round(time.time(), 3), **event.model_dump(mode="json", exclude_defaults=True)})
        with room_for("an event", self.folder(name)), (self.folder(name) / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def events(self, name: str, offset: int = 0) -> tuple[list[Event], int]:
        """The events after a byte offset, and the offset behind them. An incomplete line is left for the next call."""
        events, end = self._dated(name, offset)
        return [event for _, event in events], end

    def stage_under_way(self, name: str) -> tuple[Event, float] | None:
        """The newest stage that is still running: its start event, and the event's time in seconds since the epoch."""
        running: dict[tuple[str, str], tuple[Event, float]] = {}
        for at, event in self._dated(name)[0]:
            if event.kind == "started":
                running[event.stage, event.target] = event, at
            elif event.kind == "finished":
                running.pop((event.stage, event.target), None)
        return max(running.values(), key=lambda each: each[1], default=None)

    def stages_so_far(self, name: str) -> tuple[StageRun, ...]:
        """The stages that have begun, with when and for how long; the last one may still run."""
        runs: dict[tuple[str, str], StageRun] = {}
        for at, event in self._dated(name)[0]:
            key = event.stage, event.target
            if event.kind == "started":
                runs[key] = StageRun(name=event.stage, target=event.target, outcome="running", started_at=at)
            elif event.kind == "finished" and key in runs:
                ended = event.model_dump(include={"seconds", "cached", "outcome", "message"})
                runs[key] = runs[key].model_copy(update=ended)
        now = time.time()
        return tuple(
            run.model_copy(update={"seconds": round(max(0.0, now - run.started_at), 3)})
            if run.outcome == "running"
            else run
            for run in runs.values()
        )

    def _dated(self, name: str, offset: int = 0) -> tuple[list[tuple[float, Event]], int]:
        file = self.folder(name) / "events.jsonl"
        if not file.is_file():
            return [], offset
        with file.open("rb") as lines:
            lines.seek(offset)
            body = lines.read()
        complete = body[: body.rfind(b"\n") + 1]
        events: list[tuple[float, Event]] = []
        for line in complete.splitlines():
            with contextlib.suppress(ValueError, AttributeError, TypeError):  # a line truncated by a full disk
                fields = json.loads(line)
                at = float(fields.pop("at", 0))
                events.append((at, Event.model_validate(fields)))
        return events, offset + len(complete)
