"""A check: a measured number against its limit, with the bounds between which the number is sure to lie.

A check is inconclusive where its number is missing, unstable, or closer to the limit than its own error.
"""

import math
from dataclasses import dataclass
from typing import Literal

from shiplift.runtime.records.verdict import Check, Outcome

Severity = Literal["block", "warn"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A measured number, between which bounds it is sure to lie, and what would make it surer."""

    value: float | None
    low: float
    high: float
    said: str
    more: str = ""

    @classmethod
    def exact(cls, value: float, said: str) -> "Reading":
        """A number taken at its word."""
        return cls(value=value, low=value, high=value, said=said)

    @classmethod
    def missing(cls, why: str) -> "Reading":
        """A number that is not there."""
        return cls(value=None, low=-math.inf, high=math.inf, said=why)


def check_limit(
    name: str, reading: Reading, limit: float | None, unit: str, *, upper: bool = True, severity: Severity = "block"
) -> Check:
    """A pass lies within the limit with all its bounds, a failure outside with all of them."""

    def given(outcome: Outcome, reason: str) -> Check:
        return check(name, reading.value, limit, unit, outcome, reason, severity)

    if limit is None:
        return given(Outcome.PASS, "")
    if reading.value is None or math.isnan(reading.value):
        return given(Outcome.INCONCLUSIVE, reading.said if reading.value is None else f"{name} could not be measured")
    within = (reading.high <= limit) if upper else (reading.low >= limit)
    outside = (reading.low > limit) if upper else (reading.high < limit)
    if within:
        return given(Outcome.PASS, "")
    said = f"{reading.said}, the limit is {limit:g}"
    return given(Outcome.FAIL, said) if outside else given(Outcome.INCONCLUSIVE, f"{said}: {reading.more}")


def fail_if(failed: bool) -> Outcome:
    """The outcome of what is known for sure."""
    return Outcome.FAIL if failed else Outcome.PASS


def check(
    name: str, measured: float | None, limit: float | None, unit: str, verdict: Outcome, reason: str,
    severity: Severity = "block",
) -> Check:  # fmt: skip
    """A check with its outcome."""
    finite = measured if measured is not None and math.isfinite(measured) else None  # JSON knows no infinity
    return Check(name=name, measured=finite, limit=limit, unit=unit, verdict=verdict, reason=reason, severity=severity)
