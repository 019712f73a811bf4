"""Engine 1: this machine. Walks a pipeline in one process, with progress, resume, retries and cancellation.

A finished stage is found again by its key. A stage whose result is an effect (a staging server) is a hit too, until a
later stage uses it: then it is set up again first. Whatever happens, the pipeline's `on_exit` stage has the last
word; what it says is the release.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import tenacity

from shiplift.pipelines.engines.attempt import Attempt, Done, Kept, failure_of
from shiplift.pipelines.engines.interruption import Interrupted, interruptible, shielded
from shiplift.pipelines.graph import Each, Pipeline, Stage
from shiplift.runtime.base.errors import Cancelled, NoMatchingTarget, Temporary
from shiplift.runtime.host import sandbox
from shiplift.runtime.host.sandbox import Entry
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, Event, StageRun
from shiplift.runtime.records.verdict import Verdict

Tell = Callable[[Event], None]
_WAIT_S = tenacity.wait_exponential(multiplier=1, max=20)


@dataclass
class _Run:
    """One walk: what is known so far, how each stage went, and which effects would have to be set up again."""

    kept: Kept
    tell: Tell
    known: dict[str, Any]
    stages: list[StageRun] = field(default_factory=list)
    pending: list[Attempt] = field(default_factory=list)
    verdict: Verdict | None = None
    failure: Failure | None = None
    warm: dict[Entry, Path] = field(default_factory=dict)
    stop_if_asked: Callable[[], None] = lambda: None


class _Ended(Exception):
    """A stage ended the pipeline: with a failure, or with a verdict that is not a pass."""


@shielded()
def run(
    pipeline: Pipeline, *inputs: Record, release: str, kept: Kept, tell: Tell = lambda _: None,
    on_signal: Callable[[int], None] = lambda _: None, scratch: Path | None = None,
) -> tuple[Ending, dict[str, Any]]:  # fmt: skip
    """Walks the pipeline; gives how it ended and every record known by then, that of `on_exit` included.

    SIGINT and SIGTERM cancel it (in the main thread); `on_signal` hears which. Below `scratch` sandboxes may be started
    ahead of time.

    Whatever error ends the walk is in the ending, a bug too, whose traceback goes to the log. What `on_exit` raises
    passes through.
    """
    started = time.time()
    warm = {stage.at.warm: scratch for stage in pipeline.flat() if stage.at.warm and scratch}
    walk = _Run(kept=kept, tell=tell, known={record.parameter(): record for record in inputs}, warm=warm)
    try:
        with interruptible(_cancelled, on_signal) as walk.stop_if_asked:
            for stage in pipeline:
                _each(walk, stage) if isinstance(stage, Each) else _one(walk, stage, walk.known, "")
    except _Ended:
        pass
    except (Interrupted, Exception) as error:  # between two attempts
        walk.failure = failure_of(error)
    sandbox.cool()
    ending = Ending(
        release=release, started_at=started, stages=tuple(walk.stages), givers=pipeline.givers, verdict=walk.verdict,
        failure=walk.failure,
    )  # fmt: skip
    if pipeline.on_exit is not None:
        _last(walk, pipeline.on_exit, ending)
    return ending, walk.known


def _cancelled(number: Signals) -> Cancelled:
    return Cancelled(f"stopped by {number.name}", do="`shiplift release` goes on where it was.")


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
    attempt = Attempt(
        stage=stage,
        arguments=lambda: {name: known[name] for name in stage.takes},
        target=target,
        kept=walk.kept,
        retry=_retried(walk, stage, target),
        listener=partial(_heard, walk, stage, target),
    )
    done = attempt.recall()
    if done is None:
        _set_up_again(walk, stage, known)
        while walk.warm and stage.at.keep == "result":  # something has to be made: so, most likely, has the rest
            sandbox.warm(*walk.warm.popitem())
        done = _made(walk, attempt)
    elif stage.at.keep == "effect":
        walk.pending.append(attempt)
    _take(walk, done, known)


def _set_up_again(walk: _Run, user: Stage, known: dict[str, Any]) -> None:
    """An effect found in the ledger is only a memory: before a stage uses it, it is set up for real."""
    for attempt in [each for each in walk.pending if each.stage.step is user.at.uses]:
        walk.pending.remove(attempt)
        again = (attempt.stage.name, attempt.target)
        walk.stages = [run for run in walk.stages if (run.name, run.target) != again]
        _take(walk, _made(walk, attempt), known)


def _made(walk: _Run, attempt: Attempt) -> Done:
    walk.tell(Event(stage=attempt.stage.name, target=attempt.target, kind="started"))
    return attempt.make()


def _take(walk: _Run, done: Done, known: dict[str, Any]) -> None:
    """Notes how an attempt went, and what it gave; ends the walk where it failed or objects."""
    _note(walk, done.ran)
    walk.failure, record = done.failure, done.record
    if record is None:
        raise _Ended
    walk.stop_if_asked()
    known[record.parameter()] = record
    if isinstance(record, Sections):
        known.update({part: getattr(record, part) for part in record.parts()})
    objection = record.objection()
    walk.verdict = objection or (record if isinstance(record, Verdict) else walk.verdict)
    if objection is not None:
        raise _Ended


def _last(walk: _Run, stage: Stage, ending: Ending) -> None:
    """The exit stage: given how it ended beside the inputs, and not itself cancellable."""
    known = walk.known | {Ending.parameter(): ending}
    record = stage.step(**{name: known[name] for name in stage.takes})
    walk.known[stage.gives.parameter()] = record
    walk.known[Ending.parameter()] = ending


def _heard(walk: _Run, stage: Stage, target: str, message: str, done: float | None) -> None:
    walk.stop_if_asked()
    walk.tell(Event(stage=stage.name, target=target, kind="progress", message=message, done=done))


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
