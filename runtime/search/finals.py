"""Which of the best is best: finalists are measured again for long, in rounds.

The better half goes on to the next round (successive halving: Jamieson and Talwalkar, AISTATS 2016), and the median of
its measurements counts: where others use the machine too, one measurement errs by a tenth, and the best of many coarse
ones is the luckiest.
"""

import math
from collections.abc import Iterable
from statistics import median_low

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.space import Point, Space

FINALISTS = 4
ROUNDS = 4
_CLOSE = math.log(1.25)  # two coarse measurements of the same may differ by this much
_DELAY_IS_WORTH = math.log(1.05)  # waiting for batches must give this much at the least
Measured = tuple[Point, Trial]


def best_of(among: Iterable[Measured], goal: Goal) -> Measured | None:
    """The earliest that no other beats by more than noise; None: all failed."""
    best: Measured | None = None
    for one in among:
        if goal.beats(one[1], best and best[1]):
            best = one
    return best


class Finals:
    """Says whom to measure for long, is told the trials, and names the winner."""

    def __init__(self, space: Space, goal: Goal) -> None:
        self._goal = goal
        self._least_delay_us = min(space.queue_delay_us)
        self._told: dict[tuple[str, ServingConfig], tuple[Point, list[Trial]]] = {}

    def next_round(self, measured: Iterable[Measured]) -> list[Point]:
        """The points of the next round, best first; none: it was the last one, or one point alone is left.

        First those that coarse windows (`measured`) can't tell from the best; one that waits for its batches is held
        against the same one that does not. Then the better half of the round before, two at the least.
        """
        if not self._told:
            return self._first_round(measured)
        left = sorted(self._furthest(), key=lambda one: -self._credit(one))
        if len(left) == 1 or self._rounds() == ROUNDS:
            return []
        return [point for point, _ in left[: max(2, len(left) // 2)]]

    def tell(self, point: Point, trial: Trial) -> None:
        """Takes a long trial in, one more of its point."""
        self._told.setdefault(point.key, (point, []))[1].append(trial)

    def best(self) -> Measured | None:
        """The winner with its middle trial; None: nothing was told, or what came furthest failed.

        Load is at its highest here, where batches form by themselves; at any lower one a request pays the whole queue
        delay. So of those about as good the one that delays least is best.
        """
        left = self._furthest()
        best = best_of(left, self._goal)
        if best is None:
            return None
        least = self._goal.worth(best[1]) - _DELAY_IS_WORTH
        good = [one for one in left if self._goal.worth(one[1]) >= least]
        delay = min(point.config.queue_delay_us for point, _ in good)
        if delay == best[0].config.queue_delay_us:
            return best
        return max((o for o in good if o[0].config.queue_delay_us == delay), key=lambda o: self._goal.worth(o[1]))

    def _first_round(self, measured: Iterable[Measured]) -> list[Point]:
        able = [one for one in measured if math.isfinite(self._goal.worth(one[1]))]
        ranked = sorted(able, key=lambda one: -self._goal.worth(one[1]))[:FINALISTS]
        top = self._goal.worth(ranked[0][1]) if ranked else 0.0
        near = [point for point, trial in ranked if self._goal.worth(trial) >= top - _CLOSE]
        return list({one.key: one for point in near for one in (point, self._without_delay(point))}.values())

    def _furthest(self) -> list[Measured]:
        """Those measured most often, each with its middle trial."""
        rounds = self._rounds()
        return [(point, self._middle(trials)) for point, trials in self._told.values() if len(trials) == rounds]

    def _rounds(self) -> int:
        return max((len(trials) for _, trials in self._told.values()), default=0)

    def _middle(self, trials: list[Trial]) -> Trial:
        worth = median_low(self._goal.worth(trial) for trial in trials)
        return next(trial for trial in trials if self._goal.worth(trial) == worth)

    def _credit(self, one: Measured) -> float:
        point, trial = one
        return self._goal.worth(trial) - _DELAY_IS_WORTH * (point.config.queue_delay_us > self._least_delay_us)

    def _without_delay(self, point: Point) -> Point:
        return Point(point.package, point.config.model_copy(update={"queue_delay_us": self._least_delay_us}))
