"""Rows beside the magnitude from which on the original's answers are no numbers any more.

There one of its terms leaves the type's range. A form that adds up otherwise leaves it a little earlier or later, which
rows of any other magnitude do not show.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.far import FAR
from shiplift.runtime.proof.questions.question import NONE, Questions
from shiplift.runtime.proof.settings import count_of, rows_of
from shiplift.runtime.proof.tolerances import largest_in_rows

_MOST = 12  # rows whose edge is looked for
_HALVINGS = 12  # of the way from known magnitudes to the row's, as powers
_BESIDE = (0.3, 0.6, 0.8, 0.9, 0.97, 1.03, 1.1, 1.25, 1.6, 3.0)  # of the magnitude at the edge

_Floats = NDArray[np.float64]
_Flags = NDArray[np.bool_]


def edges(ask: Callable[[Arrays], Answers], rows: Arrays, right: Answers, known: Arrays) -> Questions:
    """Rows beside the edge of each of some `rows`: those of numbers that the original does not answer with numbers.

    `known` are rows that it does. What is larger than these in a row is what becomes smaller, down to the edge.
    `ask` may leave out last rows, for want of time: then there are none.
    """
    ends = {
        name: float(largest_in_rows(array).max(initial=0.0)) for name, array in known.items() if array.dtype.kind == "f"
    }
    at = np.flatnonzero(_numbers(rows) & right.answered & ~_numbers(right.outputs))
    if not len(at):
        return NONE
    rows = rows_of(rows, at[np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST)).astype(int))])
    beyond = [np.where(ends[name] > 0, largest_in_rows(rows[name]) / (ends[name] or 1.0), 1.0) for name in ends]
    low, high = -np.log(np.maximum(np.max(beyond, axis=0), 1.0)), np.zeros(count_of(rows))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        answers = ask(_scaled(rows, np.exp(middle), ends))
        if len(answers.errors) < len(middle) or not answers.outputs:
            return NONE
        numbers = answers.answered & _numbers(answers.outputs)
        low, high = np.where(numbers, middle, low), np.where(numbers, high, middle)
    parts = [_scaled(rows, np.exp(low) * share, ends) for share in _BESIDE]
    inputs = {name: np.concatenate([part[name] for part in parts]) for name in rows}
    return Questions(inputs=inputs, origins=(FAR,) * count_of(inputs))


def _scaled(rows: Arrays, shares: _Floats, ends: dict[str, float]) -> Arrays:
    """The rows with what is larger than the `ends` made smaller, by a share for each row."""
    scaled = dict(rows)
    for name, end in ends.items():
        array = rows[name].astype(np.float64)
        by_row = shares.reshape(-1, *(1,) * (array.ndim - 1))
        most = float(np.finfo(rows[name].dtype).max)
        smaller = np.clip(array * by_row, -most, most)
        scaled[name] = np.where(np.abs(array) > end, smaller, array).astype(rows[name].dtype)
    return scaled


def _numbers(arrays: Arrays) -> _Flags:
    """Which rows have neither NaN nor infinities."""
    finite = [
        np.isfinite(each).reshape(len(each), -1).all(axis=1) for each in arrays.values() if each.dtype.kind == "f"
    ]
    return np.asarray(np.logical_and.reduce(finite)) if finite else np.ones(count_of(arrays), dtype=np.bool_)
