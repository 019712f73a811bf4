"""A cost model fitted during the search: predicts unmeasured configurations from a few measured ones.

It is a ridge regression of log throughput, and of log p99, on features whose effects multiply: batch, instances,
threads, oversubscription of the cores. Its leave-one-out error says how far to trust it. Points are ranked by an upper
confidence bound, so that uncertain ones are explored too (Auer, "Using Confidence Bounds for Exploitation-Exploration
Trade-offs", JMLR 3, 2002).
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.space import Point, Space

_RIDGE = 0.1
_OPTIMISM = 1.0  # standard errors added to a prediction
_MIN_TRIALS = 3
_LATENCY_PENALTY = 5


class CostModel:
    """Predicts the points of a space from the trials so far."""

    def __init__(self, space: Space, goal: Goal) -> None:
        self._space = space
        self._goal = goal

    def propose(self, measured: Iterable[tuple[Point, Trial]], unmeasured: list[Point]) -> Point | None:
        """The most promising unmeasured point; None if there are too few trials, or nothing is left to measure."""
        if (predicted := self._predicted(measured, unmeasured)) is None:
            return None
        mean, error, _ = predicted
        return unmeasured[int(np.argmax(mean + _OPTIMISM * error))]

    def expected_gain(
        self, measured: Iterable[tuple[Point, Trial]], unmeasured: list[Point], best: tuple[Point, Trial]
    ) -> float | None:
        """How many e-folds the most promising unmeasured point is expected to be better than `best`; 0 if none is left.

        That is the expected improvement of Bayesian optimization (Jones, Schonlau and Welch, "Efficient Global
        Optimization of Expensive Black-Box Functions", 1998). None if there are too few trials to predict it.
        """
        if not unmeasured:
            return 0.0
        if (predicted := self._predicted(measured, unmeasured)) is None:
            return None
        mean, error, misfit = predicted
        error = np.maximum(np.hypot(error, misfit), 1e-9)
        gain = mean - (math.log(best[1].throughput_per_s) - self._price(best[0]))
        below = np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in gain / error])
        density = np.exp(-((gain / error) ** 2) / 2) / math.sqrt(2 * math.pi)
        return float(np.max(gain * below + error * density))

    def _price(self, point: Point) -> float:
        """The logarithm of the share of the machine that a point costs; 0 if nobody asked for the price."""
        return 0.0 if self._goal.price_per_hour is None else math.log(self._goal.share(point.config))

    def _predicted(
        self, measured: Iterable[tuple[Point, Trial]], unmeasured: list[Point]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
        """The utility of each unmeasured point, its standard error, and how far single points are off the model.

        A point over the limit on latency has a penalty.
        """
        known = [(point, trial) for point, trial in measured if not trial.error and trial.throughput_per_s > 0]
        if len(known) < _MIN_TRIALS or not unmeasured:
            return None
        train = np.array([self._features(point) for point, _ in known])
        query = np.array([self._features(point) for point in unmeasured])
        mean, error, misfit = _fit(train, np.log([trial.throughput_per_s for _, trial in known]), query)
        mean = mean - np.array([self._price(point) for point in unmeasured])
        if self._goal.p99_ms is not None:
            latencies = np.log([max(trial.p99_ms, 1e-6) for _, trial in known])
            latency, latency_error, _ = _fit(train, latencies, query)
            excess = np.maximum(0, latency - _OPTIMISM * latency_error - math.log(self._goal.p99_ms))
            mean = mean - _LATENCY_PENALTY * excess
        return mean, error, misfit

    def _features(self, point: Point) -> list[float]:
        config, cores = point.config, self._space.cores
        batch, delay = math.log2(config.max_batch), math.log1p(config.queue_delay_us / 100)
        instances, threads = math.log2(config.instances), math.log2(config.threads)
        oversubscription = max(0.0, math.log2(config.instances * config.threads / cores))
        one_hot = [float(point.package.variant == package.variant) for package in self._space.packages]
        one_hot += [float(config.buckets == buckets) for buckets in self._space.buckets[1:]]
        products = [instances * threads, batch * delay / 8]
        return [batch, batch**2 / 8, delay, instances, threads, oversubscription, *products, *one_hot]


def _fit(
    train: NDArray[np.float64], values: NDArray[np.float64], query: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """The predictions at `query`, their standard errors, and the leave-one-out error; rows are points."""
    mean, scale = train.mean(axis=0), train.std(axis=0) + 1e-9
    train, query = (train - mean) / scale, (query - mean) / scale
    inverse = np.linalg.inv(train.T @ train + _RIDGE * np.eye(train.shape[1]))
    weights = inverse @ train.T @ (values - values.mean())
    leverage = np.einsum("ij,jk,ik->i", train, inverse, train)
    # A linear model's leave-one-out residual is its residual over 1 - leverage (Allen's PRESS, Technometrics 16, 1974).
    residuals = (values - values.mean() - train @ weights) / np.maximum(1 - leverage, 0.1)
    sigma = float(np.sqrt(np.mean(residuals**2)))
    uncertainty = np.sqrt(np.clip(np.einsum("ij,jk,ik->i", query, inverse, query), 0, 1))
    return np.asarray(values.mean() + query @ weights), np.asarray(sigma * uncertainty), sigma
