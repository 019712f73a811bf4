"""Fresh rows like those that a model was trained on, made otherwise than the proof makes its questions.

A row is drawn from the training data; or its columns come from different rows; or it lies half-way between values that
are neighbours in training, which is where trees split, or one unit in the last place beside; or it is jittered; or it
is at or beyond the ends. A few cells get sentinels and missing values, if the model takes those.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_JITTER = 0.02  # of a column's spread
_BEYOND = 0.1
_ODD = 0.03  # share of cells that get a sentinel
_WAYS = 5


def rows_like(data: Any, count: int, seed: int, *, odd: Sequence[Any] = ()) -> Any:
    """Rows like `data`, an array (rows, columns, ...) of numbers or a data frame, in the same type.

    `odd` are values that a cell of numbers may have anywhere, such as 0, NaN or a sentinel.
    """
    if hasattr(data, "columns"):
        return _frame(data, count, np.random.default_rng(seed), odd)
    rng, flat = np.random.default_rng(seed), data.reshape(len(data), -1)
    ways, source = rng.integers(0, _WAYS, count), rng.integers(0, len(data), count)
    columns = [_column(flat[:, at], ways, source, rng, odd) for at in range(flat.shape[1])]
    return np.stack(columns, axis=1).astype(data.dtype).reshape(count, *data.shape[1:])


def _frame(data: Any, count: int, rng: np.random.Generator, odd: Sequence[Any]) -> Any:
    import pandas as pd

    ways, source = rng.integers(0, _WAYS, count), rng.integers(0, len(data), count)
    made = {}
    for name in data.columns:
        values = data[name]
        if values.dtype.kind in "fiu":
            column = _column(values.to_numpy(), ways, source, rng, odd if values.dtype.kind == "f" else ())
            made[name] = pd.Series(column.astype(values.dtype))
        else:
            at = np.where(ways == 1, rng.permutation(source), source)
            made[name] = values.iloc[at].reset_index(drop=True)
    return pd.DataFrame(made)


def _column(
    values: NDArray[Any],
    ways: NDArray[np.intp],
    source: NDArray[np.intp],
    rng: np.random.Generator,
    odd: Sequence[Any],
) -> NDArray[Any]:
    """A column of fresh values; `ways` says for each row how it is made, `source` from which row."""
    count, drawn = len(ways), values[source]
    known = np.unique(values[np.isfinite(values.astype(np.float64))])
    if len(known) < 2:
        made = drawn
    else:
        choices = [
            drawn,
            values[rng.integers(0, len(values), count)],
            _between(known, count, rng),
            drawn + rng.normal(scale=_JITTER * float(known.std()), size=count),
            _at_ends(known, count, rng),
        ]
        made = np.choose(ways, [choice.astype(values.dtype) for choice in choices])
    if odd and values.dtype.kind == "f":
        strange = rng.random(count) < _ODD
        made = np.where(strange, rng.choice(np.asarray(odd, dtype=values.dtype), count), made)
    return np.asarray(made, dtype=values.dtype)


def _between(known: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Half-way between neighbours, and one unit in the last place beside."""
    at = rng.integers(0, len(known) - 1, count)
    middle: NDArray[Any] = (known[at] + (known[at + 1] - known[at]) / 2).astype(known.dtype)
    if known.dtype.kind != "f":
        return middle
    towards = rng.choice([-np.inf, np.inf], count).astype(known.dtype)
    return np.asarray(np.where(rng.random(count) < 2 / 3, np.nextafter(middle, towards), middle))


def _at_ends(known: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    low, high = known[0], known[-1]
    beyond = _BEYOND * (float(high) - float(low)) * rng.random(count)
    return np.asarray(np.where(rng.random(count) < 0.5, low - beyond * rng.integers(0, 2, count), high + beyond))
