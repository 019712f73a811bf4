"""Columns of whole numbers: counts, codes and ids."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.proof.questions import thresholds
from shiplift.runtime.proof.questions.column import Candidates, Column
from shiplift.runtime.proof.questions.numbers import interval

# The last that bf16, float16, float32, 32 bits and float64 hold exactly, or hold at all, and the first that they don't.
_LIMITS = (256, 257, 2**11 + 1, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1)
_DRAWS = 8


class Integers:
    """Whole numbers: ends of the range, of the table they look up, and of 32 and 64 bits; thresholds."""

    def recognises(self, column: Column) -> bool:
        """Whether it holds integers, one to a row."""
        return column.dtype.kind in "iu" and column.shape == ()

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Special values by origin."""
        low, high = _ends(column)
        inside = [_between(low, high, rng) for _ in range(_DRAWS)]
        edges = rng.permutation(np.asarray(column.facts.thresholds, np.float64))
        marks = [int(mark) for mark in column.facts.sentinels if not isinstance(mark, str) and mark == round(mark)]
        return {
            "zero": held([0], column.dtype),
            "sentinel": held(marks, column.dtype),
            "range": held([low, high, low - 1, high + 1, *inside], column.dtype),
            "id": held(_ids(column), column.dtype),
            f"threshold:{column.name}": held(thresholds.around(edges, column.dtype).tolist(), column.dtype),
        }

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Known values and values of the range, or of the table, half each."""
        low, high = _ends(column)
        drawn = rng.integers(low, high, count, dtype=column.dtype, endpoint=True)
        known = np.asarray(column.known, column.dtype).ravel()
        return np.where(rng.random(count) < 0.5, rng.choice(known, count), drawn) if len(known) else drawn


class Flags:
    """Whole numbers that are 0 or 1 wherever they are known, and about which the model says nothing else."""

    def recognises(self, column: Column) -> bool:
        """Whether all known values are 0 and 1."""
        facts, known = column.facts, np.asarray(column.known)
        told = facts.thresholds or facts.categories or facts.sentinels or facts.table_rows
        whole = column.dtype.kind in "iu" and column.shape == () and not told
        return whole and known.size > 0 and bool(np.isin(known, (0, 1)).all())

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Both values."""
        return {"boolean": np.array([0, 1], column.dtype)}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Both values, as often."""
        return rng.integers(0, 2, count, dtype=column.dtype)


def held(values: list[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Those of the values that the dtype holds, each once."""
    limits = np.iinfo(dtype)
    return np.array([value for value in dict.fromkeys(values) if limits.min <= value <= limits.max], dtype)


def _ends(column: Column) -> tuple[int, int]:
    """The least and the greatest ordinary value; ids are those of the table."""
    limits, known = np.iinfo(column.dtype), np.asarray(column.known).ravel()
    if column.facts.table_rows:
        return 0, min(column.facts.table_rows - 1, limits.max)
    if len(known) and not column.facts.thresholds and known.min() < known.max():
        return int(known.min()), int(known.max())  # floats round the ends of 64 bits
    own = interval(column)
    low, high = (min(max(int(end), limits.min), limits.max) for end in (own.low, own.high))
    return low, high


def _ids(column: Column) -> list[int]:
    """Ends of the table, ends of the dtypes that ids pass through, and ids that 32 bits turn into known ones."""
    rows, known = column.facts.table_rows, np.asarray(column.known).ravel()
    ends = [0, rows - 1, rows, -1, -rows, -rows - 1] if rows else []
    some = int(known[0]) if len(known) else 1
    limits = np.iinfo(column.dtype)
    return [*ends, 2**32 + some, some - 2**32, *_LIMITS, limits.max, limits.min, -(2**31), -(2**31) - 1]


def _between(low: int, high: int, rng: np.random.Generator) -> int:
    return low + int(rng.random() * (high - low))
