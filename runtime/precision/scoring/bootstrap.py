"""Resamples of a validation set, and the interval of a score that follows from them.

This is the bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993): samples are drawn with
replacement, and the spread of the resamples' scores estimates the error of the score. The draws depend only on the
number of samples, so two models that are scored on the same samples are resampled alike, and the differences of their
resamples are paired.

Resamples of a large set are smaller than the set, and their deviations are scaled by the root of the ratio of sizes
(Politis, Romano and Wolf, "Subsampling", 1999). This bounds the time and memory that they take.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = tuple[NDArray[Any], ...]  # each with one entry per sample
RESAMPLES = 200  # enough for a standard error; tails need no more, as the interval is never narrower than Student's
_SEED = 0
_FEW_ROWS, _MOST_VALUES = 1000, 100_000  # of a resample: rows with this many values in all, but never too few
_FEWEST = 20  # resamples that have a score; with fewer there is no interval
_DIGITS, _TINY = 6, 1e-12
_MOST_SAMPLES = 10_000_000  # more than this is not useful advice


def resampled(
    score: Callable[..., float], rows: Rows, whole: float, most_rows: int, resamples: int = RESAMPLES
) -> NDArray[np.float64]:
    """The scores of `resamples` resamples; NaN for a resample without a score. `whole` is the score of all rows."""
    count = len(rows[0])
    width = sum(array.size for array in rows) // count
    size = min(count, most_rows, max(_FEW_ROWS, _MOST_VALUES // max(1, width)))
    rng = np.random.default_rng(_SEED)
    scores = np.empty(resamples)
    for at in range(resamples):
        picks = rng.integers(0, count, size=size)
        scores[at] = score(*(array[picks] for array in rows))
    if size < count and np.isfinite(scores).any():
        scores = whole + (scores - np.nanmean(scores)) * math.sqrt(size / count)
    return scores


def rounded(scores: NDArray[np.float64]) -> tuple[float, ...]:
    """The scores as a record keeps them, with six digits."""
    return tuple(float(f"{score:.{_DIGITS}g}") for score in scores.tolist())


def paired(base: Sequence[float], other: Sequence[float], better: int) -> tuple[float, ...]:
    """How much worse `other` is on each resample; empty if the two were not resampled alike."""
    if len(base) != len(other):
        return ()
    return tuple((a - b) * better for a, b in zip(base, other, strict=True))


def interval(
    estimate: float, resamples: Sequence[float], samples: int, *, confidence: float, room: float = 0.0
) -> tuple[float, float]:
    """The lowest and highest value that the resamples of a set of `samples` samples leave open.

    It is the wider of the percentile interval and Student's, since percentiles of few samples are too narrow
    (Hesterberg, "What Teachers Should Know About the Bootstrap", 2015). `room` is the range of a score whose samples
    are right or wrong, 0 for other scores. Such samples may have few exceptions, so one more counts as possible
    (Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", 2005). If there are
    none, the interval has room for as many as n samples can hide (Clopper and Pearson, 1934). Without resamples the
    interval is the estimate alone; it is infinite if too few of them have a score.
    """
    if not resamples:
        return estimate, estimate
    scores = np.asarray(resamples, dtype=np.float64)
    scores = scores[np.isfinite(scores)]
    if len(scores) < _FEWEST or samples < 2 or not math.isfinite(estimate):
        return -math.inf, math.inf
    tail = (1 - confidence) / 2
    # Resamples of n values spread like a deviation that divides by n; the root makes it the usual one, by n - 1.
    spread = float(scores.std(ddof=1)) * math.sqrt(samples / (samples - 1))
    half = student(confidence, samples - 1) * math.hypot(spread, room / samples)
    if spread < _TINY:  # no exception among the samples: Clopper and Pearson's bound for 0 of n
        half = max(half, room * (1 - tail ** (1 / samples)))
    low, high = np.quantile(scores, [tail, 1 - tail])
    return min(estimate - half, float(low)), max(estimate + half, float(high))


def samples_to_decide(estimate: float, bound: float, limit: float, samples: int) -> int | None:
    """How many more samples would put `limit` outside of the interval, if they are like these.

    `bound` is the interval's end on the limit's side. An interval shrinks with the root of the number of samples. None:
    the number is too large to be useful advice.
    """
    distance = abs(estimate - limit)
    if distance == 0 or not math.isfinite(bound):
        return None
    needed = samples * (abs(bound - estimate) / distance) ** 2
    return max(1, math.ceil(needed - samples)) if needed < _MOST_SAMPLES else None


def student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t."""
    from scipy.special import stdtrit  # noqa: PLC0415 - takes 0.1 s, only where scores are judged

    return float(stdtrit(freedom, 0.5 + confidence / 2))
