"""An attempt at a stage, the same on every engine: a cache hit or a run of its step, and a record of how it went.

An engine decides where, when and how often a stage runs. This module decides whether it is a cache hit, how long it may
take, how it is interrupted, and what its `StageRun` and `Failure` say, so that a release leaves the same records on
every engine.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shiplift.pipelines.engines.cache_key import has_key, key
from shiplift.pipelines.engines.interruption import Interrupted, deadline
from shiplift.pipelines.engines.parts import Parts
from shiplift.pipelines.graph import Stage
from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.base.progress import Listener, listening
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import StageOutcome, StageRun
from shiplift.runtime.records.verdict import objection

T = TypeVar("T")


class ResultCache(Protocol):
    """Where the records of finished stages are stored: `runtime.store.ledger.Ledger`, or a stand-in in a pure test."""

    def get(self, key: str, stage: str, kind: Any) -> Any:
        """The record stored under a key, or None."""

    def put(self, key: str, stage: str, record: Record) -> None:
        """Stores a record."""

    def explain(self, error: NotFound) -> NotFound:
        """A clearer error than this one, if the version was deleted during its release."""


class Retry(Protocol):
    """Calls a function, and calls it again if it fails: `tenacity.Retrying`, for example."""

    def __call__(self, function: Callable[..., T], /, *arguments: Any, **keywords: Any) -> T:
        """Returns what the last call returned."""


def once(function: Callable[..., T], /, *arguments: Any, **keywords: Any) -> T:
    """The `Retry` of a pod: one call. The engine retries by starting another pod."""
    return function(*arguments, **keywords)


@dataclass(frozen=True, kw_only=True)
class Done:
    """The result of an attempt: how it went, and either the stage's record or the failure."""

    run: StageRun
    record: Record | None = None
    failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of a process that makes this attempt and nothing else."""
        if self.failure:
            return self.failure.exit_code
        objected = objection(self.record) if self.record else None
        return objected.outcome.exit_code if objected else 0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stage, and what an engine adds to it.

    `arguments` returns the step's arguments by name. It is called only when they are needed, and an error in it counts
    as the stage's failure. So does an error in `deliver`, which gets the record before the attempt counts as done.
    """

    stage: Stage
    arguments: Callable[[], Mapping[str, Any]]
    target: str = ""
    cache: ResultCache | None = None
    retry: Retry = once
    listener: Listener | None = None
    deliver: Callable[[Record], None] = lambda _: None

    def recall(self) -> Done | None:
        """The attempt as a cache hit, or as a failed lookup; None if the step has to run."""
        return self._recorded(self._look_up, cached=True)

    def make(self) -> Done:
        """The attempt as a run of the step, whose record is then stored."""
        done = self._recorded(self._run_step)
        assert done is not None  # noqa: S101 - `_run_step` never returns None
        return done

    def _look_up(self, arguments: Mapping[str, Any], name: str) -> Record | None:
        if not (name and self.cache):
            return None
        record: Record | None = self.retry(self.cache.get, name, self.stage.name, self.stage.gives)
        if record is None or self.stage.holds is None or self.retry(self.stage.holds, record, **arguments):
            return record
        return None

    def _run_step(self, arguments: Mapping[str, Any], name: str) -> Record:
        with deadline(self.stage.name, self.stage.at.deadline_s):
            record = self.retry(self.stage.step, **arguments)
        if not isinstance(record, self.stage.gives):
            raise TypeError(f"{self.stage.entry} returned {record!r:.100}, but declares {self.stage.gives.__name__}")
        if name and self.cache and not record.momentary:
            self.retry(self.cache.put, name, self.stage.name, record)
        return record

    def _recorded(
        self, call: Callable[[Mapping[str, Any], str], Record | None], *, cached: bool = False
    ) -> Done | None:
        """Calls with the arguments and their key, and records how it went; None if the call returned None."""
        started_at, started, name = time.time(), time.monotonic(), ""
        record, failure = None, None
        parts = Parts(self.listener)
        with listening(parts) as measured:
            try:
                arguments = self.arguments()
                name = key(self.stage, dict(arguments)) if self.cache and has_key(self.stage) else ""
                record = call(arguments, name)
                if record is None:
                    return None
                self.deliver(record)
                outcome, message = _outcome(record)
            except (Interrupted, Exception) as error:
                explained = self.cache.explain(error) if self.cache and type(error) is NotFound else error
                failure = failure_of(explained)
                outcome, message = failure.outcome, failure.message
        run = StageRun(
            name=self.stage.name,
            target=self.target,
            seconds=round(time.monotonic() - started, 3),
            cached=cached and failure is None,
            outcome=outcome,
            message=message,
            key=name,
            measured_seconds=round(sum(measured), 3),
            started_at=round(started_at, 3),
            parts=parts.ended(),
        )
        return Done(run=run, record=None if failure else record, failure=failure)


def failure_of(error: BaseException) -> Failure:
    """An error as a record. The record has only the message, so the traceback of a bug goes to the log."""
    if isinstance(error, Interrupted):
        return Failure.of(error.error)
    if not isinstance(error, ShipliftError):
        traceback.print_exception(error)
    return Failure.of(error)


def _outcome(record: Record) -> tuple[StageOutcome, str]:
    objected = objection(record)
    return (objected.outcome.stage_outcome, "; ".join(objected.reasons)) if objected else ("ok", record.remark())
