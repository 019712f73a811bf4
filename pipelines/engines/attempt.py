"""One attempt at a stage, the same on every engine: its record is found or made, and what came of it is recorded.

An engine decides where a stage runs, when, and how often. Whether it is a cache hit, how long it may take, how it is
interrupted, and what its `StageRun` and its `Failure` say is decided here, so that a release leaves the same records
whichever engine ran it.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shiplift.pipelines.engines.cache_key import key
from shiplift.pipelines.engines.interruption import Interrupted, deadline, shielded
from shiplift.pipelines.graph import Stage
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.progress import Listener, listening
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import StageOutcome, StageRun

T = TypeVar("T")


class Kept(Protocol):
    """Where finished stages are kept: `runtime.store.ledger.Ledger`, or a stand-in for a pure test."""

    def get(self, key: str, stage: str, kind: Any) -> Any:
        """The record kept under a key, or None."""

    def put(self, key: str, stage: str, record: Record) -> None:
        """Keeps a record."""


class Retry(Protocol):
    """Calls a function, perhaps several times: `tenacity.Retrying` is one."""

    def __call__(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
        """What the function returned in the end."""


def once(function: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    """The `Retry` of a pod, which its engine starts again."""
    return function(*arguments, **named)


@dataclass(frozen=True, kw_only=True)
class Done:
    """What came of an attempt: how it went, and the stage's record or else why there is none."""

    ran: StageRun
    record: Record | None = None
    failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        """What a process exits with that made this attempt and nothing else."""
        if self.failure:
            return self.failure.exit_code
        objection = self.record.objection() if self.record else None
        return objection.outcome.exit_code if objection else 0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stage, and what an engine adds to it.

    `arguments` gives what the step takes, by name; it is called when they are needed, and may fail like the step.
    `deliver` takes the record before the attempt counts as done: what fails in it is the stage's failure.
    """

    stage: Stage
    arguments: Callable[[], Mapping[str, Any]]
    target: str = ""
    kept: Kept | None = None
    retry: Retry = once
    listener: Listener | None = None
    deliver: Callable[[Record], None] = lambda _: None

    def run(self) -> Done:
        """Finds the record or makes it. An effect is always made: whether a later stage will use it is not known."""
        return (self.recall() if self.stage.at.keep == "result" else None) or self.make()

    def recall(self) -> Done | None:
        """The attempt as a cache hit, or one that failed in looking; None where the stage has to run."""
        return self._recorded(self._kept, cached=True)

    def make(self) -> Done:
        """The attempt as a run of the step, whose record is then kept."""
        done = self._recorded(self._made)
        assert done is not None  # noqa: S101 - a step gives a record
        return done

    def _kept(self, _arguments: Mapping[str, Any], name: str) -> Record | None:
        if not (name and self.kept):
            return None
        record: Record | None = self.retry(self.kept.get, name, self.stage.name, self.stage.gives)
        return record

    def _made(self, arguments: Mapping[str, Any], name: str) -> Record:
        with (
            shielded() if self.stage.at.shielded else nullcontext(),
            deadline(self.stage.name, self.stage.at.deadline_s),
        ):
            record = self.retry(self.stage.step, **arguments)
        if not isinstance(record, self.stage.gives):
            raise TypeError(f"{self.stage.entry} gave {record!r:.100}, not the {self.stage.gives.__name__} it promises")
        if name and self.kept:
            self.retry(self.kept.put, name, self.stage.name, record)
        return record

    def _recorded(
        self, call: Callable[[Mapping[str, Any], str], Record | None], *, cached: bool = False
    ) -> Done | None:
        """Calls with the arguments and their key, and records what came of it; None where that was nothing."""
        started, name = time.monotonic(), ""
        record, failure = None, None
        with listening(self.listener) as measured:
            try:
                arguments = self.arguments()
                name = key(self.stage, dict(arguments)) if self.kept and self.stage.at.keep != "never" else ""
                record = call(arguments, name)
                if record is None:
                    return None
                self.deliver(record)
                outcome, message = _told(record)
            except (Interrupted, Exception) as error:
                failure = failure_of(error)
                outcome, message = failure.outcome, failure.message
        ran = StageRun(
            name=self.stage.name, target=self.target, seconds=round(time.monotonic() - started, 3),
            cached=cached and failure is None, outcome=outcome, message=message, key=name,
            measured_seconds=round(sum(measured), 3),
        )  # fmt: skip
        return Done(ran=ran, record=None if failure else record, failure=failure)


def failure_of(error: BaseException) -> Failure:
    """An error as it is recorded. A bug's traceback goes to the log, since the record says only what it was."""
    if isinstance(error, Interrupted):
        return Failure.of(error.error)
    if not isinstance(error, ShipliftError):
        traceback.print_exception(error)
    return Failure.of(error)


def _told(record: Record) -> tuple[StageOutcome, str]:
    objection = record.objection()
    return (objection.outcome.stage_outcome, "; ".join(objection.reasons)) if objection else ("ok", record.remark())
