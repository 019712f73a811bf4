"""Rows on both sides of a jump in the original's answers, found by bisection.

A tree's thresholds are known where the trees can be read. Behind a scaler, a binning or a sum of such models they are
not, and a graph in FP32 moves them: a value that is beside one is then answered from the other side. Two values that
have no other between them, and whose answers are far apart, are such a place, whatever the model is made of.

Where a distance or a sum of several columns jumps, its last places decide, which differ between any two ways to add.
That is a boundary as that of labels is: see `boundaries`.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shiplift.runtime.model.tensors import Arrays, concatenate
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.bisection import SMALL, Apart, Flags, asked, bisected, far
from shiplift.runtime.proof.boundaries import clear, of_labels
from shiplift.runtime.proof.paths import NumberColumn, Path, Values, columns_of, from_rows, movable, ordinary
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask, alone, count_of, rows_of, together

_KEPT, _KEPT_LATE = 48, 8  # pairs; fewer of a model that is slow
_NUDGE = 16  # last places by which other columns are moved: an axis's own threshold stays where it is
_NONE = Questions(inputs={}, origins=())


def jumps(
    ask: Ask, rows: Arrays, right: Answers, *, coarse: bool, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Questions:
    """Rows on both sides of where answers change: next to each other where they jump, clearly apart where labels do.

    `right` are the original's answers to `rows`. `coarse`: columns of FP64 have only values that FP32 holds. There are
    none for a model without numbers among its inputs, or that raises on the way; nor beyond the time.
    """
    start, rng = clock(), np.random.default_rng(0)
    known = rows_of(rows, np.flatnonzero(right.answered))
    columns = columns_of(known, coarse=coarse) if count_of(known) else ()
    usual = ordinary(known, columns) if columns else np.arange(0)
    columns = movable(ask, rows_of(known, usual), columns, rng) if len(usual) else ()
    if not columns:
        return _NONE
    known, answers = rows_of(known, usual), right.take(np.flatnonzero(right.answered)[usual])
    found = _of_floats(ask, known, answers, columns, rng, lambda: clock() < start + seconds / 2)
    found.append(of_labels(ask, known, answers, columns, rng, lambda: clock() < start + seconds))
    parts = [part for part in found if part is not None and count_of(part)]
    if not parts:
        return _NONE
    inputs = concatenate(parts)
    return Questions(inputs=inputs, origins=("jump",) * count_of(inputs))


def _of_floats(
    ask: Ask,
    rows: Arrays,
    right: Answers,
    columns: Sequence[NumberColumn],
    rng: np.random.Generator,
    in_time: Callable[[], bool],
) -> list[Arrays | None]:
    """Pairs of rows with neighbouring values in one column and floats that are far apart; clear ones if it computes."""
    apart = far(right, SMALL)
    path = bisected(ask, from_rows(rows, columns, rng), apart, in_time) if apart else None
    if apart is None or path is None:
        return []
    answers = [asked(ask, path.with_values(values)) for values in (path.low, path.high)]
    if answers[0] is None or answers[1] is None:
        return []
    path = path.taken(np.flatnonzero(apart(answers[0], answers[1]))[: _KEPT if in_time() else _KEPT_LATE])
    sides = [path.with_values(values) for values in (path.low, path.high)]
    firm = np.logical_and.reduce([_firm(ask, path, values, columns, apart) for values in (path.low, path.high)])
    computed = path.taken(np.flatnonzero(~firm))
    pairs = {name: np.concatenate([side[name][firm] for side in sides]) for name in rows}
    return [pairs, clear(ask, computed, right) if len(computed.low) else None]


def _firm(ask: Ask, path: Path, values: Values, columns: Sequence[NumberColumn], apart: Apart) -> Flags:
    """Which rows are answered alone as together, and the same if other columns move by some last places."""
    if not len(values):
        return np.zeros(0, dtype=np.bool_)
    rows = path.with_values(values)
    by_itself, others = alone(ask, rows), [together(ask, each) for each in (rows, *_nudged(path, rows, columns))]
    if not all(each.answered.all() for each in (by_itself, *others)):
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(~np.logical_or.reduce([apart(by_itself.outputs, each.outputs) for each in others]))


def _nudged(path: Path, rows: Arrays, columns: Sequence[NumberColumn]) -> Iterator[Arrays]:
    """The rows with the floats in all columns but the path's a little larger, and a little smaller."""
    for way in (1, -1):
        inputs = {name: array.copy() for name, array in rows.items()}
        for each in columns:
            if each.dtype.kind == "f":
                inputs[each.input][:, each.place] *= each.dtype.type(1 + way * _NUDGE * np.finfo(each.dtype).eps)
        for row, column in enumerate(path.columns):
            inputs[column.input][row, column.place] = rows[column.input][row, column.place]
        yield inputs
