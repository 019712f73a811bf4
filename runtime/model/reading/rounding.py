"""Where exactly a comparison changes its result: behind a cast to float32, and behind a rising function of a column."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.reading.found import Values


def down_to_float32(thresholds: Values) -> NDArray[np.float32]:
    """The greatest float32 up to each threshold: to compare float32 with it is to compare them with the threshold."""
    with np.errstate(over="ignore"):
        nearest = thresholds.astype(np.float32)
    return np.where(nearest > thresholds, np.nextafter(nearest, np.float32(-np.inf)), nearest).astype(np.float32)


def up_to_float32(thresholds: Values) -> Values:
    """The greatest float64 that, cast to float32, is up to each threshold."""
    return _last_rounded_to(down_to_float32(thresholds))


def below_float32(thresholds: Values) -> Values:
    """The greatest float64 that, cast to float32, is less than each threshold, a float32."""
    return _last_rounded_to(np.nextafter(thresholds.astype(np.float32), np.float32(-np.inf)))


def _last_rounded_to(low: NDArray[np.float32]) -> Values:
    high = np.nextafter(low, np.float32(np.inf)).astype(np.float64)
    half = low.astype(np.float64) / 2 + high / 2
    with np.errstate(over="ignore"):
        return np.asarray(np.where(half.astype(np.float32) <= low, half, np.nextafter(half, -np.inf)))


def last_up_to(
    function: Callable[[NDArray[Any]], NDArray[Any]], bounds: NDArray[np.float64], dtype: np.dtype[Any]
) -> NDArray[np.float64]:
    """The greatest finite x of the dtype for which a rising function is up to each bound; NaN: there is none.

    `function` computes each column by itself: (rows, columns) in and out, as `bounds` is. It is called once per bit.
    """
    integer: Any = np.int32 if dtype == np.float32 else np.int64
    low, high = (np.full(bounds.shape, _key(dtype.type(end), integer)) for end in _ends(dtype))
    with np.errstate(all="ignore"):
        for _ in range(8 * dtype.itemsize):
            middle = (low & high) + ((low ^ high) >> 1)
            above = function(_value(middle, dtype)) > bounds
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        found = _value(low, dtype)
        right = (function(found) <= bounds) & (function(np.nextafter(found, dtype.type(np.inf))) > bounds)
    return np.where(right, found.astype(np.float64), np.nan)


def _ends(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    limits = np.finfo(dtype)
    return np.nextafter(limits.min, dtype.type(0)), np.nextafter(limits.max, dtype.type(0))


def _key(value: Any, integer: Any) -> Any:
    """A float's place in the order of floats."""
    bits = np.asarray(value).view(integer)
    return bits ^ ((bits >> (8 * bits.itemsize - 1)) & np.iinfo(integer).max)


def _value(key: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The float at a place in the order of floats."""
    bits: NDArray[Any] = key ^ ((key >> (8 * key.itemsize - 1)) & np.iinfo(key.dtype).max)
    return bits.view(dtype)
