"""Rows of other lengths, for inputs with axes of any size: known rows, cut or repeated."""

from collections.abc import Mapping, Sequence

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.questions import known as rows_known
from shiplift.runtime.proof.questions.groups import QuestionGroup
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.tensor import TensorSpec

_ROWS = 4  # of each length
_COMMON = (2, 8, 16, 17, 32, 33, 64, 128)  # and one more, where padding and tiles of kernels end
_LONGEST = 4_096  # elements of an axis

Axes = tuple[tuple[str, int], ...]  # the input, and its axis


def of_lengths(specs: Sequence[TensorSpec], bases: Arrays, rng: np.random.Generator) -> QuestionGroup:
    """A few rows of each length; the most telling lengths first."""
    shapes = [(axes, length) for size, axes in free_axes(specs, bases).items() for length in _lengths(size)]

    def make(count: int) -> tuple[Questions, ...]:
        made = []
        for at, (axes, length) in enumerate(shapes):
            size = min(_ROWS, count - at * _ROWS)
            if size > 0:
                made.append(_resized(bases, axes, length, size, rng))
        return tuple(made)

    return QuestionGroup(label="rows of other lengths", available=_ROWS * len(shapes), make=make)


def free_axes(specs: Sequence[TensorSpec], rows: Arrays) -> Mapping[int, Axes]:
    """The axes of any size, by the size that they have. Those of one size change together: ids have masks as long."""
    axes: dict[int, Axes] = {}
    for spec in specs:
        for axis, size in enumerate(spec.shape):
            if axis and size == -1 and spec.name in rows:
                found = rows[spec.name].shape[axis]
                axes[found] = (*axes.get(found, ()), (spec.name, axis))
    return axes


def _lengths(size: int) -> tuple[int, ...]:
    """Other lengths than `size`: one, next to it, twice as long, and common ones in its neighbourhood."""
    near = [length for length in _COMMON if size / 8 <= length <= max(4 * size, 64)]
    wanted = [1, size + 1, size - 1, 2 * size, 3, *near]
    return tuple(length for length in dict.fromkeys(wanted) if 0 < length <= _LONGEST and length != size)


def _resized(bases: Arrays, axes: Axes, length: int, count: int, rng: np.random.Generator) -> Questions:
    at = rng.integers(0, rows_known.count(bases), count)
    rows = {name: array[at] for name, array in bases.items()}
    for name, axis in axes:
        rows[name] = np.take(rows[name], np.arange(length), axis=axis, mode="wrap")
    return Questions(inputs=rows, origins=("length",) * count)
