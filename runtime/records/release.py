"""How a release went: its events, stages, ending and report."""

import re
import shlex
from collections import defaultdict
from typing import Literal, Self

from pydantic import Field

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.text import printable
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.deployment import Endpoint, which_targets_serve
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.proof import Form, guarded_by, served_by
from shiplift.runtime.records.verdict import Check, Outcome, Verdict

_MESSAGE_CHARACTERS = 500
_NAME = re.compile(r"\bMODEL(/VERSION|/CHAMPION|)\b")
StageOutcome = Literal[
    "ok", "refused", "inconclusive", "failed", "cancelled", "aborted", "waiting", "rejected", "skipped", "running"
]

ReleaseOutcome = Literal[
    "promoted",
    "refused",
    "inconclusive",
    "not admitted",
    "waiting for approval",
    "rejected",
    "aborted",
    "cancelled",
    "failed",
]
_OF_PEOPLE = ("waiting for approval", "rejected", "aborted", "cancelled")


class Event(Record):
    """One thing that an engine reports while it works; `done` is the fraction finished, from 0 to 1."""

    stage: str
    target: str = ""
    kind: Literal["started", "progress", "finished"]
    message: str = ""
    done: float | None = None
    seconds: float = 0.0
    cached: bool = False
    outcome: str = ""

    @classmethod
    def finished(cls, run: "StageRun") -> Self:
        """The event that a stage has ended."""
        return cls(
            stage=run.name,
            target=run.target,
            kind="finished",
            message=run.message,
            seconds=run.seconds,
            cached=run.cached,
            outcome=run.outcome,
        )


class StagePart(Record):
    """What a stage worked on for a while: what it said, how long after its start (seconds), and for how long.

    `times` counts what was said in a row and differs only in its numbers, such as the trials of a search.
    """

    name: str
    after_s: float
    seconds: float
    times: int = 1


class StageRun(Record):
    """How one stage of a release went.

    `started_at` is in seconds since the epoch (0: unknown, as in reports of an earlier Shiplift). `parts` are in order.
    """

    name: str
    target: str = ""
    seconds: float = 0.0
    cached: bool = False
    outcome: StageOutcome = "ok"
    message: str = ""
    key: str = ""
    measured_seconds: float = 0.0
    started_at: float = 0.0
    parts: tuple[StagePart, ...] = ()


class StageRuns(Record):
    """How the stages of one pod have gone so far, in order; the stage in progress (empty: none), and its target."""

    runs: tuple[StageRun, ...] = ()
    under_way: str = ""
    target: str = ""


class Taken(Record):
    """A stage's inputs, as JSON by the names of its parameters, for whatever has to run it without its pod."""

    texts: dict[str, str]


class Ending(Record):
    """How a pipeline ended: its stages, the verdict if one was reached, the error if one was raised.

    `givers` names the stage that gives each record, by the record's name as a parameter.
    """

    release: str
    started_at: float
    stages: tuple[StageRun, ...]
    givers: dict[str, str]
    verdict: Verdict | None = None
    failure: Failure | None = None
    log: str = ""


class ReleaseReport(Record):
    """A finished release, for people and programs. The first seven fields are the public JSON form.

    `serving_target` is the target that was deployed and judged first (empty: none was), `serving_beside` the targets
    deployed and judged with it. `not_served` are the others, and `left_out` says why, by target. `forms` are those in
    which the model was tried to be served, with why some were dropped. `proof_seconds` is the part of `seconds` in
    which the original and what is served were asked; a cached stage asked nothing. `retired` says who took the version
    out of service since, and why. `requested_at` is when `since_request_seconds` begins, in seconds since the epoch.
    """

    model: str
    version: int
    verdict: Outcome
    alias: str
    endpoint: Endpoint | None
    stages: tuple[StageRun, ...]
    checks: tuple[Check, ...]
    release: str
    reason: str
    exit_code: int
    failure: Failure | None = None
    seconds: float
    since_request_seconds: float
    requested_at: float = 0.0
    overhead_seconds: float
    report: str = ""
    trigger: str = ""
    commit: str = ""
    serving_target: str = ""
    serving_beside: tuple[str, ...] = ()
    not_served: tuple[str, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    forms: tuple[Form, ...] = ()
    proof_seconds: float = 0.0
    retired: str = ""

    @property
    def targets_note(self) -> str:
        """Which of several targets serve, for people; empty if all do."""
        serving = (self.serving_target, *self.serving_beside) if self.serving_target else ()
        return which_targets_serve(serving, self.not_served, self.left_out)

    @property
    def served_by(self) -> str:
        """In which form the model is served, for people; empty if that is the first one."""
        return served_by(self.forms)

    @property
    def guarded_by(self) -> str:
        """Which values it takes, for people; empty if nothing is refused in front of it."""
        return guarded_by(self.forms)

    @property
    def outcome(self) -> ReleaseOutcome:
        """The outcome in a word or two, for people."""
        if self.alias:
            return "promoted"
        if self.failure:
            admitted = self.failure.exit_code != NotAdmitted.exit_code
            outcome = self.failure.outcome
            return "not admitted" if not admitted else "waiting for approval" if outcome == "waiting" else outcome
        judged = self.verdict.stage_outcome
        return "inconclusive" if judged == "ok" else judged

    @property
    def message(self) -> str:
        """Why it was not promoted, in one line for a list of releases; empty if it was."""
        cause = " ".join(self.reason.split())
        return "" if self.alias else printable(f"{self.outcome}: {cause}", limit=_MESSAGE_CHARACTERS)

    @property
    def what_to_do(self) -> tuple[str, ...]:
        """What to do about the checks that keep it from production, with this version in commands, each thing once.

        A failure's own advice is in `failure`, and at the end of the reason.
        """
        about: dict[str, list[str]] = defaultdict(list)
        for check in self.checks if not self.alias and not self.failure else ():
            if check.do and check.severity == "block":
                about[check.do].append(check.name)
        return tuple(f"{', '.join(names)}: {self._in_commands(do)}" for do, names in about.items())

    def _in_commands(self, do: str) -> str:
        versions = {"/VERSION": f"/{self.version}"}
        return _NAME.sub(lambda found: shlex.quote(self.model + versions.get(found[1], found[1])), do)

    @property
    def heading(self) -> str:
        """The verdict in capitals; a release that a person ended, or that waits for one, has none."""
        return (self.outcome if self.outcome in _OF_PEOPLE else str(self.verdict)).upper()
