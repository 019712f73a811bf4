"""Champion and challenger in turn: noise first, then rounds until the limits are decided or the time is spent.

The order alternates (A B, B A: "ABBA"), so that a drift of the machine falls on both. The champion is first measured
against itself: what differs then is noise, and says how small a difference can be seen at all. How often the rounds
will be looked at is fixed before the first of them, since a test that stops when it likes its result errs more often
than it says.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from shiplift.runtime.base.progress import progress
from shiplift.runtime.gates import comparison
from shiplift.runtime.records.measurement import Comparison, LoadPoint
from shiplift.runtime.spec.measurement import ComparisonTarget

Measure = Callable[[], LoadPoint]
_NOISE_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """At least `rounds` rounds, and more of them until `target` is decided or `budget_s` is over."""

    rounds: int
    budget_s: float
    target: ComparisonTarget


def compare(champion: Measure, challenger: Measure, version: int, concurrency: int, plan: Plan) -> Comparison:
    """The challenger over the champion (of `version`), both called again and again.

    Raises:
        MeasurementFailed: a measurement did.
    """
    started = time.monotonic()
    noise = [_pair(champion, champion, at, f"champion {version} with itself") for at in range(_NOISE_ROUNDS)]
    round_s = (time.monotonic() - started) / _NOISE_ROUNDS
    looks = looks_within(plan, round_s)
    made: list[tuple[LoadPoint, LoadPoint]] = []
    for look in range(looks):
        while len(made) < plan.rounds * 2**look:
            made.append(_pair(champion, challenger, len(made), f"with champion {version}"))
        found = _comparison(version, concurrency, noise, made, looks)
        if comparison.decided(found, plan.target) or time.monotonic() - started > plan.budget_s:
            break
    return found


def looks_within(plan: Plan, round_s: float) -> int:
    """How many looks the budget allows, where each is at twice the rounds of the one before; at least one."""
    affordable = plan.budget_s / round_s if round_s > 0 else 0.0
    return 1 + max(0, int(math.log2(max(affordable / plan.rounds, 1))))


def _pair(left: Measure, right: Measure, at: int, what: str) -> tuple[LoadPoint, LoadPoint]:
    progress(f"comparing {what}, round {at + 1}")
    if at % 2:
        second, first = right(), left()
        return first, second
    return left(), right()


def _comparison(
    version: int, concurrency: int, noise: list[tuple[LoadPoint, LoadPoint]],
    made: list[tuple[LoadPoint, LoadPoint]], looks: int,
) -> Comparison:  # fmt: skip
    return Comparison(
        version=version,
        concurrency=concurrency,
        throughput_ratios=tuple(mine.throughput_per_s / theirs.throughput_per_s for theirs, mine in made),
        p99_ratios=tuple(mine.p99_ms / theirs.p99_ms if theirs.p99_ms else math.nan for theirs, mine in made),
        noise_throughput_ratios=tuple(two.throughput_per_s / one.throughput_per_s for one, two in noise),
        noise_p99_ratios=tuple(two.p99_ms / one.p99_ms if one.p99_ms else math.nan for one, two in noise),
        looks=looks,
    )
