"""Paths between known rows, along which one column of numbers changes: where to look for a change of the answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.settings import Ask, count_of, rows_of, together

ORDINARY = 32 * float(np.finfo(np.float32).eps)  # of a spread: what FP32 is off by in an ordinary sum
PAIRS = 128
_MOST_COLUMNS = 64
_TRIED = 4  # rows that show whether a column takes values between known ones
_LOW, _HIGH, _BEYOND = 25, 75, 2.0  # ordinary values: between these percentiles, and so many times as far beyond

Values = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class NumberColumn:
    """A column of numbers: its input and place, the width of its ordinary values, and the grid that they are on."""

    input: str
    place: int
    low: float
    width: float
    dtype: np.dtype[Any]

    def held(self, value: Any) -> Any:
        """Values as the column holds them; whole numbers are rounded down."""
        return np.floor(value) if self.dtype.kind in "iu" else np.asarray(value, self.dtype).astype(np.float64)

    @property
    def rounded_by_float32(self) -> bool:
        """Whether FP32 takes values for one that are apart by more than an ordinary sum is off."""
        largest = max(abs(self.low), abs(self.low + self.width))
        return float(np.spacing(np.float32(largest))) > ORDINARY * self.width

    def ordinary(self, values: Values) -> NDArray[np.bool_]:
        """Which values are usual; those made to be strange are not."""
        beyond = _BEYOND * self.width
        return np.asarray((values >= self.low - beyond) & (values <= self.low + self.width + beyond))


@dataclass(frozen=True, kw_only=True)
class Path:
    """Pairs of rows that differ in one column each: from its value in `low` to that in `high`."""

    rows: Arrays
    columns: tuple[NumberColumn, ...]
    low: Values
    high: Values

    def between(self) -> Values:
        """The values in the middle of each pair, as their columns hold them."""
        middle = self.low / 2 + self.high / 2
        return np.array([column.held(value) for column, value in zip(self.columns, middle, strict=True)], np.float64)

    def taken(self, at: Places) -> "Path":
        """Some of the pairs."""
        columns = tuple(self.columns[pair] for pair in at.tolist())
        return Path(rows=rows_of(self.rows, at), columns=columns, low=self.low[at], high=self.high[at])

    def with_values(self, values: Values) -> Arrays:
        """The rows with these values in their columns."""
        inputs = {name: array.copy() for name, array in self.rows.items()}
        for row, (column, value) in enumerate(zip(self.columns, values.tolist(), strict=True)):
            inputs[column.input][row, column.place] = value
        return inputs


def columns_of(rows: Arrays, *, coarse: bool) -> tuple[NumberColumn, ...]:
    """The columns of numbers that have several values. `coarse`: those of FP64 hold what FP32 holds."""
    return tuple(
        _column(name, place, array, coarse=coarse)
        for name, array in rows.items()
        if array.dtype.kind in "fiu" and array.ndim == 2
        for place in range(array.shape[1])
        if _varies(array[:, place])
    )


def _varies(values: NDArray[Any]) -> bool:
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(finite.min() < finite.max())


def _column(name: str, place: int, array: NDArray[Any], *, coarse: bool) -> NumberColumn:
    values = array[:, place].astype(np.float64)
    values = values[np.isfinite(values)]
    low, high = (float(end) for end in np.percentile(values, (_LOW, _HIGH)))
    if low == high:
        low, high = float(values.min()), float(values.max())
    single = coarse and array.dtype == np.float64
    dtype = np.dtype(np.float32) if single else array.dtype
    return NumberColumn(
        input=name, place=place, low=low, width=min(high - low, float(np.finfo(np.float32).max)), dtype=dtype
    )


def ordinary(rows: Arrays, columns: Sequence[NumberColumn]) -> Places:
    """The rows whose numbers are all usual."""
    count = count_of(rows)
    usual = [column.ordinary(rows[column.input][:, column.place].astype(np.float64)) for column in columns]
    return np.flatnonzero(np.logical_and.reduce(usual)) if usual else np.arange(count)


def movable(
    ask: Ask, rows: Arrays, columns: Sequence[NumberColumn], rng: np.random.Generator
) -> tuple[NumberColumn, ...]:
    """The columns that may have values between those of rows; an encoder, for one, may refuse what it never saw.

    Of very many columns some are tried, first those that FP32 rounds most.
    """
    shuffled = [columns[at] for at in rng.permutation(len(columns)).tolist()]
    tried = sorted(shuffled, key=lambda column: not column.rounded_by_float32)[:_MOST_COLUMNS]
    return tuple(column for column in tried if _answered(ask, _moved(rows, column, rng)))


def _moved(rows: Arrays, column: NumberColumn, rng: np.random.Generator) -> Path:
    at, others = rng.integers(0, count_of(rows), (2, _TRIED))
    values = rows[column.input][:, column.place].astype(np.float64)
    return Path(rows=rows_of(rows, at), columns=(column,) * _TRIED, low=values[at], high=values[others])


def _answered(ask: Ask, path: Path) -> bool:
    return bool(together(ask, path.with_values(path.between())).answered.all())


def from_rows(rows: Arrays, columns: Sequence[NumberColumn], rng: np.random.Generator) -> Path:
    """Pairs that begin at known rows, and end with another row's value in the column."""
    chosen = chosen_of(columns, rng)
    at, others = rng.integers(0, count_of(rows), (2, len(chosen)))
    low, high = (
        np.array([rows[each.input][row, each.place] for each, row in zip(chosen, places, strict=True)], np.float64)
        for places in (at, others)
    )
    return Path(rows=rows_of(rows, at), columns=chosen, low=_held(chosen, low), high=_held(chosen, high))


def across(rows: Arrays, columns: Sequence[NumberColumn], rng: np.random.Generator) -> Path:
    """Pairs around these rows, as wide as ordinary values of the column are."""
    at = np.arange(PAIRS) % count_of(rows)
    chosen = chosen_of(columns, rng)
    own = np.array([rows[each.input][row, each.place] for each, row in zip(chosen, at, strict=True)], np.float64)
    half = np.array([max(each.width / 2, 1.0 if each.dtype.kind in "iu" else 0.0) for each in chosen])
    low, high = (np.clip(own + side * half, *_limits(chosen)) for side in (-1, 1))
    return Path(rows=rows_of(rows, at), columns=chosen, low=_held(chosen, low), high=_held(chosen, high))


def _limits(columns: Sequence[NumberColumn]) -> tuple[Values, Values]:
    kinds = [np.iinfo(each.dtype) if each.dtype.kind in "iu" else np.finfo(each.dtype) for each in columns]
    return np.array([float(kind.min) for kind in kinds]), np.array([float(kind.max) for kind in kinds])


def chosen_of(columns: Sequence[NumberColumn], rng: np.random.Generator) -> tuple[NumberColumn, ...]:
    """The column of each pair, in turn; every second one is of those that FP32 rounds most, if there are any."""
    rounded = [column for column in columns if column.rounded_by_float32] or list(columns)
    order, first = rng.permutation(len(columns)).tolist(), rng.permutation(len(rounded)).tolist()
    return tuple(
        rounded[first[at // 2 % len(rounded)]] if at % 2 else columns[order[at // 2 % len(columns)]]
        for at in range(PAIRS)
    )


def _held(columns: Sequence[NumberColumn], values: Values) -> Values:
    return np.array([column.held(value) for column, value in zip(columns, values, strict=True)], np.float64)
