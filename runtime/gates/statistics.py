"""Statistics of a few noisy rounds: a ratio's interval, the smallest visible difference, the rounds needed to decide.

Ratios are compared by their logarithms, so that twice and half are equally far from one. Rounds are few, and bootstrap
intervals of few values are too narrow (Hesterberg, "What Teachers Should Know About the Bootstrap", The American
Statistician 69(4), 2015), so an interval here is never narrower than Student's t interval.
"""

import math
from collections.abc import Sequence

import numpy as np

from shiplift.runtime.records.base import Record

_RESAMPLES = 2000
_POWER = 0.8  # Cohen's convention: a difference is visible if four tests in five would find it
_MAX_ROUNDS = 1000


class Interval(Record):
    """A ratio and its two-sided interval. With too few rounds, `low` is 0 and `high` infinite."""

    estimate: float
    low: float
    high: float
    confidence: float
    rounds: int

    @property
    def half_width_percent(self) -> float:
        """The distance of the farther bound from the estimate, in percent of the estimate."""
        return max(self.high / self.estimate - 1, 1 - self.low / self.estimate) * 100 if self.estimate else math.inf


def student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t distribution."""
    from scipy.special import stdtrit  # noqa: PLC0415 - takes 0.1 s, only where a comparison is judged

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def shared(confidence: float, looks: int) -> float:
    """The confidence that each of several looks at growing data needs, to keep `confidence` over all of them together.

    This is Bonferroni's correction. A test that is repeated until it succeeds errs more often than its level says
    (Armitage, McPherson and Rowe, 1969).
    """
    return 1 - (1 - confidence) / max(1, looks)


def ratio_interval(ratios: Sequence[float], *, confidence: float = 0.95, looks: int = 1, seed: int = 0) -> Interval:
    """The geometric mean of paired ratios, with the wider of a bootstrap interval and Student's.

    The bootstrap resamples rounds and takes percentiles (Efron and Tibshirani, "An Introduction to the Bootstrap",
    1993, chapter 13). It resamples rounds rather than requests, because the requests of one round share the machine's
    state (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013).
    """
    level = shared(confidence, looks)
    logs = _logs(ratios)
    if logs is None:
        estimate = math.nan if len(ratios) else 1.0
        return Interval(estimate=estimate, low=0.0, high=math.inf, confidence=confidence, rounds=len(ratios))
    mean = float(logs.mean())
    if len(logs) < 2:
        return Interval(estimate=math.exp(mean), low=0.0, high=math.inf, confidence=confidence, rounds=len(logs))
    half = student(level, len(logs) - 1) * _error(logs)
    resamples = np.random.default_rng(seed).choice(logs, size=(_RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(
        estimate=math.exp(mean),
        low=_exp(min(mean - half, float(low))),
        high=_exp(max(mean + half, float(high))),
        confidence=confidence,
        rounds=len(logs),
    )


def smallest_difference(ratios: Sequence[float], *, confidence: float = 0.95, looks: int = 1) -> float:
    """The smallest change, in percent, that this many rounds with this noise would show four times out of five.

    Infinite for fewer than 2 rounds. See Cohen, "Statistical Power Analysis", 1988, chapter 2.
    """
    logs = _logs(ratios)
    if logs is None or len(logs) < 2:
        return math.inf
    freedom = len(logs) - 1
    # `student` is two-sided, and power has one side: its quantile is the two-sided one of 2 * power - 1.
    quantiles = student(shared(confidence, looks), freedom) + student(2 * _POWER - 1, freedom)
    return (_exp(quantiles * _error(logs)) - 1) * 100


def rounds_to_decide(ratios: Sequence[float], limit: float, *, confidence: float = 0.95, looks: int = 1) -> int | None:
    """The total number of rounds that would put the interval on one side of `limit`, if the rest are like these.

    None if that is more than a thousand, or if there are too few rounds to tell.
    """
    logs = _logs(ratios)
    if logs is None or len(logs) < 2 or limit <= 0:
        return None
    distance, spread = abs(float(logs.mean()) - math.log(limit)), float(logs.std(ddof=1))
    level = shared(confidence, looks)
    low, high = 2, _MAX_ROUNDS
    if student(level, high - 1) * spread / math.sqrt(high) >= distance:
        return None
    while low < high:
        middle = (low + high) // 2
        enough = student(level, middle - 1) * spread / math.sqrt(middle) < distance
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def _logs(ratios: Sequence[float]) -> "np.ndarray[tuple[int], np.dtype[np.float64]] | None":
    values = np.asarray(ratios, dtype=np.float64)
    return np.log(values) if len(values) and bool(np.isfinite(values).all() and (values > 0).all()) else None


def _error(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    return float(logs.std(ddof=1)) / math.sqrt(len(logs))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
