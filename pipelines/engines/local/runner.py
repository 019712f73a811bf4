"""Engine 1: this machine. Walks a pipeline in one process, with progress, resume, retries and cancellation.

A finished stage is found again by its key. A stage whose result is an effect (a staging server) is a hit too, until a
later stage uses it: then it is set up again first. Whatever happens, the pipeline's `on_exit` stage has the last
word; what it says is the release.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import tenacity

from shiplift.pipelines.engines.cache_key import key
from shiplift.pipelines.engines.interruption import Interrupted, as_error
from shiplift.pipelines.graph import Each, Pipeline, Placement, Stage
from shiplift.runtime.base.errors import Cancelled, DeadlineExceeded, NoMatchingTarget, ShipliftError, Temporary
from shiplift.runtime.base.progress import listening
from shiplift.runtime.host import sandbox
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.release import Ending, Event, Failure, StageRun
from shiplift.runtime.records.verdict import Outcome, Verdict

Tell = Callable[[Event], None]
_WAIT_S = tenacity.wait_exponential(multiplier=1, max=20)
_OUTCOMES: dict[Outcome, Literal["refused", "inconclusive"]] = {
    Outcome.FAIL: "refused",
    Outcome.INCONCLUSIVE: "inconclusive",
}


class Kept(Protocol):
    """Where finished stages are kept: `runtime.store.ledger.Ledger`, or a stand-in for a pure test."""

    def get(self, key: str, stage: str, kind: Any) -> Any:
        """The record kept under a key, or None."""

    def put(self, key: str, stage: str, record: Record) -> None:
        """Keeps a record."""


@dataclass
class _Run:
    """One walk: what is known so far, how each stage went, and which effects would have to be set up again."""

    kept: Kept
    tell: Tell
    known: dict[str, Any]
    stages: list[StageRun] = field(default_factory=list)
    pending: list[tuple[Stage, str]] = field(default_factory=list)
    verdict: Verdict | None = None
    warm: dict[str, Path] = field(default_factory=dict)
    stopped: list[Interrupted] = field(default_factory=list)

    def stop_if_asked(self) -> None:
        """Raises a signal's exception again: Python drops one that comes inside a callback of the interpreter's."""
        if self.stopped and sys.exc_info()[0] is None:
            raise self.stopped[0]


class _Ended(Exception):
    """A record ended the pipeline with a verdict that is not a pass."""


@contextmanager
def _undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM change nothing: not between traffic and aliases, and not while the release is concluded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@_undisturbed()
def run(
    pipeline: Pipeline, *inputs: Record, release: str, kept: Kept, tell: Tell = lambda _: None,
    on_signal: Callable[[int], None] = lambda _: None, scratch: Path | None = None,
) -> tuple[Ending, dict[str, Any]]:  # fmt: skip
    """Walks the pipeline; gives how it ended and every record known by then, that of `on_exit` included.

    SIGINT and SIGTERM cancel it (in the main thread); `on_signal` hears which. Below `scratch` sandboxes may be started
    ahead of time.

    Errors of ours end the walk and are in the ending. Anything else is a bug: it passes through, after `on_exit`.
    """
    started = time.time()
    warm = {stage.at.warm: scratch for stage in pipeline.flat() if stage.at.warm and scratch}
    walk = _Run(kept=kept, tell=tell, known={record.parameter(): record for record in inputs}, warm=warm)
    failure: Failure | None = None
    bug: Exception | None = None
    try:
        with _cancellable(walk, on_signal):
            for stage in pipeline:
                _each(walk, stage) if isinstance(stage, Each) else _one(walk, stage, walk.known, "")
    except _Ended:
        pass
    except ShipliftError as error:
        failure = Failure(kind=type(error).__name__, exit_code=error.exit_code, what=error.what, do=error.do)
    except Exception as error:
        bug = error
        failure = Failure(
            kind=type(error).__name__, exit_code=70, what=f"a bug in Shiplift: {error!r}", do="Report it."
        )
    sandbox.cool()
    ending = Ending(
        release=release, started_at=started, stages=tuple(walk.stages), verdict=walk.verdict, failure=failure
    )
    if pipeline.on_exit is not None:
        _last(walk, pipeline.on_exit, ending)
    if bug is not None:
        raise bug
    return ending, walk.known


def _each(walk: _Run, each: Each) -> None:
    given = []
    passed_over = []
    for item in getattr(walk.known[each.source], each.attribute):
        if why := each.unfit(item):
            passed_over.append(f"{item.name}: {why}")
            for stage in each.stages:
                _note(walk, StageRun(name=stage.name, target=item.name, outcome="skipped", message=why))
            continue
        inside = walk.known | {each.item.parameter(): item}
        for stage in each.stages:
            _one(walk, stage, inside, item.name)
        given.append(inside[each.gives.parameter()])
    if passed_over and not given:
        raise NoMatchingTarget(
            f"this machine is no {each.item.parameter()} of the release: {'; '.join(passed_over)}",
            do="Release it on a cluster that has one, or add one of this machine (`shiplift targets detect`).",
        )
    walk.known[each.gives.parameter()] = tuple(given)


def _one(walk: _Run, stage: Stage, known: dict[str, Any], target: str) -> None:
    arguments = {name: known[name] for name in stage.takes}
    name = key(stage, arguments) if stage.at.keep != "never" else ""
    record = _retried(walk, stage, target)(walk.kept.get, name, stage.name, stage.gives) if name else None
    if record is None:
        _set_up_again(walk, stage, known)
        while walk.warm and stage.at.keep == "result":  # something has to be made: so, most likely, has the rest
            sandbox.warm(*walk.warm.popitem())
        arguments = {name: known[name] for name in stage.takes}
        record = _run_step(walk, stage, arguments, target, name)
        if name:
            _retried(walk, stage, target)(walk.kept.put, name, stage.name, record)
    else:
        _note(walk, StageRun(name=stage.name, target=target, cached=True, key=name, outcome=_outcome(record)))
        if stage.at.keep == "effect":
            walk.pending.append((stage, target))
    walk.stop_if_asked()
    known[stage.gives.parameter()] = record
    if isinstance(record, Sections):
        known.update({part: getattr(record, part) for part in record.parts()})
    _stop_on_objection(walk, record)


def _set_up_again(walk: _Run, user: Stage, known: dict[str, Any]) -> None:
    """An effect found in the ledger is only a memory: before a stage uses it, it is set up for real."""
    for stage, target in [one for one in walk.pending if one[0].name == user.at.uses]:
        walk.pending.remove((stage, target))
        arguments = {name: known[name] for name in stage.takes}
        walk.stages = [run for run in walk.stages if (run.name, run.target) != (stage.name, target)]
        known[stage.gives.parameter()] = _run_step(walk, stage, arguments, target, key(stage, arguments))


def _run_step(walk: _Run, stage: Stage, arguments: dict[str, Any], target: str, name: str) -> Record:
    started = time.monotonic()
    walk.tell(Event(stage=stage.name, target=target, kind="started"))
    outcome: Any = "failed"
    message = ""

    def heard(said: str, done: float | None) -> None:
        walk.stop_if_asked()
        walk.tell(Event(stage=stage.name, target=target, kind="progress", message=said, done=done))

    with listening(heard) as measured:
        try:
            with _undisturbed() if stage.at.shielded else nullcontext(), _deadline(stage.at, stage.name):
                record: Record = _retried(walk, stage, target)(stage.step, **arguments)
            outcome = _outcome(record)
            objection = record.objection()
            message = "; ".join(objection.reasons) if objection else record.remark()
        except Exception as error:
            outcome = "cancelled" if isinstance(error, Cancelled) else "failed"
            message = str(error) if isinstance(error, ShipliftError) else repr(error)
            raise
        finally:
            _note(
                walk,
                StageRun(
                    name=stage.name, target=target, seconds=round(time.monotonic() - started, 3), outcome=outcome,
                    message=message, key=name, measured_seconds=round(sum(measured), 3),
                ),
            )  # fmt: skip
    return record


def _last(walk: _Run, stage: Stage, ending: Ending) -> None:
    """The exit stage: given how it ended beside the inputs, and not itself cancellable."""
    known = walk.known | {Ending.parameter(): ending}
    record = stage.step(**{name: known[name] for name in stage.takes})
    walk.known[stage.gives.parameter()] = record
    walk.known[Ending.parameter()] = ending


def _outcome(record: Record) -> Any:
    objection = record.objection()
    return _OUTCOMES[objection.outcome] if objection else "ok"


def _stop_on_objection(walk: _Run, record: Record) -> None:
    objection = record.objection()
    if objection is not None or isinstance(record, Verdict):
        walk.verdict = objection or (record if isinstance(record, Verdict) else None)
    if objection is not None:
        raise _Ended


def _note(walk: _Run, stage: StageRun) -> None:
    walk.stages.append(stage)
    walk.tell(
        Event(
            stage=stage.name, target=stage.target, kind="finished", message=stage.message, seconds=stage.seconds,
            cached=stage.cached, outcome=stage.outcome,
        )
    )  # fmt: skip


def _retried(walk: _Run, stage: Stage, target: str) -> tenacity.Retrying:
    """Temporary errors, and nothing else, are tried again."""

    def again(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        walk.tell(Event(stage=stage.name, target=target, kind="progress", message=f"trying again: {error}"))

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Temporary),
        stop=tenacity.stop_after_attempt(1 + stage.at.retries),
        wait=_WAIT_S,
        before_sleep=again,
        reraise=True,
    )


@contextmanager
def _cancellable(walk: _Run, on_signal: Callable[[int], None]) -> Iterator[None]:
    """SIGINT and SIGTERM end the stage at hand as `Cancelled`; a second one changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def cancel(number: int, _frame: FrameType | None) -> None:
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        on_signal(number)
        name = signal.Signals(number).name
        walk.stopped.append(Interrupted(Cancelled(f"stopped by {name}", do="`shiplift release` goes on where it was.")))
        raise walk.stopped[0]

    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    for one in before:
        signal.signal(one, cancel)
    try:
        with as_error():
            yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _deadline(placement: Placement, name: str) -> Iterator[None]:
    """SIGALRM at the stage's deadline: a step that hangs is bounded like one in a pod."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_number: int, _frame: FrameType | None) -> None:
        error = DeadlineExceeded(f"stage {name} took over {placement.deadline_s} s", do="See the release's log.")
        raise Interrupted(error)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, placement.deadline_s)
    try:
        with as_error():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
