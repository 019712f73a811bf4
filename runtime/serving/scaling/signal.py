"""The rule: how many replicas the recent arrivals call for. Pure; `queries.py` says the same in PromQL.

    replicas = (level + max(headroom, waiting / drain_s)) / peak_per_s, rounded up

**Level** is the highest of four views of the arrival rate: its mean; its latest value; the forecast for the moment when
a pod that is started now is ready (a line through the last minute: Holt's linear trend, PromQL's `predict_linear`); and
a high quantile of the last minutes, which delays scale-down (the moving-window recommender of Autopilot, EuroSys 2020).
The last three are noisy, so the deviation that chance explains is subtracted from each.

**Headroom** is what keeps queues short. By Kingman's heavy-traffic bound, the spare capacity at which a wait is rarely
longer than the SLO allows does not depend on the load; it grows with the variance of the arrivals. The load test
measured it for Poisson arrivals and one replica; burstier arrivals need more in proportion to their index of dispersion
(variance over mean; 1 for Poisson).

**Waiting** requests are feedback: Triton counts requests when they end, so the rate of an overloaded fleet shows its
capacity. The queue's growth is part of the arrivals (Little's law), and the queue itself should be empty in `drain_s`.

Without fresh, finite samples the number of replicas stays: an empty, stale or NaN metric never scales down.
"""

import math
from collections.abc import Sequence
from statistics import fmean, linear_regression
from typing import Literal, NamedTuple, TypeVar

from pydantic import Field

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capacity import Capacity

T = TypeVar("T")
SECOND_DIFFERENCE = 0.6745 * math.sqrt(6)  # the median of |a - 2b + c| for independent, standard normal a, b and c
Reason = Literal["mean", "recent", "trend", "held", "bounds", "no metrics", "starting"]


class Sample(NamedTuple):
    """The whole service at `at` (s): requests that arrive per second, over the last window, and requests that wait."""

    at: float
    arrivals_per_s: float
    waiting: float


class Scaling(Record):
    """The settings of the rule; times in s. The defaults were tuned on `benchmarks/autoscale.py`'s training seed.

    Rates are over `window_s`, sampled every `step_s`. `ready_in_s` is from a decision to a ready pod: half the HPA's
    sync and the pod's start. `chance`: how many standard deviations of a rate count as chance.
    """

    capacity: Capacity
    minimum: int = Field(1, ge=1)
    maximum: int = Field(20, ge=1)
    step_s: int = 5
    window_s: int = 10
    mean_s: int = 45
    trends_s: tuple[int, ...] = (30, 60)
    ready_in_s: int = 15
    hold_s: int = 30
    hold_quantile: float = 0.8
    spread_s: int = 300
    chance: float = 1.0
    burst: float = 0.4
    drain_s: int = 10

    def trend_chance(self, seconds: int) -> float:
        """The part of a forecast from this many seconds that chance explains, in standard deviations of one rate.

        It is the standard error of a least-squares line's value at `ready_in_s` beyond its last point:
        sqrt(1 / n + ahead^2 / squares), with n points, `ahead` from their middle, and the sum of their squared times.
        """
        squares = seconds**3 / self.step_s / 12
        ahead = seconds / 2 + self.ready_in_s
        return self.chance * math.sqrt(self.step_s / seconds + ahead**2 / squares)


class ScalingDecision(NamedTuple):
    """How many replicas are wanted, and which part of the rule decided."""

    replicas: int
    reason: Reason


def decide(
    samples: Sequence[Sample], now: float, current: int, scaling: Scaling, *, starting: int = 0
) -> ScalingDecision:
    """The replicas wanted, from samples in order of time. `starting` of the `current` replicas are not ready yet."""
    fresh = [s for s in samples if math.isfinite(s.arrivals_per_s) and math.isfinite(s.waiting) and s.at <= now]
    if not fresh or now - fresh[-1].at > 3 * scaling.step_s:
        return ScalingDecision(_bounded(current, scaling, at_least=current), "no metrics")
    demand, reason = _demand(fresh, now, scaling)
    wanted = math.ceil(demand - 1e-9) if demand < scaling.maximum else scaling.maximum
    if starting and wanted < current:  # the metrics don't show starting replicas yet, so don't scale down meanwhile
        return ScalingDecision(_bounded(current, scaling), "starting")
    bounded = _bounded(wanted, scaling)
    return ScalingDecision(bounded, reason if bounded == wanted else "bounds")


def _bounded(wanted: int, scaling: Scaling, at_least: int = 0) -> int:
    return max(at_least, scaling.minimum, min(wanted, scaling.maximum))


def _demand(samples: list[Sample], now: float, scaling: Scaling) -> tuple[float, Reason]:
    """The replicas wanted, not rounded, and which view of the level decided."""
    rates = [sample.arrivals_per_s for sample in samples]
    mean = fmean(_last(rates, scaling.mean_s, scaling))
    spread = max(_spread(_last(rates, scaling.spread_s, scaling), scaling), math.sqrt(mean / scaling.window_s))
    levels: dict[Reason, float] = {
        "mean": mean,
        "recent": rates[-1] - scaling.chance * spread,
        "trend": max(
            _forecast(samples, seconds, now, scaling) - scaling.trend_chance(seconds) * spread
            for seconds in scaling.trends_s
        ),
        "held": quantile(_last(rates, scaling.hold_s, scaling), scaling.hold_quantile) - spread,
    }
    reason = max(levels, key=lambda name: levels[name])
    dispersion = scaling.window_s * spread**2 / max(mean, 1e-9) if mean else 1.0
    headroom = scaling.capacity.headroom_per_s * (1 + scaling.burst * dispersion)
    backlog = samples[-1].waiting / scaling.drain_s
    # Both are spare capacity on top of the level, so the larger one is enough.
    return max(0.0, levels[reason] + max(headroom, backlog)) / scaling.capacity.peak_per_s, reason


def _last(values: Sequence[T], seconds: int, scaling: Scaling) -> Sequence[T]:
    return values[-max(1, seconds // scaling.step_s) :]


def _spread(rates: Sequence[float], scaling: Scaling) -> float:
    """The standard deviation of one rate, from the median of second differences, which neither slopes nor steps move.

    A second difference of independent values has six times their variance.
    """
    lag = max(1, scaling.window_s // scaling.step_s)
    differences = [abs(a - 2 * b + c) for a, b, c in zip(rates, rates[lag:], rates[2 * lag :], strict=False)]
    return quantile(differences, 0.5) / SECOND_DIFFERENCE if differences else 0.0


def _forecast(samples: Sequence[Sample], seconds: int, now: float, scaling: Scaling) -> float:
    """The least-squares line through the last rates, `ready_in_s` from now: PromQL's `predict_linear`."""
    recent = _last(samples, seconds, scaling)
    times = [sample.at for sample in recent]
    rates = [sample.arrivals_per_s for sample in recent]
    if times[0] == times[-1]:
        return rates[-1]
    return linear_regression(times, rates).slope * (now + scaling.ready_in_s - fmean(times)) + fmean(rates)


def quantile(values: Sequence[float], share: float) -> float:
    """The quantile with linear interpolation: PromQL's `quantile_over_time`."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
