"""Verdicts: checks, the evidence behind them, and the resulting outcome."""

from abc import abstractmethod
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field

from shiplift.runtime.base.errors import Inconclusive, Refused
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.precision import JpegScore, Slice, TaskMetricName
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.shadowing import Shadowed


class Judged(Record):
    """A record with a verdict, which ends the pipeline if it is not a pass."""

    @abstractmethod
    def objection(self) -> "Verdict | None":
        """The verdict that ends the pipeline here; None if it is a pass."""


def objection(record: Record) -> "Verdict | None":
    """The verdict that ends the pipeline after a record; None if the record has none, or a pass."""
    return record.objection() if isinstance(record, Judged) else None


class Packages(Judged):
    """One package per precision that can pass; `checks` are the quality gates, judged early to stop hopeless models.

    `notes` say why kept precisions are not packaged, and what packages lack of what the spec asks for.
    """

    target: str
    packages: tuple[Package, ...]
    checks: tuple["Check", ...] = volatile()
    notes: tuple[str, ...] = volatile(())

    def remark(self) -> str:
        """Which precisions can't pass, and what the packages lack."""
        return "; ".join(self.notes)

    def objection(self) -> "Verdict | None":
        """A failed or undecided quality check ends the release before anything is measured."""
        return Verdict.of(self.checks).objection()


class Outcome(StrEnum):
    """The three outcomes of a gate. An undecided one is never a pass."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """The exit code of a process that ends with this outcome."""
        return {Outcome.PASS: 0, Outcome.FAIL: Refused.exit_code, Outcome.INCONCLUSIVE: Inconclusive.exit_code}[self]

    @property
    def stage_outcome(self) -> Literal["ok", "refused", "inconclusive"]:
        """The outcome of a stage that ends with this verdict."""
        outcomes: dict[Outcome, Literal["ok", "refused", "inconclusive"]] = {
            Outcome.PASS: "ok",
            Outcome.FAIL: "refused",
            Outcome.INCONCLUSIVE: "inconclusive",
        }
        return outcomes[self]


class Check(Record):
    """One gate: what was measured, against which limit. `reason` explains the outcome to the model's author.

    `do` is the next thing to do if it is not a pass, with `MODEL/VERSION` for the version (empty: reports of an earlier
    Shiplift).

    `low` and `high` bound the measurement if it has an error. A check of severity `warn` is reported but does not
    decide.
    """

    name: str
    measured: float | None
    limit: float | None
    low: float | None = None
    high: float | None = None
    unit: str
    verdict: Outcome
    reason: str = ""
    do: str = volatile("")
    severity: Literal["block", "warn"] = "block"

    @property
    def interval(self) -> bool:
        """Whether the measurement has an error."""
        return self.low is not None or self.high is not None


class Scored(Record):
    """A version's scores: the task metric, overall, per resample and per slice, and the samples it was scored on.

    `constant_score` is that of `Candidates`. `proof` is what its server was asked; None for kinds of models whose
    exports keep no questions.
    """

    version: int
    target: str
    score: float | None = None
    resamples: tuple[float, ...] = ()
    samples: int = 0
    metric: TaskMetricName | None = None
    validation: str = ""
    slices: tuple[Slice, ...] = ()
    jpegs: tuple[JpegScore, ...] = ()
    constant_score: float = 1.0
    proof: ServedProof | None = None


class GateEvidence(Record):
    """Everything behind a verdict, stored with it so that it can be judged again under another policy.

    `others` are the scores of the targets that serve with the challenger's. `not_served` are the release's remaining
    targets, which were not measured under load; `left_out` says why, by target. `quarantined` is as in `Champion`.
    `shadow` is None if there was none.
    """

    parity: tuple[ParityCase, ...]
    challenger: Scored
    champion: Scored | None = None
    load_report: LoadReport | None = None
    others: tuple[Scored, ...] = ()
    not_served: tuple[str, ...] = ()
    left_out: dict[str, str] = Field(default_factory=dict)
    quarantined: str = ""
    shadow: Shadowed | None = None


class Verdict(Judged):
    """The verdict of all gates: the worst one decides. `evidence` is what they judged; only the last gate stores it.

    `left_out` are the targets that did not pass, if the spec says to serve the others.
    """

    outcome: Outcome
    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()
    evidence: GateEvidence | None = volatile(None)

    @classmethod
    def of(cls, checks: tuple[Check, ...]) -> Self:
        """A failed check outweighs an undecided one, which outweighs a pass. Warnings don't count."""
        outcomes = {check.verdict for check in checks if check.severity == "block"}
        worst = next((o for o in (Outcome.FAIL, Outcome.INCONCLUSIVE) if o in outcomes), Outcome.PASS)
        return cls(outcome=worst, checks=checks)

    def objection(self) -> "Verdict | None":
        """This verdict, unless it is a pass."""
        return None if self.outcome is Outcome.PASS else self

    def require_pass(self) -> None:
        """The last check before traffic moves.

        Raises:
            Refused, Inconclusive: this is not a pass.
        """
        if self.outcome is Outcome.FAIL:
            raise Refused("; ".join(self.reasons), do="See the report for every check.")
        if self.outcome is Outcome.INCONCLUSIVE:
            raise Inconclusive("; ".join(self.reasons), do="See the report for what would decide it.")

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not a pass, one sentence per check."""
        failing = (c for c in self.checks if c.verdict is not Outcome.PASS and c.severity == "block")
        return tuple(f"{check.name}: {check.reason}" for check in failing)
