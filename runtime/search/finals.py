"""Finds the best of the best: finalists are measured again in long windows, in rounds.

The better half advances to the next round (successive halving: Jamieson and Talwalkar, AISTATS 2016), and a finalist's
score is the median of its measurements; of those that nothing disturbed, if there are any. On a shared machine a single
measurement is off by a tenth, so the best of many short ones is merely the luckiest.
"""

import math
from collections.abc import Iterable
from statistics import median_low

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import WINDOWS, Trial
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.knee import knee
from shiplift.runtime.search.space import Point, Space

FINALISTS = 4
ROUNDS = 4
_CLOSE = math.log(1.25)  # two short measurements of one point may differ by this much, whatever their windows say
_CLOSEST = math.log(1.10)  # on a quiet machine, by this much: load drifts slower than the windows of a run can show
_CERTAIN = 3.0  # standard errors
_MIN_DELAY_GAIN = math.log(1.05)  # a queue delay must gain at least this much
Measured = tuple[Point, Trial]


def best_of(candidates: Iterable[Measured], goal: Goal) -> Measured | None:
    """The earliest candidate that no other beats by more than noise; None if all failed."""
    best: Measured | None = None
    for candidate in candidates:
        if goal.beats(candidate[1], best and best[1]):
            best = candidate
    return best


class Finals:
    """Asks for long measurements of the finalists, takes their trials, and picks the winner."""

    def __init__(self, space: Space, goal: Goal) -> None:
        self._goal = goal
        self._least_delay_us = min(space.queue_delay_us)
        self._trials: dict[tuple[str, ServingConfig], tuple[Point, list[Trial]]] = {}

    def next_round(self, measured: Iterable[Measured]) -> list[Point]:
        """The points of the next round, best first; empty after the last round, or if only one point is left.

        The first round has the points that short windows (`measured`) can't distinguish from the best; each point with
        a queue delay is joined by the same point without one. Later rounds have the better half of the one before, at
        least two, without those whose windows say that they are not the best: if the best is certain, the finals end.
        """
        if not self._trials:
            return self._first_round(measured)
        ranked = sorted(self._remaining(), key=lambda candidate: -self._adjusted_utility(candidate))
        if self._rounds() == ROUNDS:
            return []
        better_half = ranked[: max(2, len(ranked) // 2)]
        left = [each for each in better_half if self._may_win(each, ranked[0])]
        return [point for point, _ in left] if len(left) > 1 else []

    def tell(self, point: Point, trial: Trial) -> None:
        """Records another long trial of a point."""
        self._trials.setdefault(point.key, (point, []))[1].append(trial)

    def drop(self, package: Package) -> None:
        """Forgets the points of a package."""
        self._trials = {key: each for key, each in self._trials.items() if key[0] != package.variant}

    def best(self) -> Measured | None:
        """The winner with its median trial; None if there were no finals, or every remaining finalist failed.

        The load is at its peak here, where batches form without waiting; at any lower load each request pays the whole
        queue delay. So among finalists that are about equal, the one with the shortest delay wins, and among those, one
        whose executions are short enough for an overload, if there is one. Without a limit on latency, the knee of
        what is left wins.
        """
        remaining = self._remaining()
        best = best_of(remaining, self._goal)
        if best is None:
            return None
        least = self._utility(best) - _MIN_DELAY_GAIN
        close = [candidate for candidate in remaining if self._utility(candidate) >= least]
        delay = min(point.config.queue_delay_us for point, _ in close)
        shortest = [candidate for candidate in close if candidate[0].config.queue_delay_us == delay]
        fit = [candidate for candidate in shortest if self._goal.absorbs_overload(candidate[1])] or shortest
        first = best if best in fit else max(fit, key=self._utility)
        if self._goal.p99_ms is not None:
            return first
        ordered = [first, *(candidate for candidate in fit if candidate is not first)]
        return ordered[knee([trial for _, trial in ordered], self._goal)]

    def _first_round(self, measured: Iterable[Measured]) -> list[Point]:
        succeeded = [candidate for candidate in measured if math.isfinite(self._utility(candidate))]
        every = sorted(succeeded, key=lambda candidate: -self._utility(candidate))
        ranked = every[:FINALISTS]
        if self._goal.p99_ms is None and ranked:
            at = knee([trial for _, trial in every], self._goal)
            ranked = ranked if at < FINALISTS else [*ranked[:-1], every[at]]
        top = self._utility(ranked[0]) if ranked else 0.0
        close = [each[0] for each in ranked if self._utility(each) >= top - _noise(each[1], ranked[0][1])]
        finalists = [finalist for point in close for finalist in (point, self._without_delay(point))]
        return list({finalist.key: finalist for finalist in finalists}.values())

    def _may_win(self, candidate: Measured, leader: Measured) -> bool:
        """Whether a finalist may be better than the leader, as far as their long windows can tell."""
        if not (candidate[1].spread_percent and leader[1].spread_percent):
            return True
        behind = self._adjusted_utility(leader) - self._adjusted_utility(candidate)
        return behind <= _noise(candidate[1], leader[1])

    def _remaining(self) -> list[Measured]:
        """The finalists of the latest round, each with its median trial."""
        rounds = self._rounds()
        return [(point, self._median(trials)) for point, trials in self._trials.values() if len(trials) == rounds]

    def _rounds(self) -> int:
        return max((len(trials) for _, trials in self._trials.values()), default=0)

    def _median(self, trials: list[Trial]) -> Trial:
        quiet = [trial for trial in trials if not trial.disturbed_cores] or trials
        median = median_low(self._goal.utility(trial) for trial in quiet)
        return next(trial for trial in quiet if self._goal.utility(trial) == median)

    def _utility(self, candidate: Measured) -> float:
        return self._goal.utility(candidate[1])

    def _adjusted_utility(self, candidate: Measured) -> float:
        delayed = candidate[0].config.queue_delay_us > self._least_delay_us
        return self._utility(candidate) - _MIN_DELAY_GAIN * delayed

    def _without_delay(self, point: Point) -> Point:
        return Point(point.package, point.config.model_copy(update={"queue_delay_us": self._least_delay_us}))


def _noise(trial: Trial, other: Trial) -> float:
    """By how many e-folds two measurements of one point may differ, if their windows disagree as those of these do."""
    if not (trial.spread_percent and other.spread_percent):
        return _CLOSE
    errors = (each.spread_percent / 100 / math.sqrt(WINDOWS) for each in (trial, other))
    return min(_CLOSE, max(_CLOSEST, _CERTAIN * math.hypot(*errors)))
