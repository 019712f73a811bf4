"""Values on, just below and just above a threshold, and those that another precision puts on its other side."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_UP, _DOWN = np.inf, -np.inf


def around(thresholds: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values of the dtype next to each threshold: the nearest of all thresholds first, then those further away.

    For float64 they are next to it in float64 and in float32, and where float32 rounds from one side to the other.
    """
    thresholds = thresholds[np.abs(thresholds) <= _largest(dtype)]
    if not len(thresholds):
        return np.empty(0, dtype)
    near = _whole(thresholds) if dtype.kind in "iu" else _floats(thresholds, dtype)
    values = np.concatenate(near)
    return _cast(values, dtype)


def _largest(dtype: np.dtype[Any]) -> float:
    return float(np.iinfo(dtype).max) if dtype.kind in "iu" else float(np.finfo(dtype).max)


def _floats(thresholds: NDArray[np.float64], dtype: np.dtype[Any]) -> list[NDArray[np.float64]]:
    """Sets of neighbours, each as long as `thresholds`."""
    narrow = np.float16 if dtype == np.float16 else np.float32
    with np.errstate(over="ignore"):
        rounded = thresholds.astype(narrow)
    above, below = (np.nextafter(rounded, narrow(way), dtype=narrow) for way in (_UP, _DOWN))
    further = [np.nextafter(above, narrow(_UP), dtype=narrow), np.nextafter(below, narrow(_DOWN), dtype=narrow)]
    near = [each.astype(np.float64) for each in (rounded, above, below)]
    if dtype != np.float64:
        return [*near, *(each.astype(np.float64) for each in further)]
    exact = [thresholds, np.nextafter(thresholds, _UP), np.nextafter(thresholds, _DOWN)]
    return [*exact, *near, *_crossing(near), *(each.astype(np.float64) for each in further)]


def _crossing(near: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """Where float32 begins to round to the next number: half-way between neighbours, and on both sides of that."""
    rounded, above, below = near
    with np.errstate(over="ignore", invalid="ignore"):
        halves = [rounded / 2 + above / 2, rounded / 2 + below / 2]
    return [side for half in halves for side in (np.nextafter(half, _UP), np.nextafter(half, _DOWN), half)]


def _whole(thresholds: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    low, high = np.floor(thresholds), np.ceil(thresholds)
    return [low, np.where(low == high, high + 1, high), low - 1, high + 2]


def _cast(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The finite values that the dtype holds."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        most = float(limits.max)
        beyond = values >= most if most > limits.max else values > most  # float64 rounds the end of 64 bits up
        return np.asarray(values[(values >= float(limits.min)) & ~beyond], dtype)
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    return np.asarray(cast[np.isfinite(cast)])
