"""Decides which point to measure next: starting points, then rules, then a cost model and TPE in turn.

Optuna's tree-structured Parzen estimators (TPE: Bergstra et al., NeurIPS 2011) look near good points; the cost model
looks where the arithmetic of throughput points. Both learn from every measurement. These measurements are short; the
finals (`runtime.search.finals`) decide which of the best is best.
"""

import math
from collections.abc import Iterable
from typing import Any

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.search.cost_model import CostModel
from shiplift.runtime.search.expectations import Expectations
from shiplift.runtime.search.finals import FINALISTS, Finals, best_of
from shiplift.runtime.search.goal import NOISE, Goal
from shiplift.runtime.search.space import Point, Space

_TPE_ATTEMPTS = 4
_WARM_STARTS = 3
PATIENCE = 10  # measurements without an improvement
_MIN_GAIN, _MIN_MEASURED = math.log(NOISE), 6  # a smaller expected gain ends the search, after so many points
_CLEARLY = 1.05  # times as fast: less is noise of the calibration, or of what its graphs are not
_MAX_SHARE, _MIN_POINTS = 0.1, 24  # at most this share of the space is measured, but always up to this many points


class Search:
    """Asks for points and takes their trials, without knowing any server; deterministic in the trials it gets."""

    def __init__(
        self,
        space: Space,
        goal: Goal,
        *,
        warm_start: Iterable[tuple[str, ServingConfig]] = (),
        expectations: Expectations | None = None,
    ) -> None:
        """`warm_start`: the best variants and configurations of earlier versions, to be measured early.

        `expectations` of the machine say where each package begins, which is first, and which is not tried: it is held
        back until no other is left.
        """
        self.space = space
        self.goal = goal
        self.trials: list[Trial] = []
        self._model = CostModel(space, goal)
        self._measured: dict[tuple[str, ServingConfig], tuple[Point, Trial]] = {}
        self._dropped: set[str] = set()
        self._expectations = expectations
        self._finals = Finals(space, goal)
        self._warm_start = list(warm_start)[:_WARM_STARTS]
        self._held_back = self._hopeless()
        self._starts = self._starting_points()
        self._rule_points: tuple[Point, ...] | None = None
        self._study = _study()
        self._turn = 0
        self._since_improvement = 0
        share = int(_MAX_SHARE * len(tuple(space.points())))
        self._max_points = max(_MIN_POINTS, share) - FINALISTS
        self._patience = max(PATIENCE, share * 2 // 3)  # in a larger space, noise hides improvements for longer

    # --- asking ---

    def ask(self) -> Point | None:
        """The next point for a short measurement; None if improvements have stopped or are not expected."""
        first = next((point for point in self._starts if point.key not in self._measured), None)
        first = first or next((point for point in self._rules() if point.key not in self._measured), None)
        if first:
            return first
        if self._since_improvement >= self._patience or len(self._measured) >= self._max_points:
            return None
        unmeasured = [point for point in self.space.points() if point.key not in self._measured and self._tries(point)]
        if not unmeasured or self._little_to_gain(unmeasured):
            return None
        self._turn += 1
        proposed = self._model.propose(self._measured.values(), unmeasured) if self._turn % 3 else None
        return proposed or self._by_tpe() or unmeasured[0]

    def finalists(self) -> list[Point]:
        """The points to measure in long windows in the next round of the finals, best first; empty if they are over."""
        return self._finals.next_round(self._measured.values())

    def short_trial(self, point: Point) -> Trial | None:
        """The short trial of a point; None if it has none."""
        measured = self._measured.get(point.key)
        return measured and measured[1]

    def should_prune(self, trial: Trial) -> bool:
        """Whether to give up on a trial that is over its limits: lower concurrency won't raise its throughput."""
        best = self._best()
        return best is not None and best[1].within_slo and trial.throughput_per_s < best[1].throughput_per_s

    # --- telling ---

    def tell(self, point: Point, trial: Trial) -> None:
        """Records a short trial."""
        previous = self._best()
        self.trials.append(trial)
        self._measured[point.key] = (point, trial)
        better = self.goal.beats(trial, previous and previous[1])
        self._since_improvement = 0 if better else self._since_improvement + 1
        self._teach(point, trial)

    def tell_final(self, point: Point, trial: Trial) -> None:
        """Records another long trial of a finalist."""
        self.trials.append(trial)
        self._finals.tell(point, trial)

    def best(self) -> tuple[Package, Trial]:
        """The best package and its trial: among the finalists of the latest round, or else among all points.

        Raises:
            MeasurementFailed: every trial failed.
        """
        best = self._finals.best() or self._best()
        if best is None:
            last = self.trials[-1].error if self.trials else "nothing was tried"
            raise MeasurementFailed(f"no serving configuration could be measured: {last}", do="See the release's log.")
        point, trial = best
        return point.package, trial

    def drop(self, package: Package) -> None:
        """Leaves a package out, whose answers are wrong: it is no longer the best."""
        self._dropped.add(package.variant)
        self._finals.drop(package)
        self._measured = {key: each for key, each in self._measured.items() if key[0] not in self._dropped}

    @property
    def measured(self) -> bool:
        """Whether anything that was not dropped could be measured."""
        return self._best() is not None

    def unmeasured(self) -> Point | None:
        """The first package that is neither measured nor dropped, as packaged; None if there is none."""
        tried = {variant for variant, _ in self._measured} | self._dropped
        return next((Point(each, each.config) for each in self.space.packages if each.variant not in tried), None)

    def untried(self) -> tuple[str, ...]:
        """Why packages were not tried, a sentence for each."""
        tried = {trial.variant for trial in self.trials}
        return tuple(why for variant, why in self._held_back.items() if variant not in tried)

    def peak_mb(self, package: Package, config: ServingConfig) -> float:
        """The most memory that a server used in a trial of a package with a configuration."""
        own = [trial for trial in self.trials if (trial.variant, trial.config) == (package.variant, config)]
        return max((trial.memory_mb for trial in own), default=0.0)

    def best_trials(self, count: int) -> tuple[Trial, ...]:
        """The best `count` trials, in the order in which they were measured."""
        order = sorted(range(len(self.trials)), key=lambda index: -self.goal.utility(self.trials[index]))
        return tuple(self.trials[index] for index in sorted(order[:count]))

    def _little_to_gain(self, unmeasured: list[Point]) -> bool:
        """Whether no unmeasured point is expected to be better by as much as another measurement is worth."""
        best = self._best()
        if best is None or not best[1].within_slo or len(self._measured) < _MIN_MEASURED:
            return False
        gain = self._model.expected_gain(self._measured.values(), unmeasured, best)
        return gain is not None and gain < _MIN_GAIN

    def _best(self) -> tuple[Point, Trial] | None:
        return best_of(self._measured.values(), self.goal)

    # --- where to begin ---

    def _starting_points(self) -> list[Point]:
        """Each package on all cores, and the warm start.

        However short the search, it compares packages as they would serve, and no core is idle for want of time.
        Under a limit on latency, executions on several threads are more likely to be in time than several instances.
        With expectations of the machine, the package that it computes fastest is first, each where it is fastest.
        """
        filled = [self._first_of(package) for package in self.space.packages if package.variant not in self._held_back]
        filled.sort(key=lambda point: -(self._expected(point) or 0.0))
        by_variant = {package.variant: package for package in self.space.packages}
        earlier = [Point(by_variant[v], config) for v, config in self._warm_start if v in by_variant]
        valid = [point for point in earlier if self.space.indices(point) is not None]
        return list({point.key: point for point in (*filled, *valid)}.values())

    def _hopeless(self) -> dict[str, str]:
        """The variants that the machine's calibration rules out, each with the reason.

        None where memory has a budget, which they may be for; nor one that was best for an earlier version.
        """
        if self._expectations is None or self.goal.memory_mb is not None:
            return {}
        proved = {variant for variant, _ in self._warm_start}
        found = self._expectations.hopeless(self.space.packages)
        return {variant: why for variant, why in found.items() if variant not in proved}

    def _first_of(self, package: Package) -> Point:
        """Where a package begins: on all cores as it was packaged or, where that is clearly faster, as is expected.

        A limit on latency is not expected to be kept in larger batches or on more instances: it begins as usual, on the
        cores that compute at full speed all the time.
        """
        filling = self.space.filling
        if self.goal.p99_ms is not None:
            return self._placed(package, self.space.steadily_filling[-1])
        usual = self._placed(package, filling[0])
        if self._expectations is None:
            return usual
        sizes = range(len(self.space.max_batch))
        every = [self.space.point(self.space.packages.index(package), at, 0, to) for to in filling for at in sizes]
        best = usual
        for point in every:
            if (self._expected(point) or 0.0) > _CLEARLY * (self._expected(best) or math.inf):
                best = point
        return best

    def _expected(self, point: Point) -> float | None:
        """The rows per second that the machine's calibration lets expect of a point; None without one."""
        if self._expectations is None:
            return None
        return self._expectations.rows_per_s(point.package, point.config, self.space.packages)

    def _tries(self, point: Point) -> bool:
        return point.package.variant not in self._held_back

    def _placed(self, package: Package, placement: int) -> Point:
        instances, threads = self.space.placements[placement]
        return Point(package, package.config.model_copy(update={"instances": instances, "threads": threads}))

    def _rules(self) -> tuple[Point, ...]:
        """The two ways to fill a machine with full batches, many instances or one on all cores; and as packaged.

        These use the best engine and precision so far, the first with each set of buckets. Another engine may be the
        one for full batches, so its best package gets them, too. As packaged is where Triton's documentation says to
        start: it takes the least memory, and leaves cores to others.
        """
        if self._rule_points is None:
            space, best = self.space, self._best()
            package = space.packages.index(best[0].package) if best else 0
            ends = tuple(dict.fromkeys((space.filling[0], space.filling[-1])))
            largest = len(space.max_batch) - 1
            sets = range(1, len(space.buckets))
            chosen = space.packages[package]
            self._rule_points = (
                *(space.point(package, largest, 0, index) for index in ends),
                *(space.point(other, largest, 0, ends[0]) for other in self._best_of_other_engines(chosen)),
                *(space.point(package, largest, 0, index, at) for index in ends[:1] for at in sets),
                Point(chosen, chosen.config),
            )
        return self._rule_points

    def _best_of_other_engines(self, chosen: Package) -> list[int]:
        """The index of the best package so far of each engine that is not the chosen package's."""
        engines = dict.fromkeys(package.engine for package in self.space.packages if package.engine != chosen.engine)
        measured = [each for each in self._measured.values() if each[0].package.engine in engines]
        best = [
            best_of([each for each in measured if each[0].package.engine == engine], self.goal) for engine in engines
        ]
        return [self.space.packages.index(each[0].package) for each in best if each is not None]

    # --- Optuna ---

    def _by_tpe(self) -> Point | None:
        for _ in range(_TPE_ATTEMPTS):
            trial = self._study.ask(self._distributions())
            point = self.space.point(**trial.params)
            self._study.tell(trial, state=_state("FAIL"))  # only a placeholder: `_teach` adds the measurement
            if point.key not in self._measured and self._tries(point):
                return point
        return None

    def _distributions(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution, IntDistribution  # noqa: PLC0415 - see `_study`

        unordered = {"package", "placement", "buckets"}
        return {
            name: CategoricalDistribution(tuple(axis)) if name in unordered else IntDistribution(0, len(axis) - 1)
            for name, axis in self.space.axes.items()
        }

    def _teach(self, point: Point, trial: Trial) -> None:
        from optuna.trial import create_trial  # noqa: PLC0415 - see `_study`

        indices, utility = self.space.indices(point), self.goal.utility(trial)
        if indices is None or not math.isfinite(utility):
            return
        self._study.add_trial(create_trial(params=indices, distributions=self._distributions(), value=utility))


def _study() -> Any:
    import optuna  # noqa: PLC0415 - importing it takes 0.4 s, and only a search needs it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=4, multivariate=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _state(name: str) -> Any:
    from optuna.trial import TrialState  # noqa: PLC0415

    return getattr(TrialState, name)
