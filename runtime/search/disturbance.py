"""Trials that other processes disturbed: noticed, waited out and repeated, as long as there is time for it.

A release shares its machine with whatever its owner runs there. A configuration that was measured while a backup used a
core seems to be half as fast, and a worse one is promoted.
"""

import time
from collections.abc import Callable

from shiplift.runtime.records.measurement import Trial

SHARE = 0.2  # of the time budget may go into waiting and repeating
_LEAST_CORES, _LEAST_SHARE = 0.2, 0.05  # others that use less than both do no harm
_SAMPLE_S, _MOST_S = 0.25, 5.0


def harmful(used_cores: float, cores: int) -> float:
    """The cores that others used of so many; 0 if they did no harm."""
    return round(used_cores, 2) if used_cores > max(_LEAST_CORES, _LEAST_SHARE * cores) else 0.0


class Others:
    """What other processes use of a bench's cores; `others_s` is `runtime.search.bench.Bench.others_s`."""

    def __init__(
        self,
        others_s: Callable[[], float | None],
        cores: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._others_s = others_s
        self._cores = cores
        self._clock, self._sleep = clock, sleep

    def during(self, measure: Callable[[], Trial]) -> Trial:
        """The trial with the cores that others used during it; 0 if they did no harm, or if that is unknown."""
        started, before = self._clock(), self._others_s()
        trial = measure()
        return trial.model_copy(update={"disturbed_cores": self._used(started, before)})

    def undisturbed(self, measure: Callable[[], Trial], budget_s: float) -> tuple[Trial, float]:
        """The trial, and the seconds spent on repeating it.

        If others disturbed it, it is repeated once they are quiet, or after five seconds; the less disturbed one
        counts. If that would take more than `budget_s`, it stays as it is.
        """
        started = self._clock()
        first = self.during(measure)
        once_s = self._clock() - started
        if not first.disturbed_cores or first.error or once_s > budget_s:
            return first, 0.0
        started = self._clock()
        self._wait(min(_MOST_S, budget_s - once_s))
        again = self.during(measure)
        return min(
            (again, first), key=lambda trial: (bool(trial.error), trial.disturbed_cores)
        ), self._clock() - started

    def _wait(self, most_s: float) -> None:
        deadline = self._clock() + most_s
        while self._clock() + _SAMPLE_S <= deadline:
            started, before = self._clock(), self._others_s()
            self._sleep(_SAMPLE_S)
            if not self._used(started, before):
                return

    def _used(self, started: float, before: float | None) -> float:
        after, elapsed = self._others_s(), self._clock() - started
        if before is None or after is None or elapsed <= 0:
            return 0.0
        return harmful((after - before) / elapsed, self._cores)
