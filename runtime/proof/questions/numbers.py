"""Columns of floating-point numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.proof.questions import thresholds
from shiplift.runtime.proof.questions.column import Candidates, Column, distinct

_DRAWS = 8  # from the column's range, in turn with its ends
_KNOWN, _SPREAD = 0.5, 0.9  # of sampled values: up to the first share known ones, up to the second from the range


@dataclass(frozen=True, kw_only=True)
class ColumnRange:
    """A column's own range, both ends included."""

    low: float
    high: float

    @property
    def span(self) -> float:
        """The range's width, finite."""
        return min(self.high - self.low, float(np.finfo(np.float64).max))


def interval(column: Column) -> ColumnRange:
    """The range of known values and thresholds, without sentinels; wider if they are all the same."""
    known = np.asarray(column.known, np.float64).ravel()
    marks = [mark for mark in column.facts.sentinels if not isinstance(mark, str)]
    known = known[np.isfinite(known) & ~np.isin(known, marks)]
    edges = np.asarray(column.facts.thresholds, np.float64)
    values = np.concatenate([known, edges[np.isfinite(edges)]])
    if not len(values):
        return ColumnRange(low=-1.0, high=1.0)
    low, high = float(values.min()), float(values.max())
    margin = max(1.0, abs(low)) if low == high else 0.0
    return ColumnRange(low=low - margin, high=high + margin)


class Numbers:
    """Floating-point numbers: ends of the range and beyond, zeros, sentinels, missing values, thresholds."""

    def recognises(self, column: Column) -> bool:
        """Whether it holds floats, one to a row."""
        return column.dtype.kind == "f" and column.shape == ()

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Special values by origin."""
        edges = np.asarray(column.facts.thresholds, np.float64)
        marks = [mark for mark in column.facts.sentinels if not isinstance(mark, str)]
        made = {
            "zero": np.array([0.0, -0.0]),
            "sentinel": np.array(marks, np.float64),
            "missing": np.array([np.nan] if takes_missing(column) else []),
            "infinite": np.array([np.inf, -np.inf] if column.facts.infinite else []),
            "range": _ends(interval(column), rng),
        }
        cast = {origin: distinct(_held(values, column.dtype)) for origin, values in made.items()}
        near = thresholds.around(rng.permutation(edges), column.compared).astype(column.dtype)
        return cast | {f"threshold:{column.name}": distinct(near)}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Known values, values across the range, and some up to half a range beyond it."""
        known, own = np.asarray(column.known).ravel(), interval(column)
        share = rng.random(count)
        spread = np.where(share < _SPREAD, rng.random(count), rng.uniform(-0.5, 1.5, count))
        values = own.low * (1 - spread) + own.high * spread
        if len(known):
            values = np.where(share < _KNOWN, rng.choice(known, count), _as_whole(values, known, share))
        return fitting(values, column.dtype)


def takes_missing(column: Column) -> bool:
    """Whether NaN may be asked: the model takes it, or known rows have it."""
    known = np.asarray(column.known)
    return bool(column.facts.missing) or (known.dtype.kind == "f" and bool(np.isnan(known).any()))


def fitting(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in a narrower dtype; what is too large becomes its largest."""
    limits = np.finfo(dtype)
    return np.asarray(np.clip(values, float(limits.min), float(limits.max)), dtype=dtype)


def _held(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.where(np.isinf(values), values, fitting(values, dtype)).astype(dtype)


def _as_whole(values: NDArray[np.float64], known: NDArray[Any], share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Most values as whole numbers where all known ones are."""
    finite = known[np.isfinite(known)]
    whole = len(finite) > 1 and bool((finite == np.round(finite)).all())
    return np.where(share < _SPREAD, np.round(values), values) if whole else values


def _ends(own: ColumnRange, rng: np.random.Generator) -> NDArray[np.float64]:
    """The ends, values across the range, round ones too, and beyond it: a little, by its width, and by far."""
    ends = [own.low, own.high, (own.low + own.high) / 2 if np.isfinite(own.low + own.high) else 0.0]
    inside = own.low + rng.random(_DRAWS) * own.span
    with np.errstate(over="ignore"):
        beyond = [np.subtract(own.low, by * own.span) for by in (0.1, 1.0, 10.0)]
        beyond += [np.add(own.high, by * own.span) for by in (0.1, 1.0, 10.0)]
    values = np.array([*ends, *inside, *_round(inside), *beyond])
    return np.asarray(values[np.isfinite(values)])


def _round(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values as people write them, in halves and tenths: steps, such as a quotient's, are there."""
    return np.concatenate([np.round(values * 2) / 2, np.round(values, 1)])
