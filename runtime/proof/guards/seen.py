"""What was asked of an input, by its columns, or as a whole if it has none: which values were there, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_WIDE = 1_000  # an input with more columns is looked at as a whole

Flags = NDArray[np.bool_]
Values = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class SeenInput:
    """One input over all rows: for each row and place, whether there are NaN and infinities, and the ends of the rest.

    `columns` are the places: numbers on the second axis, or None for the whole input. Arrays are (rows, places). Where
    all is NaN, the ends are those of the dtype, swapped, so that they never are the ends of more.
    """

    name: str
    columns: tuple[int | None, ...]
    arrays: tuple[Values, ...]  # as they were asked, a set each
    answered: Flags  # (rows,)
    nan: Flags
    infinite: Flags
    low: Values
    high: Values

    @classmethod
    def of(cls, name: str, arrays: Sequence[Values], answered: Flags) -> "SeenInput":
        """The rows of all sets."""
        first = arrays[0]
        matrix = all(each.ndim == 2 and each.shape[1] == first.shape[1] for each in arrays)
        by_column = matrix and 1 < first.shape[1] <= _WIDE
        parts = [_stats(each if by_column else each.reshape(len(each), 1, -1)) for each in arrays]
        nan, infinite, low, high = (np.concatenate(side) for side in zip(*parts, strict=True))
        return cls(
            name=name,
            columns=tuple(range(first.shape[1])) if by_column else (None,),
            arrays=tuple(arrays),
            answered=answered,
            nan=nan,
            infinite=infinite,
            low=low,
            high=high,
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements; texts have an object's or a text's."""
        return self.arrays[0].dtype

    @cached_property
    def below(self) -> Flags:
        """Where a value is less than all that were answered."""
        return np.asarray(self.low < self.low[self.answered].min(axis=0), dtype=np.bool_)

    @cached_property
    def above(self) -> Flags:
        """Where a value is greater than all that were answered."""
        return np.asarray(self.high > self.high[self.answered].max(axis=0), dtype=np.bool_)

    @cached_property
    def strange(self) -> Flags:
        """Where something is of which no answered row has the like: (rows, places)."""
        nan = self.nan & ~self.nan[self.answered].any(axis=0)
        infinite = self.infinite & ~self.infinite[self.answered].any(axis=0)
        return nan | infinite | self.below | self.above

    def taken(self, column: int | None) -> Values:
        """The elements of a place that were answered, flat."""
        parts, start = [], 0
        for array in self.arrays:
            rows = array[self.answered[start : start + len(array)]]
            parts.append((rows if column is None else rows[:, column]).ravel())
            start += len(array)
        return np.concatenate(parts)


def _stats(array: Values) -> tuple[Flags, Flags, Values, Values]:
    """NaN, infinities and ends by row and place; the array is (rows, places) or (rows, places, elements)."""
    flat = array if array.ndim == 3 else array[:, :, None]
    if flat.dtype.kind not in "iuf":
        none = np.zeros(flat.shape[:2], dtype=np.bool_)
        return none, none, none, none
    if flat.dtype.kind != "f":
        ends = np.iinfo(flat.dtype)
        none = np.zeros(flat.shape[:2], dtype=np.bool_)
        return none, none, flat.min(axis=2, initial=ends.max), flat.max(axis=2, initial=ends.min)
    low = np.fmin.reduce(flat, axis=2, initial=np.inf)
    high = np.fmax.reduce(flat, axis=2, initial=-np.inf)
    nan, infinite = (np.asarray(each.any(axis=2), dtype=np.bool_) for each in (np.isnan(flat), np.isinf(flat)))
    return nan, infinite, low, high
