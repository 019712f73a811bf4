"""The local engine's walk: a whole pipeline in one process, with resume, retries and cancellation.

However the walk ends, the pipeline's `on_exit` stage runs last, and its record is the result of the release.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import tenacity

from shiplift.pipelines.engines.attempt import ResultCache, failure_of
from shiplift.pipelines.engines.interruption import Interrupted, interruptible, shielded
from shiplift.pipelines.engines.walk import Walk
from shiplift.pipelines.graph import FanOut, Pipeline, Stage
from shiplift.runtime.base.errors import Cancelled, NoMatchingTarget, ShipliftError, Temporary
from shiplift.runtime.confinement import workplace
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, Event, StageRun
from shiplift.runtime.records.verdict import Verdict, objection

Tell = Callable[[Event], None]
Enter = Callable[[Stage], None]
_WAIT_S = tenacity.wait_exponential(multiplier=1, max=20)


@dataclass(kw_only=True)
class _Walk(Walk):
    """A walk in this process. It retries after temporary errors, and skips items that don't fit this machine.

    `on_event` is called with each event, `entering` with each stage before it runs.
    """

    on_event: Tell = lambda _: None
    entering: Enter = lambda _: None

    def enter(self, stage: Stage, target: str) -> None:  # noqa: ARG002
        self.entering(stage)

    def tell(self, event: Event) -> None:
        self.on_event(event)

    def retry(self, stage: Stage, target: str) -> tenacity.Retrying:
        """Retries after temporary errors, and no others."""

        def again(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            self.tell(Event(stage=stage.name, target=target, kind="progress", message=f"trying again: {error}"))

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Temporary),
            stop=tenacity.stop_after_attempt(1 + stage.at.retries),
            wait=_WAIT_S,
            before_sleep=again,
            reraise=True,
        )

    def items(self, fan_out: FanOut) -> Iterator[tuple[str, dict[str, Any]]]:
        """The items that fit this machine.

        Raises:
            NoMatchingTarget: there are items, but none fits.
        """
        skipped, some_fit = [], False
        for name, records in super().items(fan_out):
            if why := fan_out.unfit(records[fan_out.item.parameter()]):
                skipped.append(f"{name}: {why}")
                for stage in fan_out.stages:
                    self.note(StageRun(name=stage.name, target=name, outcome="skipped", message=why))
            else:
                some_fit = True
                yield name, records
        if skipped and not some_fit:
            raise NoMatchingTarget(
                f"this machine fits no {fan_out.item.parameter()} of the release: {'; '.join(skipped)}",
                do="Release on a cluster that has one, or add a target for this machine (`shiplift targets detect`).",
            )


@shielded()
def run(
    pipeline: Pipeline,
    *inputs: Record,
    release: str,
    cache: ResultCache,
    tell: Tell = lambda _: None,
    on_signal: Callable[[int], None] = lambda _: None,
    scratch: Path | None = None,
    entering: Enter = lambda _: None,
    ordered: Callable[[], Failure | None] = lambda: None,
) -> tuple[Ending, dict[str, Any]]:
    """Walks the pipeline; returns how it ended, and every record by name, including that of `on_exit`.

    SIGINT and SIGTERM cancel it (in the main thread), unless `ordered` says how it has to end; `on_signal` is called
    with the signal's number. Sandboxes may be started ahead of time below `scratch`. `entering` is called with each
    stage before it runs.

    Any error that ends the walk is recorded in the ending; a bug's traceback goes to the log as well. An error in
    `on_exit` is raised.
    """
    started = time.time()
    walk = _Walk(
        known=_by_name(inputs),
        ahead=tuple(pipeline.flat()),
        cache=cache,
        scratch=scratch,
        on_event=tell,
        entering=entering,
    )
    failure = _walked(walk, pipeline, on_signal, partial(_interrupted, ordered))
    workplace.cool()
    ending = Ending(
        release=release,
        started_at=started,
        stages=tuple(sorted(walk.runs, key=lambda run: pipeline.order.index(run.name))),
        givers=pipeline.givers,
        verdict=_verdict(walk),
        failure=failure,
    )
    if pipeline.on_exit is not None:
        _exit(walk, pipeline.on_exit, ending)
    return ending, walk.known


@shielded()
def conclude(pipeline: Pipeline, *inputs: Record, ending: Ending, entering: Enter = lambda _: None) -> dict[str, Any]:
    """Runs only the exit stage, for a walk whose process was killed; returns every record by name."""
    walk = _Walk(known=_by_name(inputs), ahead=(), entering=entering)
    if pipeline.on_exit is not None:
        _exit(walk, pipeline.on_exit, ending)
    return walk.known


def _by_name(records: tuple[Record, ...]) -> dict[str, Any]:
    return {record.parameter(): record for record in records}


def _walked(
    walk: _Walk,
    pipeline: Pipeline,
    on_signal: Callable[[int], None],
    interrupted: Callable[[Signals], ShipliftError],
) -> Failure | None:
    """Walks; returns the failure that ended the walk, if one did."""
    try:
        with interruptible(interrupted, on_signal) as walk.check:
            walk.over(pipeline)
    except (Interrupted, Exception) as error:  # raised between attempts: an attempt records its own errors
        return failure_of(error)
    return walk.last.failure if walk.last else None


def _interrupted(ordered: Callable[[], Failure | None], number: Signals) -> ShipliftError:
    if failure := ordered():
        return failure.error()
    return Cancelled(f"stopped by {number.name}", do="`shiplift release` resumes it.")


def _verdict(walk: Walk) -> Verdict | None:
    """The verdict that ended the walk, or one that an earlier stage gave."""
    objected = objection(walk.last.record) if walk.last and walk.last.record else None
    return objected or walk.known.get(Verdict.parameter())


def _exit(walk: Walk, stage: Stage, ending: Ending) -> None:
    """Runs the exit stage, which takes the ending besides the inputs and can't be cancelled."""
    walk.enter(stage, "")
    record = stage.step(**walk.arguments(stage, walk.known | {Ending.parameter(): ending}))
    walk.known[stage.gives.parameter()] = record
    walk.known[Ending.parameter()] = ending
