"""The objective of a search: throughput, or the price of a million requests, within the budgets."""

import math
from dataclasses import dataclass

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.spec.measurement import LatencyTarget, SearchSpace

SPREAD = 1.25  # executions vary: one may take this many times the mean
_PENALTY = 20.0  # e-folds: any trial within the budgets beats any outside
NOISE = 1.02  # a smaller gain is noise: the simpler, earlier configuration stays


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The objective and budgets of a search. The price buys `cores` cores, or 1 for a GPU, which can't be shared."""

    p99_ms: float | None = None
    memory_mb: float | None = None
    price_per_hour: float | None = None
    cores: int = 1

    def within_budgets(self, p99_ms: float, memory_mb: float) -> bool:
        """Whether a measurement is within the budgets."""
        too_slow = self.p99_ms is not None and not p99_ms <= self.p99_ms
        too_large = self.memory_mb is not None and not memory_mb <= self.memory_mb
        return not too_slow and not too_large

    def cost_per_million(self, trial: Trial) -> float | None:
        """The price of a million requests, for the share of the machine that the configuration can use."""
        if self.price_per_hour is None or trial.throughput_per_s <= 0:
            return None
        return self.price_per_hour * self.share(trial.config) / 3600 / trial.throughput_per_s * 1e6

    def share(self, config: ServingConfig) -> float:
        """The share of the machine that a configuration can use."""
        return min(1.0, config.instances * config.threads / self.cores)

    def absorbs_overload(self, trial: Trial) -> bool:
        """Whether a request that just missed a full batch is still in time with the next one.

        It waits for the current execution, then for its own, which may take `SPREAD` times the mean. If it is in time,
        only the excess is late in an overload; see `lateness.py`.
        """
        return self.p99_ms is None or self.p99_ms >= (1 + SPREAD) * trial.compute_ms

    def beats(self, trial: Trial, other: Trial | None) -> bool:
        """Whether a trial is better by more than noise. A failed trial beats nothing; any other trial beats None."""
        utility = self.utility(trial)
        return math.isfinite(utility) and (other is None or utility > self.utility(other) + math.log(NOISE))

    def utility(self, trial: Trial) -> float:
        """The logarithm of throughput, or of requests per unit of money.

        Outside the budgets it is far lower, and falls with the excess. It is minus infinity for a failed trial.
        """
        if trial.error or trial.throughput_per_s <= 0:
            return -math.inf
        price = self.cost_per_million(trial)
        if trial.within_slo:
            return math.log(trial.throughput_per_s) if price is None else -math.log(max(price, 1e-12))
        excess = max(
            trial.p99_ms / self.p99_ms if self.p99_ms else 0.0,
            trial.memory_mb / self.memory_mb if self.memory_mb else 0.0,
            1e-9,
        )
        return -_PENALTY - math.log(excess)


def goal_of(search_space: SearchSpace, latency_target: LatencyTarget, cores: int) -> Goal:
    """The goal that a spec sets, on a server with this many cores (1 if the price is that of a GPU)."""
    return Goal(
        p99_ms=latency_target.p99_ms,
        memory_mb=search_space.memory_mb,
        price_per_hour=search_space.price_per_hour if search_space.objective == "cost" else None,
        cores=cores,
    )
