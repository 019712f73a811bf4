"""Engine 1: this machine. Walks a pipeline in one process, with progress, resume, retries and cancellation.

A finished stage is looked up by its cache key. A stage with an effect (a staging server) is a cache hit too, until a
later stage uses it: then the effect is set up again first. However the walk ends, the pipeline's `on_exit` stage runs
last, and its record is the result of the release.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import tenacity

from shiplift.pipelines.engines.attempt import Attempt, Done, ResultCache, failure_of
from shiplift.pipelines.engines.interruption import Interrupted, interruptible, shielded
from shiplift.pipelines.graph import Each, Pipeline, Stage
from shiplift.runtime.base.errors import Cancelled, NoMatchingTarget, Temporary
from shiplift.runtime.confinement import workplace
from shiplift.runtime.records.base import Record, Sections
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, Event, StageRun
from shiplift.runtime.records.site import SandboxSettings, Site
from shiplift.runtime.records.verdict import Verdict, objection

Tell = Callable[[Event], None]
_WAIT_S = tenacity.wait_exponential(multiplier=1, max=20)


@dataclass
class _Run:
    """The state of a walk: the records so far, how each stage went, and which effects may have to be set up again."""

    known: dict[str, Any]
    cache: ResultCache | None = None
    tell: Tell = lambda _: None
    ahead: tuple[Stage, ...] = ()
    stages: list[StageRun] = field(default_factory=list)
    pending: list[Attempt] = field(default_factory=list)
    verdict: Verdict | None = None
    failure: Failure | None = None
    scratch: Path | None = None
    entering: Callable[[Stage], None] = lambda _: None
    stop_if_asked: Callable[[], None] = lambda: None


class _Ended(Exception):
    """A stage ended the walk: with a failure, or with a verdict that is not a pass."""


@shielded()
def run(
    pipeline: Pipeline, *inputs: Record, release: str, cache: ResultCache, tell: Tell = lambda _: None,
    on_signal: Callable[[int], None] = lambda _: None, scratch: Path | None = None,
    entering: Callable[[Stage], None] = lambda _: None,
) -> tuple[Ending, dict[str, Any]]:  # fmt: skip
    """Walks the pipeline; returns how it ended, and every record by name, including that of `on_exit`.

    SIGINT and SIGTERM cancel it (in the main thread); `on_signal` is called with the signal's number. Sandboxes may be
    started ahead of time below `scratch`. `entering` is called with each stage before it runs.

    An error that ends the walk is recorded in the ending, even a bug, whose traceback goes to the log. An error in
    `on_exit` is raised.
    """
    started = time.time()
    known = {record.parameter(): record for record in inputs}
    walk = _Run(cache=cache, tell=tell, known=known, ahead=tuple(pipeline.flat()), scratch=scratch, entering=entering)
    try:
        with interruptible(_cancelled, on_signal) as walk.stop_if_asked:
            for stage in pipeline:
                _fan_out(walk, stage) if isinstance(stage, Each) else _attempt(walk, stage, walk.known, "")
    except _Ended:
        pass
    except (Interrupted, Exception) as error:  # outside an attempt, which records its own
        walk.failure = failure_of(error)
    workplace.cool()
    ending = Ending(
        release=release, started_at=started, stages=tuple(walk.stages), givers=pipeline.givers, verdict=walk.verdict,
        failure=walk.failure,
    )  # fmt: skip
    if pipeline.on_exit is not None:
        _exit(walk, pipeline.on_exit, ending)
    return ending, walk.known


@shielded()
def conclude(
    pipeline: Pipeline, *inputs: Record, ending: Ending, entering: Callable[[Stage], None] = lambda _: None
) -> dict[str, Any]:
    """Runs only the exit stage, for a walk whose process can't any more; returns every record by name."""
    walk = _Run(known={record.parameter(): record for record in inputs}, entering=entering)
    if pipeline.on_exit is not None:
        _exit(walk, pipeline.on_exit, ending)
    return walk.known


def _cancelled(number: Signals) -> Cancelled:
    return Cancelled(f"stopped by {number.name}", do="`shiplift release` resumes it.")


