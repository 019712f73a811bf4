"""Compares champion and challenger in alternation: noise first, then rounds until the limits are decided or time is up.

The order alternates (A B, B A: "ABBA"), so that drift of the machine affects both alike. The champion is first measured
against itself: any difference is noise, which limits how small a difference can be detected. The number of interim
looks is fixed before the first round, because a test that may stop as soon as it likes its result has a higher error
rate than it claims.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from shiplift.runtime.base.progress import progress
from shiplift.runtime.gates import comparison
from shiplift.runtime.measure.requests import batch_problem
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Comparison, LoadPoint
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.spec.measurement import ComparisonTarget, Load

Measure = Callable[[], LoadPoint]
_NOISE_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """How long to compare: at least `rounds` rounds, then more until `target` is decided or `budget_s` is spent."""

    rounds: int
    budget_s: float
    target: ComparisonTarget


def incomparable(champion: Champion, challenger: Package, load: Load) -> str:
    """Why a champion can't be compared with a challenger under the same requests; empty if it can."""
    if champion.package is not None and champion.package.signature.streamed != challenger.signature.streamed:
        return f"one of version {champion.version} and this one streams its answers: their requests differ"
    if champion.package is not None:
        return batch_problem(champion.package, load)
    if not champion.version:
        return "there is no champion to compare with"
    return f"version {champion.version} was not promoted by Shiplift, so there is nothing to compare with"


def compare(champion: Measure, challenger: Measure, version: int, concurrency: int, plan: ComparisonPlan) -> Comparison:
    """Compares the challenger with the champion (of `version`) by calling both repeatedly.

    Raises:
        MeasurementFailed: a measurement failed.
    """
    started = time.monotonic()
    noise = [_pair(champion, champion, index, f"champion {version} with itself") for index in range(_NOISE_ROUNDS)]
    round_s = (time.monotonic() - started) / _NOISE_ROUNDS
    looks = looks_within(plan, round_s)
    pairs: list[tuple[LoadPoint, LoadPoint]] = []
    for look in range(looks):
        while len(pairs) < plan.rounds * 2**look:
            pairs.append(_pair(champion, challenger, len(pairs), f"with champion {version}"))
        result = _comparison(version, concurrency, noise, pairs, looks)
        if comparison.decided(result, plan.target) or time.monotonic() - started > plan.budget_s:
            break
    return result


def looks_within(plan: ComparisonPlan, round_s: float) -> int:
    """How many looks the budget allows, at least one; each look needs twice the rounds of the one before."""
    affordable = plan.budget_s / round_s if round_s > 0 else 0.0
    return 1 + max(0, int(math.log2(max(affordable / plan.rounds, 1))))


def _pair(left: Measure, right: Measure, index: int, pairing: str) -> tuple[LoadPoint, LoadPoint]:
    progress(f"comparing {pairing}, round {index + 1}")
    if index % 2:
        second, first = right(), left()
        return first, second
    return left(), right()


def _comparison(
    version: int,
    concurrency: int,
    noise: list[tuple[LoadPoint, LoadPoint]],
    pairs: list[tuple[LoadPoint, LoadPoint]],
    looks: int,
) -> Comparison:
    return Comparison(
        version=version,
        concurrency=concurrency,
        throughput_ratios=tuple(map(_throughput_ratio, pairs)),
        p99_ratios=tuple(map(_p99_ratio, pairs)),
        noise_throughput_ratios=tuple(map(_throughput_ratio, noise)),
        noise_p99_ratios=tuple(map(_p99_ratio, noise)),
        looks=looks,
    )


def _throughput_ratio(pair: tuple[LoadPoint, LoadPoint]) -> float:
    base, other = pair
    return other.throughput_per_s / base.throughput_per_s


def _p99_ratio(pair: tuple[LoadPoint, LoadPoint]) -> float:
    base, other = pair
    return other.p99_ms / base.p99_ms if base.p99_ms else math.nan
