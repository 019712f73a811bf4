"""A cost model fitted on the way: from a few measured configurations to what the others would give.

Ridge regression of the logarithm of throughput, and of p99, on features of which throughput is a product: batch,
instances, threads, how crowded the cores are. Its own leave-one-out error says how far to trust it, and how much more
than the best prediction an unmeasured point could be (an upper confidence bound: Auer, "Using Confidence Bounds for
Exploitation-Exploration Trade-offs", JMLR 3, 2002).
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.space import Point, Space

_RIDGE = 0.1
_OPTIMISM = 1.0
_LEAST = 3


class CostModel:
    """Predictions for the points of a space, given the trials so far."""

    def __init__(self, space: Space, goal: Goal) -> None:
        self._space = space
        self._goal = goal

    def best(self, measured: Iterable[tuple[Point, Trial]], unseen: list[Point]) -> Point | None:
        """The unseen point that promises most; None: too little is known, or all is seen."""
        known = [(point, trial) for point, trial in measured if not trial.error and trial.throughput_per_s > 0]
        if len(known) < _LEAST or not unseen:
            return None
        at = np.array([self._features(point) for point, _ in known])
        there = np.array([self._features(point) for point in unseen])
        rate = np.log([trial.throughput_per_s for _, trial in known])
        promise = _optimistic(at, rate, there)
        if self._goal.price_per_hour is not None:
            promise = promise - np.log([self._goal.share(point.config) for point in unseen])
        if self._goal.p99_ms is not None:
            late = np.log([max(trial.p99_ms, 1e-6) for _, trial in known])
            over = np.maximum(0, -_optimistic(at, -late, there) - math.log(self._goal.p99_ms))
            promise = promise - 5 * over
        return unseen[int(np.argmax(promise))]

    def _features(self, point: Point) -> list[float]:
        config, cores = point.config, self._space.cores
        batch, delay = math.log2(config.max_batch), math.log1p(config.queue_delay_us / 100)
        instances, threads = math.log2(config.instances), math.log2(config.threads)
        crowd = max(0.0, math.log2(config.instances * config.threads / cores))
        kinds = [float(point.package.precision == package.precision) for package in self._space.packages]
        return [batch, batch**2 / 8, delay, instances, threads, crowd, instances * threads, batch * delay / 8, *kinds]


def _optimistic(
    at: NDArray[np.float64], values: NDArray[np.float64], there: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Predictions at `there`, plus their uncertainty."""
    middle, scale = at.mean(axis=0), at.std(axis=0) + 1e-9
    left, right = (at - middle) / scale, (there - middle) / scale
    inverse = np.linalg.inv(left.T @ left + _RIDGE * np.eye(left.shape[1]))
    weights = inverse @ left.T @ (values - values.mean())
    hat = np.einsum("ij,jk,ik->i", left, inverse, left)
    apart = (values - values.mean() - left @ weights) / np.maximum(1 - hat, 0.1)  # leave-one-out residuals
    sigma = float(np.sqrt(np.mean(apart**2)))
    spread = np.sqrt(np.clip(np.einsum("ij,jk,ik->i", right, inverse, right), 0, 1))
    return np.asarray(values.mean() + right @ weights + _OPTIMISM * sigma * spread)
