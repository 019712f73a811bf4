"""How far off the original's own answer to a row is, where its terms cancel: rounding is all that is left of them.

The variance of equal large numbers is such an answer, and the mean of two large ones that cancel each other beside
small ones. Another order of additions answers something else there, no less right. Two things show it: the answer
changes with the last places of the inputs, and it is not what the same model answers in FP64. Either alone shows
nothing: a remainder changes with the last places and is exact, and a square that overflows is not rounding.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.tolerances import NOISE_FACTOR

_TIMES = 3  # that each row is asked again
_PLACES = 4  # that a number is moved at most

_Floats = NDArray[np.float64]


def rounding(
    ask: Callable[[Arrays], Answers],
    precisely: Callable[[Arrays], Answers],
    rows: Arrays,
    right: Answers,
    seed: int = 0,
) -> Arrays:
    """How far off the `right` answers are, (rows,), by output of floats; 0.0 where FP64 has no answer.

    `ask` is asked the rows with other last places, and `precisely` answers in FP64. Both may leave out last rows; what
    is told is of the rows before these.
    """
    rng = np.random.default_rng(seed)
    beside = [_nudged(rows, rng) for _ in range(_TIMES)]
    near, precise = [ask(each) for each in beside], [precisely(each) for each in (rows, *beside)]
    count = min(len(each.errors) for each in (right, *near, *precise))
    told: Arrays = {}
    for name in [name for name, array in right.outputs.items() if array.dtype.kind == "f"]:
        changes = [_apart(name, right, each, count) for each in near]
        errors = [_apart(name, *both, count) for both in zip((right, *near), precise, strict=True)]
        told[name] = np.minimum(np.max(changes, axis=0), NOISE_FACTOR * np.max(errors, axis=0))
    return told


def _apart(name: str, left: Answers, other: Answers, count: int) -> _Floats:
    """How far two answers to each of the first rows are apart, (count,); 0.0 where one is not a number."""
    if name not in left.outputs or name not in other.outputs:
        return np.zeros(count)
    both = left.answered[:count] & other.answered[:count]
    return np.where(both, _off(left.outputs[name][:count], other.outputs[name][:count]), 0.0)


def _nudged(rows: Arrays, rng: np.random.Generator) -> Arrays:
    """The rows with each float some last places up or down."""
    return {name: _beside(array, rng) if array.dtype.kind == "f" else array for name, array in rows.items()}


def _beside(array: NDArray[np.floating], rng: np.random.Generator) -> NDArray[np.floating]:
    ends = np.finfo(array.dtype)
    shares = 1 + _PLACES * float(ends.eps) * rng.uniform(-1, 1, array.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.clip(array * shares, ends.min, ends.max)
    return np.asarray(np.where(np.isfinite(array), near, array), dtype=array.dtype)


def _off(left: NDArray[np.floating], other: NDArray[np.floating]) -> _Floats:
    """The largest difference of finite numbers in each row, (rows,); 0.0 where shapes differ or there are none."""
    if left.shape != other.shape:
        return np.zeros(len(left))
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(left.astype(np.float64) - other.astype(np.float64))
    off = np.where(np.isfinite(off), off, 0.0)
    return np.asarray(off.reshape(len(off), -1).max(axis=1, initial=0.0))
