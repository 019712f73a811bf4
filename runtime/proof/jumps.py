"""Rows on both sides of a jump in the original's answers, found by bisection.

A tree's thresholds are known where the trees can be read. Behind a scaler, a binning or a sum of such models they are
not, and a graph in FP32 moves them: a value that is beside one is then answered from the other side. Two values that
have no other between them, and whose answers are far apart, are such a place, whatever the model is made of.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask, alone, count_of, rows_of, together

_PAIRS, _KEPT = 128, 48
_SMALL = 1e-3  # of an output's spread: what differs less is no jump
_Values = NDArray[Any]
_Flags = NDArray[np.bool_]
_Apart = Callable[[Arrays, Arrays], _Flags]
_NONE = Questions(inputs={}, origins=())


@dataclass(frozen=True, kw_only=True)
class _Path:
    """Pairs of rows that differ in one column each: the first one's place, and the input and column that change."""

    rows: Arrays
    at: NDArray[np.intp]
    columns: tuple[tuple[str, int], ...]

    def with_values(self, values: _Values, kept: NDArray[np.intp]) -> Arrays:
        """The kept pairs' rows with these values in their columns."""
        inputs = {name: array.copy() for name, array in rows_of(self.rows, self.at[kept]).items()}
        for row, pair in enumerate(kept.tolist()):
            name, column = self.columns[pair]
            inputs[name][row, column] = values[row]
        return inputs


def jumps(
    ask: Ask, rows: Arrays, right: Answers, *, narrow: bool, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Questions:
    """Pairs of rows with neighbouring values in one column of floats, and answers that are far apart.

    `right` are the original's answers to `rows`. `narrow`: neighbours are those of FP32. There are none for a model
    without floats among its inputs or its outputs, for one that raises on the way, and for what takes too long.
    """
    end, rng = clock() + seconds, np.random.default_rng(0)
    apart = _apart(right)
    path = _path(rows, right, rng) if apart else None
    if apart is None or path is None:
        return _NONE
    kept = np.arange(len(path.at))
    low, high = (_grid(values, narrow) for values in _ends(path, rng))
    first, last = (_asked(ask, path.with_values(values, kept)) for values in (low, high))
    if first is None or last is None:
        return _NONE
    differ = apart(first, last)
    kept, low, high, first = kept[differ], low[differ], high[differ], _taken(first, differ)
    while len(kept) and clock() < end:
        middle = _middle(low, high)
        between = (middle != low) & (middle != high)
        if not between.any():
            return _found(ask, path, kept, low, high, apart)
        answers = _asked(ask, path.with_values(middle, kept))
        if answers is None:
            return _NONE
        like_last = apart(first, answers)
        low, high = np.where(like_last, low, middle), np.where(like_last, middle, high)
    return _NONE


def _found(
    ask: Ask,
    path: _Path,
    kept: NDArray[np.intp],
    low: _Values,
    high: _Values,
    apart: _Apart,
) -> Questions:
    """The pairs whose neighbouring values are answered far apart."""
    sides = [path.with_values(values, kept) for values in (low, high)]
    answers = [_asked(ask, side) for side in sides]
    if answers[0] is None or answers[1] is None:
        return _NONE
    jump = np.flatnonzero(apart(answers[0], answers[1]))[:_KEPT]
    both = [_steady(ask, rows_of(side, jump), apart) for side in sides]
    jump = jump[both[0] & both[1]]
    inputs = {name: np.concatenate([side[name][jump] for side in sides]) for name in path.rows}
    return Questions(inputs=inputs, origins=("jump",) * (2 * len(jump)))


def _steady(ask: Ask, rows: Arrays, apart: _Apart) -> _Flags:
    """Which rows are answered alone as they are together: a sum in another order may move a jump by a value."""
    if not count_of(rows):
        return np.zeros(0, dtype=np.bool_)
    by_itself, in_batch = alone(ask, rows), together(ask, rows)
    if not (by_itself.answered.all() and in_batch.answered.all()):
        return np.zeros(count_of(rows), dtype=np.bool_)
    return ~apart(by_itself.outputs, in_batch.outputs)


def _path(rows: Arrays, right: Answers, rng: np.random.Generator) -> _Path | None:
    """Pairs from rows that are finite and answered, in columns of floats that have several values."""
    floats = [array.reshape(len(array), -1) for array in rows.values() if array.dtype.kind == "f"]
    finite = [np.isfinite(array).all(axis=1) for array in floats]
    known = rows_of(rows, np.flatnonzero(np.logical_and.reduce([right.answered, *finite])))
    columns = [
        (name, column)
        for name, array in known.items()
        if array.dtype.kind == "f" and array.ndim == 2
        for column in range(array.shape[1])
        if len(array) and np.ptp(array[:, column]) > 0
    ]
    if not columns:
        return None
    chosen = tuple(columns[at % len(columns)] for at in rng.permutation(max(_PAIRS, len(columns)))[:_PAIRS].tolist())
    return _Path(rows=known, at=rng.integers(0, count_of(known), len(chosen)), columns=chosen)


def _ends(path: _Path, rng: np.random.Generator) -> tuple[_Values, _Values]:
    """Where each pair begins and ends: its row's own value, and another row's."""
    others = rng.integers(0, count_of(path.rows), len(path.at))
    own = [path.rows[name][at, column] for at, (name, column) in zip(path.at, path.columns, strict=True)]
    other = [path.rows[name][at, column] for at, (name, column) in zip(others, path.columns, strict=True)]
    return np.array(own, np.float64), np.array(other, np.float64)


def _grid(values: _Values, narrow: bool) -> _Values:
    return values.astype(np.float32) if narrow else values


def _middle(low: _Values, high: _Values) -> _Values:
    return np.asarray(low / 2 + high / 2, dtype=low.dtype)


def _asked(ask: Ask, inputs: Arrays) -> Arrays | None:
    """The answers to all rows at once; None if there are none."""
    answers = together(ask, inputs)
    return answers.outputs if answers.answered.all() else None


def _taken(answers: Arrays, rows: _Flags) -> Arrays:
    return {name: array[rows] for name, array in answers.items()}


def _apart(right: Answers) -> _Apart | None:
    """Whether rows are answered far apart in an output of floats; None if there is none, or all are constant."""
    spreads: dict[str, _Values] = {}
    for name, array in right.outputs.items():
        values = array[right.answered].reshape(int(right.answered.sum()), -1)
        if array.dtype.kind == "f" and len(values) and np.isfinite(values).all() and np.ptp(values) > 0:
            spreads[name] = np.ptp(values.astype(np.float64), axis=0)
    if not spreads:
        return None

    def apart(left: Arrays, other: Arrays) -> _Flags:
        differ = []
        for name, spread in spreads.items():
            flat = [each[name].reshape(len(each[name]), -1).astype(np.float64) for each in (left, other)]
            differ.append((np.abs(flat[0] - flat[1]) > _SMALL * np.maximum(spread, spread.max() * _SMALL)).any(axis=1))
        return np.asarray(np.logical_or.reduce(differ), dtype=np.bool_)

    return apart
