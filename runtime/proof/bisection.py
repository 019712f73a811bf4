"""Bisection along paths: two values next to each other whose answers are apart."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.paths import Path, Values
from shiplift.runtime.proof.settings import Ask, together

SMALL = 1e-3  # of an output's spread: what differs less is not a jump
Flags = NDArray[np.bool_]
Apart = Callable[[Arrays, Arrays], Flags]  # which rows of both are answered apart


def bisected(ask: Ask, path: Path, apart: Apart, in_time: Callable[[], bool]) -> Path | None:
    """The pairs whose ends are answered apart, as near to each other as time allows: at best without a value between.

    None if there are none, or a row on the way is refused.
    """
    first, last = (asked(ask, path.with_values(values)) for values in (path.low, path.high))
    if first is None or last is None:
        return None
    differ = np.flatnonzero(apart(first, last))
    path, first = path.taken(differ), taken(first, differ)
    open_ = np.arange(len(differ))
    low, high = path.low.copy(), path.high.copy()
    while len(open_) and in_time():
        some = replace(path, low=low, high=high).taken(open_)
        middle = some.between()
        inner = (middle != some.low) & (middle != some.high)
        open_, middle = open_[inner], middle[inner]
        if not len(open_):
            break
        answers = asked(ask, some.taken(np.flatnonzero(inner)).with_values(middle))
        if answers is None:
            return None
        beyond = apart(taken(first, open_), answers)
        low[open_], high[open_] = np.where(beyond, low[open_], middle), np.where(beyond, middle, high[open_])
    return replace(path, low=low, high=high) if len(differ) else None


def asked(ask: Ask, inputs: Arrays) -> Arrays | None:
    """The answers to all rows at once; None if there are none."""
    answers = together(ask, inputs)
    return answers.outputs if answers.answered.all() else None


def taken(answers: Arrays, rows: NDArray[Any]) -> Arrays:
    """Some rows of answers."""
    return {name: array[rows] for name, array in answers.items()}


def far(right: Answers, share: float) -> Apart | None:
    """Whether floats are apart by more than a share of their output's spread; None without floats that vary."""
    spreads: dict[str, Values] = {}
    for name, array in right.outputs.items():
        values = array[right.answered].reshape(int(right.answered.sum()), -1)
        if array.dtype.kind == "f" and len(values) and np.isfinite(values).all() and np.ptp(values) > 0:
            spreads[name] = np.ptp(values.astype(np.float64), axis=0)
    if not spreads:
        return None

    def apart(left: Arrays, other: Arrays) -> Flags:
        differ = []
        for name, spread in spreads.items():
            flat = [each[name].reshape(len(each[name]), -1).astype(np.float64) for each in (left, other)]
            differ.append((np.abs(flat[0] - flat[1]) > share * np.maximum(spread, spread.max() * SMALL)).any(axis=1))
        return np.asarray(np.logical_or.reduce(differ), dtype=np.bool_)

    return apart
