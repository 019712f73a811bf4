"""A check: a measured number, with its bounds, against a limit.

A check is inconclusive if its number is missing, unstable, or closer to the limit than its own error.
"""

import math
from dataclasses import dataclass
from typing import Literal

from shiplift.runtime.records.verdict import Check, Outcome

Severity = Literal["block", "warn"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A measured number with its bounds, in words, and what would narrow the bounds."""

    value: float | None
    low: float
    high: float
    text: str
    remedy: str = ""

    @classmethod
    def exact(cls, value: float, text: str) -> "Reading":
        """A number without an error."""
        return cls(value=value, low=value, high=value, text=text)

    @classmethod
    def missing(cls, reason: str) -> "Reading":
        """A number that was not measured."""
        return cls(value=None, low=-math.inf, high=math.inf, text=reason)


def check_limit(
    name: str, reading: Reading, limit: float | None, unit: str, *, upper: bool = True, severity: Severity = "block"
) -> Check:
    """Passes if both bounds are within the limit, fails if both are outside; else inconclusive."""

    def concluded(outcome: Outcome, reason: str) -> Check:
        return check(name, reading.value, limit, unit, outcome, reason, severity)

    if limit is None:
        return concluded(Outcome.PASS, "")
    if reading.value is None or math.isnan(reading.value):
        return concluded(
            Outcome.INCONCLUSIVE, reading.text if reading.value is None else f"{name} could not be measured"
        )
    within = (reading.high <= limit) if upper else (reading.low >= limit)
    outside = (reading.low > limit) if upper else (reading.high < limit)
    if within:
        return concluded(Outcome.PASS, "")
    reason = f"{reading.text}, the limit is {limit:g}"
    return (
        concluded(Outcome.FAIL, reason) if outside else concluded(Outcome.INCONCLUSIVE, f"{reason}: {reading.remedy}")
    )


def fail_if(failed: bool) -> Outcome:
    """The outcome of a check without measurement error."""
    return Outcome.FAIL if failed else Outcome.PASS


def check(
    name: str, measured: float | None, limit: float | None, unit: str, verdict: Outcome, reason: str,
    severity: Severity = "block",
) -> Check:  # fmt: skip
    """A check record; infinite and NaN measurements become None."""
    finite = measured if measured is not None and math.isfinite(measured) else None  # JSON has no infinity
    return Check(name=name, measured=finite, limit=limit, unit=unit, verdict=verdict, reason=reason, severity=severity)
