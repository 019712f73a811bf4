"""What a measured configuration is worth: throughput, or the price of a million requests, within the budgets."""

import math
from dataclasses import dataclass

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.spec.measurement import LatencyTarget, SearchSpace

_OUTSIDE = 20.0  # e-folds: any point within the budgets is worth more than any outside
_NOISE = 1.02  # what is better by less is not better: the simpler, earlier configuration stays


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The objective and the budgets of a search; `cores` is what the price is of, 1 where it can't be shared."""

    p99_ms: float | None = None
    memory_mb: float | None = None
    price_per_hour: float | None = None
    cores: int = 1

    def keeps(self, p99_ms: float, memory_mb: float) -> bool:
        """Whether a measurement is within the budgets."""
        late = self.p99_ms is not None and not p99_ms <= self.p99_ms
        large = self.memory_mb is not None and not memory_mb <= self.memory_mb
        return not late and not large

    def per_million(self, trial: Trial) -> float | None:
        """The price of a million requests, for the share of the machine that the configuration can use."""
        if self.price_per_hour is None or trial.throughput_per_s <= 0:
            return None
        return self.price_per_hour * self.share(trial.config) / 3600 / trial.throughput_per_s * 1e6

    def share(self, config: ServingConfig) -> float:
        """The share of the machine that a configuration can use."""
        return min(1.0, config.instances * config.threads / self.cores)

    def beats(self, trial: Trial, other: Trial | None) -> bool:
        """Whether a trial is better by more than noise; a failed one beats none, and any other one beats None."""
        worth = self.worth(trial)
        return math.isfinite(worth) and (other is None or worth > self.worth(other) + math.log(_NOISE))

    def worth(self, trial: Trial) -> float:
        """A number that grows by 1 with every e-fold of throughput (or of requests for the same money).

        Far lower outside the budgets, where less over them is better. Minus infinity for a failed trial.
        """
        if trial.error or trial.throughput_per_s <= 0:
            return -math.inf
        price = self.per_million(trial)
        if trial.within_slo:
            return math.log(trial.throughput_per_s) if price is None else -math.log(max(price, 1e-12))
        over = max(
            trial.p99_ms / self.p99_ms if self.p99_ms else 0.0,
            trial.memory_mb / self.memory_mb if self.memory_mb else 0.0,
            1e-9,
        )
        return -_OUTSIDE - math.log(over)


def goal_of(search_space: SearchSpace, latency_target: LatencyTarget, cores: int) -> Goal:
    """The goal of a spec on a server of so many cores; 1: the price is that of a GPU, which is nobody else's."""
    return Goal(
        p99_ms=latency_target.p99_ms,
        memory_mb=search_space.memory_mb,
        price_per_hour=search_space.price_per_hour if search_space.objective == "cost" else None,
        cores=cores,
    )
