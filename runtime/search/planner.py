"""Which point to measure next: rules first, then what was good before, then a cost model and TPE in turn.

Tree-structured Parzen estimators (Bergstra et al., NeurIPS 2011), by Optuna, look where good points have been; the cost
model looks where throughput's own arithmetic points. All measurements, whoever asked for them, teach both. They are
coarse; which of the best is best, the finals say (`runtime.search.finals`).
"""

import math
from collections.abc import Iterable
from typing import Any

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import Package, ServingConfig
from shiplift.runtime.search.cost_model import CostModel
from shiplift.runtime.search.finals import FINALISTS, Finals, best_of
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.space import Point, Space

_ASKS = 4
_REMEMBERED = 3
PATIENCE = 10
_SHARE, _ENOUGH = 0.1, 24  # of a large space, and how many measurements are never too many


class Search:
    """Asks for points and is told trials; knows nothing of servers. The same answers give the same questions."""

    def __init__(self, space: Space, goal: Goal, *, remembered: Iterable[tuple[str, ServingConfig]] = ()) -> None:
        self.space = space
        self.goal = goal
        self.trials: list[Trial] = []
        self._model = CostModel(space, goal)
        self._measured: dict[tuple[str, ServingConfig], tuple[Point, Trial]] = {}
        self._finals = Finals(space, goal)
        self._remembered = list(remembered)[:_REMEMBERED]
        self._starts = self._starting_points()
        self._ruled: tuple[Point, ...] | None = None
        self._study = _study()
        self._turn = 0
        self._since_better = 0
        tenth = int(_SHARE * len(tuple(space.points())))
        self._most = max(_ENOUGH, tenth) - FINALISTS
        self._patience = max(PATIENCE, tenth * 2 // 3)  # where there is more to find, noise hides more of it

    # --- asking ---

    def ask(self) -> Point | None:
        """The next point for a coarse measurement; None: nothing better turned up, or enough of them were measured."""
        first = next((point for point in self._starts if point.key not in self._measured), None)
        first = first or next((point for point in self._rules() if point.key not in self._measured), None)
        if first:
            return first
        if self._since_better >= self._patience or len(self._measured) >= self._most:
            return None
        unseen = [point for point in self.space.points() if point.key not in self._measured]
        if not unseen:
            return None
        self._turn += 1
        asked = self._model.best(self._measured.values(), unseen) if self._turn % 3 else None
        return asked or self._by_tpe() or unseen[0]

    def finalists(self) -> list[Point]:
        """What to measure for long in the next round of the finals, best first; none: they are over."""
        return self._finals.next_round(self._measured.values())

    def hopeless(self, trial: Trial) -> bool:
        """Whether a trial over its limits can be cut short: a lower concurrency gives no more throughput than this."""
        best = self._best()
        return best is not None and best[1].within_slo and trial.throughput_per_s < best[1].throughput_per_s

    # --- telling ---

    def tell(self, point: Point, trial: Trial) -> None:
        """Takes a coarse trial in."""
        before = self._best()
        self.trials.append(trial)
        self._measured[point.key] = (point, trial)
        better = self.goal.beats(trial, before and before[1])
        self._since_better = 0 if better else self._since_better + 1
        self._teach(point, trial)

    def tell_final(self, point: Point, trial: Trial) -> None:
        """Takes a long trial of a finalist in, one more of it."""
        self.trials.append(trial)
        self._finals.tell(point, trial)

    def best(self) -> tuple[Package, Trial]:
        """The best package and trial: of the finalists that were measured most often, else of all.

        Raises:
            MeasurementFailed: every trial failed.
        """
        found = self._finals.best() or self._best()
        if found is None:
            last = self.trials[-1].error if self.trials else "nothing was tried"
            raise MeasurementFailed(f"no serving configuration could be measured: {last}", do="See the release's log.")
        return found[0].package, found[1]

    def best_trials(self, count: int) -> tuple[Trial, ...]:
        """The best `count` trials, in the order they were made."""
        order = sorted(range(len(self.trials)), key=lambda at: -self.goal.worth(self.trials[at]))
        return tuple(self.trials[at] for at in sorted(order[:count]))

    def _best(self) -> tuple[Point, Trial] | None:
        return best_of(self._measured.values(), self.goal)

    # --- where to begin ---

    def _starting_points(self) -> list[Point]:
        """Each package as packaged (as Triton's documentation says to begin), and what was best before."""
        given = [Point(package, package.config) for package in self.space.packages]
        by_precision = {package.precision: package for package in self.space.packages}
        known = [Point(by_precision[p], config) for p, config in self._remembered if p in by_precision]
        kept = [one for one in known if self.space.indices(one) is not None]
        return list({one.key: one for one in (*given, *kept)}.values())

    def _rules(self) -> tuple[Point, ...]:
        """The two ways to fill a machine: a full batch on as many instances as cores, or on one with as many threads;

        of the precision that was better by then.
        """
        if self._ruled is None:
            space, best = self.space, self._best()
            package = space.packages.index(best[0].package) if best else 0
            full = min(space.cores, max(i * t for i, t in space.placements))
            filling = [at for at, (i, t) in enumerate(space.placements) if i * t == full and 1 in (i, t)]
            most_instances_first = sorted(filling, key=lambda at: -space.placements[at][0])[:2]
            largest = len(space.max_batch) - 1
            self._ruled = tuple(space.point(package, largest, 0, at) for at in most_instances_first)
        return self._ruled

    # --- Optuna ---

    def _by_tpe(self) -> Point | None:
        for _ in range(_ASKS):
            trial = self._study.ask(self._distributions())
            point = self.space.point(**trial.params)
            seen = self._measured.get(point.key)
            self._study.tell(trial, state=_state("FAIL"))  # what is measured is taught by `_teach`, seen or not
            if seen is None:
                return point
        return None

    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, IntDistribution  # noqa: PLC0415 - see `_study`

        unordered = {"package", "placement"}
        return {
            name: CategoricalDistribution(tuple(axis)) if name in unordered else IntDistribution(0, len(axis) - 1)
            for name, axis in self.space.axes.items()
        }

    def _teach(self, point: Point, trial: Trial) -> None:
        from optuna.trial import create_trial  # noqa: PLC0415 - see `_study`

        at, worth = self.space.indices(point), self.goal.worth(trial)
        if at is None or not math.isfinite(worth):
            return
        self._study.add_trial(create_trial(params=at, distributions=self._distributions(), value=worth))


def _study() -> Any:
    import optuna  # noqa: PLC0415 - 0.4 s, where a search is made

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=4, multivariate=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _state(name: str) -> Any:
    from optuna.trial import TrialState  # noqa: PLC0415

    return getattr(TrialState, name)
