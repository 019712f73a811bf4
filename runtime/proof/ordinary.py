"""The magnitude that a row's tolerance is relative to: that of answers to ordinary rows, not of far-fetched questions.

A question may be a million times what the model was trained on, and so are the terms that a graph adds up for it, in
FP32. Its answer may then be off by as much more. If such rows decided what is usual, an answer to an ordinary row could
be off that much, too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import NONE, Questions
from shiplift.runtime.proof.tolerances import NOISE_FACTOR, OF_ZEROS, USUAL, largest_in_rows, usual_magnitude

ORDINARY = frozenset({"example", "validation", "recorded", "range"})  # origins of rows like those of training
_Floats = NDArray[np.float64]
_GROSS = 100.0  # times the usual tolerance


def with_usual(sets: Mapping[str, tuple[Questions, Answers]]) -> dict[str, Answers]:
    """The answers to each set of rows, with the magnitudes of their outputs that are usual for such rows.

    For an ordinary row that is the magnitude of ordinary answers. For another one it grows with the row's inputs, up to
    the magnitude of all answers.
    """
    largest = _joined(_sizes(rows.inputs) for rows, _ in map(_ordinary, sets.values()) if rows.origins)
    ordinary, everything = (_usual(map(pick, sets.values())) for pick in (_ordinary, lambda each: each))
    return {
        name: replace(right, usual=_of(right, ordinary, everything, _stretch(questions.inputs, largest)))
        for name, (questions, right) in sets.items()
    }


def with_usual_far(far: Answers, known: Answers, rounded: Arrays) -> Answers:
    """The answers to rows far from all others, with a magnitude for each row: its largest, or what is usual of `known`.

    It is made so much larger that only gross differences count, such as an overflow, since such rows are no reason to
    limit a form whose last places differ. `rounded` is how far off the original itself is, (rows,) by output, where
    that is known: see `proof.rounding`.
    """
    usual: Arrays = {}
    for name, low in _usual([(NONE, known)]).items():
        array = far.outputs[name]
        if array.reshape(len(array), -1).shape[1] == low.size:
            usual[name] = _GROSS * np.maximum(low[None, :], largest_in_rows(array)[:, None])
            if name in rounded:
                usual[name] = usual[name] + rounded[name][:, None] * (NOISE_FACTOR / USUAL)
    return replace(far, noise=known.noise, usual=usual)


def _of(right: Answers, ordinary: Arrays, everything: Arrays, stretch: _Floats) -> Arrays:
    """By output, (rows, columns). Of an output whose shape depends on the row's, none."""
    usual: Arrays = {}
    for name, array in right.outputs.items():
        low, high = ordinary.get(name), everything.get(name)
        width = array.reshape(len(array), -1).shape[1]
        if low is not None and high is not None and low.size == high.size == width:
            times = stretch[: len(array), None]
            known = np.minimum(low[None, :] * times, np.maximum(low, high)[None, :])
            usual[name] = np.maximum(known, _of_rounding(low, right.noise.get(name), times)).astype(np.float32)
    return usual


def _of_rounding(low: _Floats, noise: _Floats | None, times: _Floats) -> _Floats:
    """What is usual in columns that hold nothing but rounding, (rows, columns); 0.0 in others.

    Zero would be right there, such as the imaginary part of a spectrum's first term. Such a column is compared as one
    of zeros, for a row that is so many `times` as large, (rows, 1), as one of larger numbers; but never beyond what
    is usual in the output's other columns.
    """
    if noise is None or noise.size != low.size:
        return np.zeros((len(times), low.size))
    rounding = (low > 0) & (noise.reshape(-1) * NOISE_FACTOR >= low)
    others = low[~rounding & (low > 0)]
    typical = float(np.median(others)) if others.size else 0.0
    return np.where(rounding[None, :], np.minimum(OF_ZEROS * typical * times, typical), 0.0)


def _ordinary(rows: tuple[Questions, Answers]) -> tuple[Questions, Answers]:
    """The ordinary rows of a set, with their answers."""
    questions, right = rows
    at = [row for row, origin in enumerate(questions.origins[: len(right.errors)]) if origin in ORDINARY]
    return questions.take(at), right.take(at)


def _usual(rows: Iterable[tuple[Questions, Answers]]) -> Arrays:
    """The usual magnitude in each column, (columns,) by output, of the answers with the first one's shape."""
    found: dict[str, list[_Floats]] = {}
    for _, right in rows:
        for name, array in right.outputs.items():
            if array.dtype.kind == "f" and right.answered.any():
                values = array[right.answered].astype(np.float64)
                found.setdefault(name, []).append(values.reshape(len(values), -1))
    alike = {name: [each for each in parts if each.shape[1] == parts[0].shape[1]] for name, parts in found.items()}
    return {name: usual_magnitude(np.concatenate(parts)) for name, parts in alike.items()}


def _stretch(inputs: Arrays, largest: Arrays) -> _Floats:
    """How many times the largest ordinary value each row has, (rows,), in the column where that is most; at least 1."""
    stretch = np.ones(len(next(iter(inputs.values()))))
    for name, sizes in _sizes(inputs).items():
        most = largest.get(name)
        if most is not None and most.shape[1] == sizes.shape[1]:
            with np.errstate(over="ignore"):
                times = sizes / np.where(most > 0, most, 1.0)
            stretch = np.maximum(stretch, times.max(axis=1, initial=1.0))
    return stretch


def _sizes(inputs: Arrays) -> Arrays:
    """The magnitudes of all floats and integers, (rows, columns) by input; what is not finite has none."""
    numbers = {name: array for name, array in inputs.items() if array.dtype.kind in "iuf"}
    return {
        name: np.abs(np.where(np.isfinite(array), array, 0).astype(np.float64)).reshape(len(array), -1)
        for name, array in numbers.items()
    }


def _joined(parts: Iterable[Arrays]) -> Arrays:
    """The largest in each column, (1, columns) by input, of the parts with the first one's shape."""
    largest: Arrays = {}
    for part in parts:
        for name, sizes in part.items():
            most = largest.setdefault(name, sizes.max(axis=0, keepdims=True))
            if most.shape[1] == sizes.shape[1]:
                largest[name] = np.maximum(most, sizes.max(axis=0, keepdims=True))
    return largest
