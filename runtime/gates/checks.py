"""A check: a measured number, with its bounds, against a limit.

A check is inconclusive if its number is missing, unstable, or closer to the limit than its own error. For scores, this
holds only beyond the limit: see `precision.scoring.estimates` for that rule and its reason.
"""

import math
from dataclasses import dataclass
from typing import Literal

from shiplift.runtime.gates.remedies import CheckKind, remedy
from shiplift.runtime.records.precision import JudgeBy
from shiplift.runtime.records.verdict import Check, Outcome

Severity = Literal["block", "warn"]


@dataclass(frozen=True, kw_only=True)
class CheckReading:
    """A measured number with its bounds, in words, and what would narrow the bounds.

    `judge_by`: what has to be within the limit for a pass, the number alone or both bounds.
    """

    value: float | None
    low: float
    high: float
    text: str
    remedy: str = ""
    judge_by: JudgeBy = "interval"

    @classmethod
    def exact(cls, value: float, text: str) -> "CheckReading":
        """A number that has no error."""
        return cls(value=value, low=value, high=value, text=text)

    @classmethod
    def missing(cls, reason: str) -> "CheckReading":
        """A number that was not measured."""
        return cls(value=None, low=-math.inf, high=math.inf, text=reason)


def check_limit(
    kind: CheckKind,
    name: str,
    reading: CheckReading,
    limit: float | None,
    unit: str,
    *,
    upper: bool = True,
    severity: Severity = "block",
) -> Check:
    """Passes if the number, or both bounds, are within the limit; fails if both are outside; else inconclusive."""
    outcome = Outcome.PASS if limit is None else judged(reading, limit, upper=upper)
    reason = ""
    if reading.value is None or math.isnan(reading.value):
        reason = reading.text if reading.value is None else f"{name} could not be measured"
    elif limit is not None:
        reason = f"{reading.text}, the limit is {limit:g}"
        reason += f": {reading.remedy}" if outcome is Outcome.INCONCLUSIVE else ""
    reason = "" if outcome is Outcome.PASS else reason
    return check(kind, name, reading.value, limit, unit, outcome, reason, severity, bounds=(reading.low, reading.high))


def judged(reading: CheckReading, limit: float, *, upper: bool) -> Outcome:
    """The outcome of a number against a limit."""
    if reading.value is None or math.isnan(reading.value):
        return Outcome.INCONCLUSIVE
    sign = 1 if upper else -1
    worst, best = (reading.high, reading.low) if upper else (reading.low, reading.high)
    counted = reading.value if reading.judge_by == "score" else worst
    if sign * counted <= sign * limit:
        return Outcome.PASS
    return Outcome.FAIL if sign * best > sign * limit else Outcome.INCONCLUSIVE


def fail_if(failed: bool) -> Outcome:
    """The outcome of a check without measurement error."""
    return Outcome.FAIL if failed else Outcome.PASS


def check(  # noqa: PLR0913 - a record has that many fields
    kind: CheckKind,
    name: str,
    measured: float | None,
    limit: float | None,
    unit: str,
    verdict: Outcome,
    reason: str,
    severity: Severity = "block",
    *,
    bounds: tuple[float | None, float | None] = (None, None),
) -> Check:
    """A check record. Infinite and NaN measurements become None, and so do bounds that equal the measurement."""
    low, high = (None, None) if bounds == (measured, measured) else map(_finite, bounds)
    return Check(
        name=name,
        measured=_finite(measured),
        limit=limit,
        low=low,
        high=high,
        unit=unit,
        verdict=verdict,
        reason=reason,
        do=remedy(kind, verdict),
        severity=severity,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None  # JSON has no infinity
