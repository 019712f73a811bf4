"""Rows beside a boundary, where a label changes though the scores behind it are smooth.

There each graph differs from its original within some last places, and whoever draws rows at random never sees it. So
a boundary is asked only at values that are clearly on one side: further away than an ordinary sum in FP32 is off
(`ORDINARY` of the column's spread, and of the scores'). Numbers whose size is far above their spread (times in
milliseconds, ids, amounts in cents) are rounded by more than that, and then their labels are clearly wrong.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays, concatenate
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.bisection import Apart, Flags, asked, bisected, far, taken
from shiplift.runtime.proof.paths import ORDINARY, PAIRS, NumberColumn, Path, Values, across
from shiplift.runtime.proof.settings import Ask, count_of, rows_of

_MOST = 240  # rows
_LINE = 26  # halvings of the way between rows with other labels, whose ends are then next to the boundary
_UP, _DOWN = np.float32(np.inf), np.float32(-np.inf)


def of_labels(
    ask: Ask,
    rows: Arrays,
    right: Answers,
    columns: Sequence[NumberColumn],
    rng: np.random.Generator,
    in_time: Callable[[], bool],
) -> Arrays | None:
    """Rows beside a boundary between labels, that FP32 may move to its other side; clearly on one side."""
    wide = [column for column in columns if rows[column.input].dtype != np.float32]
    labels = {name for name, array in right.outputs.items() if array.dtype.kind != "f"}
    if not (wide and labels):
        return None

    def apart(left: Arrays, other: Arrays) -> Flags:
        differ = [(left[name] != other[name]).reshape(len(left[name]), -1).any(axis=1) for name in labels]
        return np.asarray(np.logical_or.reduce(differ), dtype=np.bool_)

    near = _near_boundary(ask, rows, right, columns, apart, rng, in_time)
    path = bisected(ask, across(near, wide, rng), apart, in_time) if near else None
    return clear(ask, path, right) if path else None


def _near_boundary(
    ask: Ask,
    rows: Arrays,
    right: Answers,
    columns: Sequence[NumberColumn],
    apart: Apart,
    rng: np.random.Generator,
    in_time: Callable[[], bool],
) -> Arrays | None:
    """Rows next to a boundary: on the way from one row to another with other labels, of which only numbers change."""
    at, others = rng.integers(0, count_of(rows), (2, 8 * PAIRS))
    differ = np.flatnonzero(apart(right.take(at).outputs, right.take(others).outputs))[:PAIRS]
    at, others = at[differ], others[differ]

    def mixed(shares: Values, kept: NDArray[np.intp]) -> Arrays:
        inputs = rows_of(rows, at[kept])
        for each in columns:
            start, end = (rows[each.input][places[kept], each.place].astype(np.float64) for places in (at, others))
            inputs[each.input][:, each.place] = each.held(start * (1 - shares) + end * shares)
        return inputs

    kept = np.arange(len(at))
    low, high = np.zeros(len(at)), np.ones(len(at))
    if not len(kept) or (last := asked(ask, mixed(high, kept))) is None:
        return None
    first = right.take(at).outputs
    kept = np.flatnonzero(apart(first, last))
    first, low, high = taken(first, kept), low[kept], high[kept]
    for _ in range(_LINE):
        if not len(kept) or not in_time() or (seen := asked(ask, mixed((low + high) / 2, kept))) is None:
            return None
        beyond = apart(first, seen)
        low, high = np.where(beyond, low, (low + high) / 2), np.where(beyond, (low + high) / 2, high)
    return mixed(low, kept)


def clear(ask: Ask, path: Path, right: Answers) -> Arrays | None:
    """Rows beside the boundary of each pair clearly on one side, which FP32 may put on the other."""
    at_boundary = asked(ask, path.with_values(path.low))
    if at_boundary is None:
        return None
    spread = np.array([column.width for column in path.columns])
    further, kept = far(right, ORDINARY), list[Arrays]()
    for values in _beside(path.low):
        held = np.array([column.held(value) for column, value in zip(path.columns, values, strict=True)])
        clear = np.flatnonzero(np.abs(held - path.low) > ORDINARY * spread)
        rows = rows_of(path.with_values(held), clear)
        answers = asked(ask, rows) if len(clear) else None
        if answers is not None:
            sure = further(taken(at_boundary, clear), answers) if further else np.ones(len(clear), np.bool_)
            kept.append(rows_of(rows, np.flatnonzero(sure)))
    kept = [rows for rows in kept if count_of(rows)]
    return rows_of(joined := concatenate(kept), range(min(count_of(joined), _MOST))) if kept else None


def _beside(values: Values) -> list[Values]:
    """Around each value the ends of what FP32 rounds to one number, and its neighbours in FP32."""
    rounded = values.astype(np.float32)
    above, below = np.nextafter(rounded, _UP), np.nextafter(rounded, _DOWN)
    singles = [rounded, above, below, np.nextafter(above, _UP), np.nextafter(below, _DOWN)]
    middle, *others = (each.astype(np.float64) for each in singles)
    halves = [np.nextafter(middle / 2 + each / 2, middle) for each in others[:2]]
    return [*halves, middle, *others]
