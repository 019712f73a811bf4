"""Rows in the corners of the leaves of trees: on, or just beyond, every split on the way there.

A threshold matters to the rows that reach its split. A row in a leaf's corner reaches all splits that bound the leaf,
so it tells if one of them has moved. Leaves whose bounds agree share a row.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.questions.column import Column
from shiplift.runtime.proof.questions.groups import Known, QuestionGroup, drawn
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.facts import Bound, ModelFacts

_TRIED = 20  # leaves that may join a row's first one

Box = tuple[Bound, ...]
Place = Mapping[int, float]  # a value for each bounded column


def of_boxes(facts: ModelFacts, columns: Sequence[Known], bases: Arrays, rng: np.random.Generator) -> QuestionGroup:
    """Known rows moved into corners of leaves, of which each has two."""
    bounded = dict(_bounded(facts, [each.column for each in columns]))
    boxes = [box for box in facts.boxes if box and all(at in bounded for at, _, _ in box)]
    corners = [(box, _corner(box, bounded, upper=upper)) for upper in (True, False) for box in boxes]
    shuffled = [corners[at] for at in rng.permutation(len(corners))]
    places = tuple(_shared([(box, corner) for box, corner in shuffled if _agrees(corner, box)]))

    def make(count: int) -> tuple[Questions, ...]:
        rows = drawn(bases, count, rng)
        for row, place in enumerate(places[:count]):
            for at, value in place.items():
                column = bounded[at]
                column.put(rows[column.input], np.array([row]), np.array([value], column.dtype))
        return (Questions(inputs=rows, origins=("leaf",) * count),)

    return QuestionGroup(label="rows in corners of leaves", available=len(places), make=make, weight=8.0)


def _bounded(facts: ModelFacts, columns: Sequence[Column]) -> Iterator[tuple[int, Column]]:
    """The columns of numbers, by their places in the facts."""
    places = {(column.input, column.index): column for column in columns if column.shape == ()}
    for at, told in enumerate(facts.columns):
        column = places.get((told.input, 0 if told.index is None else told.index)) or places.get((told.input, None))
        if column is not None and column.dtype.kind in "biuf":
            yield at, column


def _shared(waiting: list[tuple[Box, Place]]) -> Iterator[Place]:
    """Places for all corners; those that agree share one."""
    while waiting:
        place: Place = {}
        refused = []
        for box, corner in waiting[:_TRIED]:
            if _agrees(place, box) and _keeps(place, corner, box[0][0]):
                place = {**corner, **place}
            else:
                refused.append((box, corner))
        yield place
        waiting = [*refused, *waiting[_TRIED:]]


def _agrees(place: Place, box: Box) -> bool:
    """Whether the place's values are within the box, as far as it has any."""
    return all(
        at not in place or ((low is None or place[at] > low) and (high is None or place[at] <= high))
        for at, low, high in box
    )


def _keeps(place: Place, corner: Place, last: int) -> bool:
    """Whether a row at this place still tests the last split on the way to the leaf, which no other leaf may test."""
    return place.get(last, corner[last]) == corner[last]


def _corner(box: Box, columns: Mapping[int, Column], *, upper: bool) -> Place:
    """For each bounded column the greatest value within, or the least, that its dtype holds."""
    return {
        at: float(_up_to(high, columns[at].compared))
        if high is not None and (upper or low is None)
        else float(_above(low or 0.0, columns[at].compared))
        for at, low, high in box
    }


def _up_to(high: float, dtype: np.dtype[Any]) -> float | np.floating[Any]:
    if dtype.kind in "biu":
        return float(np.floor(high))
    value = np.asarray(high).astype(dtype)
    return np.nextafter(value, dtype.type(-np.inf)) if float(value) > high else float(value)


def _above(low: float, dtype: np.dtype[Any]) -> float | np.floating[Any]:
    if dtype.kind in "biu":
        return float(np.floor(low)) + 1
    value: NDArray[Any] = np.asarray(low).astype(dtype)
    return float(value) if float(value) > low else np.nextafter(value, dtype.type(np.inf))