def _fan_out(walk: _Run, each: Each) -> None:
    results = []
    skipped = []
    for item in getattr(walk.known[each.source], each.attribute):
        if why := each.unfit(item):
            skipped.append(f"{item.name}: {why}")
            for stage in each.stages:
                _note(walk, StageRun(name=stage.name, target=item.name, outcome="skipped", message=why))
            continue
        inside = walk.known | {each.item.parameter(): item}
        for stage in each.stages:
            _attempt(walk, stage, inside, item.name)
        results.append(inside[each.gives.parameter()])
    if skipped and not results:
        raise NoMatchingTarget(
            f"this machine fits no {each.item.parameter()} of the release: {'; '.join(skipped)}",
            do="Release on a cluster that has one, or add a target for this machine (`shiplift targets detect`).",
        )
    walk.known[each.gives.parameter()] = tuple(results)


def _attempt(walk: _Run, stage: Stage, known: dict[str, Any], target: str) -> None:
    walk.entering(stage)
    attempt = Attempt(
        stage=stage,
        arguments=lambda: {name: known[name] for name in stage.takes},
        target=target,
        cache=walk.cache,
        retry=_retrying(walk, stage, target),
        listener=partial(_on_progress, walk, stage, target),
    )
    done = attempt.recall()
    if done is None:
        _set_up_again(walk, stage, known)
        _warm_next(walk, stage)
        done = _make(walk, attempt)
    elif stage.at.keep == "effect":
        walk.pending.append(attempt)
    _take(walk, done, known)


def _warm_next(walk: _Run, stage: Stage) -> None:
    """Starts the next sandbox of the walk while `stage` runs: after a miss, later stages will most likely run too."""
    if walk.scratch is None or stage.at.keep != "result":
        return
    later = walk.ahead[walk.ahead.index(stage) + 1 :]
    if entry := next((each.at.warm for each in later if each.at.warm), None):
        site = walk.known.get(Site.parameter())
        workplace.warm(entry, walk.scratch, site.sandbox if isinstance(site, Site) else SandboxSettings())


def _set_up_again(walk: _Run, user: Stage, known: dict[str, Any]) -> None:
    """Sets up the effects that a stage uses: an effect that was a cache hit is only a record so far."""
    for attempt in [each for each in walk.pending if each.stage.step is user.at.uses]:
        walk.pending.remove(attempt)
        again = (attempt.stage.name, attempt.target)
        walk.stages = [run for run in walk.stages if (run.name, run.target) != again]
        _take(walk, _make(walk, attempt), known)


def _make(walk: _Run, attempt: Attempt) -> Done:
    walk.entering(attempt.stage)
    walk.tell(Event(stage=attempt.stage.name, target=attempt.target, kind="started"))
    return attempt.make()


def _take(walk: _Run, done: Done, known: dict[str, Any]) -> None:
    """Notes how an attempt went, and adds its record; ends the walk if it failed or its record objects."""
    _note(walk, done.run)
    walk.failure, record = done.failure, done.record
    if record is None:
        raise _Ended
    walk.stop_if_asked()
    known[record.parameter()] = record
    if isinstance(record, Sections):
        known.update({part: getattr(record, part) for part in record.parts()})
    objected = objection(record)
    walk.verdict = objected or (record if isinstance(record, Verdict) else walk.verdict)
    if objected is not None:
        raise _Ended


def _exit(walk: _Run, stage: Stage, ending: Ending) -> None:
    """Runs the exit stage, which takes the ending besides the inputs and can't be cancelled."""
    walk.entering(stage)
    known = walk.known | {Ending.parameter(): ending}
    record = stage.step(**{name: known[name] for name in stage.takes})
    walk.known[stage.gives.parameter()] = record
    walk.known[Ending.parameter()] = ending


def _on_progress(walk: _Run, stage: Stage, target: str, message: str, done: float | None) -> None:
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


def _retrying(walk: _Run, stage: Stage, target: str) -> tenacity.Retrying:
    """Retries after temporary errors, and no others."""

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
