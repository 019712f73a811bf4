"""The challenger's speed against the champion's: how much worse it is, and whether more rounds would decide."""

import math
from collections.abc import Iterator

from shiplift.runtime.gates.checks import CheckReading, check_limit
from shiplift.runtime.gates.remedies import CheckKind
from shiplift.runtime.gates.statistics import Interval, ratio_interval, rounds_to_decide, smallest_difference
from shiplift.runtime.records.measurement import Comparison
from shiplift.runtime.records.verdict import Check, Outcome
from shiplift.runtime.spec.measurement import ComparisonTarget


def speed_checks(comparison: Comparison, target: ComparisonTarget) -> Iterator[Check]:
    """Checks p99 and throughput against the champion's; a pass needs the whole interval within the limit."""
    for kind, side, limit in (
        (CheckKind.LATENCY_WORSE, "p99", target.p99_percent),
        (CheckKind.THROUGHPUT_WORSE, "throughput", target.throughput_percent),
    ):
        reading = worse_reading(comparison, side, limit, target)
        yield check_limit(kind, f"{side} against the champion", reading, limit, "% worse")


def interval_of(comparison: Comparison, side: str, confidence_percent: float) -> Interval:
    """The interval of the ratio challenger / champion for `p99` or `throughput`."""
    ratios = comparison.p99_ratios if side == "p99" else comparison.throughput_ratios
    return ratio_interval(ratios, confidence=confidence_percent / 100, looks=comparison.looks)


def decided(comparison: Comparison, target: ComparisonTarget) -> bool:
    """Whether every speed check passes or fails, so that no more rounds are needed."""
    return all(check.verdict is not Outcome.INCONCLUSIVE for check in speed_checks(comparison, target))


def _bound(side: str, limit_percent: float) -> float:
    """The limit as a ratio: the champion's p99 plus `limit_percent`, or its throughput less that much."""
    return 1 + limit_percent / 100 if side == "p99" else 1 - limit_percent / 100


def worse_reading(comparison: Comparison, side: str, limit: float, target: ComparisonTarget) -> CheckReading:
    """How much worse p99 or throughput is than the champion's, in percent; negative if better."""
    interval = interval_of(comparison, side, target.confidence_percent)
    sign = 1 if side == "p99" else -1
    low, high = sorted((sign * (interval.low - 1) * 100, sign * (interval.high - 1) * 100))
    value = sign * (interval.estimate - 1) * 100
    if math.isnan(value):
        return CheckReading.missing("its rounds yielded no ratio")
    return CheckReading(
        value=value,
        low=low,
        high=high,
        text=f"{value:.1f} % worse ({low:.1f} to {high:.1f} %)",
        remedy=_remedy(comparison, side, limit, target),
    )


def _remedy(comparison: Comparison, side: str, limit: float, target: ComparisonTarget) -> str:
    """What would decide an inconclusive comparison."""
    ratios = comparison.p99_ratios if side == "p99" else comparison.throughput_ratios
    options = {"confidence": target.confidence_percent / 100, "looks": comparison.looks}
    bound = _bound(side, limit)
    needed = rounds_to_decide(ratios, bound, **options) if bound > 0 else None  # type: ignore[arg-type]
    visible = smallest_difference(ratios, **options)  # type: ignore[arg-type]
    power = f"show differences of {visible:.0f} % and more" if math.isfinite(visible) else "show nothing"
    rounds = f"{len(ratios)} rounds {power}"
    if needed is None:
        return (
            f"{rounds}; it is too close to the limit for any number of rounds: use a quieter machine, or another limit"
        )
    more = max(1, needed - len(ratios))
    return f"{rounds}; about {more} more would decide it (`load.comparison_rounds`, `load.comparison_budget_s`)"
