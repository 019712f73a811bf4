"""Numbers far from all that are known: NaN, infinities, and magnitudes up to the end of the type, in whole tensors.

Asked where nobody knows whether the model takes them, as with networks. There an engine may compute a maximum past NaN,
or overflow in a sum that the original adds up in another order or a wider type. What differs need not cost the form:
`proof.guards.limits`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.questions.question import NONE, Questions
from shiplift.runtime.records.facts import ModelFacts

FAR = "far"
_BYTES = 8 << 20  # of all rows
_FIRST, _STEPS = 1e3, 12  # the first magnitude is so many times what is known, and the last one the type's
_PLACES = 6  # of one element that is changed
_FEW = 0.2  # of a row's elements
_DECADES = 12  # that the sizes of a row's elements span
_BITS = (53, 31, 24, 15)  # of whole numbers

Values = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """What becomes of the elements of an input of a row: those `at` these places (None: all) become `values`."""

    input: str
    values: Values
    at: int | None = None


def far(facts: ModelFacts, rows: Arrays, seed: int = 0) -> Questions:
    """Copies of the `rows`, each with numbers far away, one or all of one input or all inputs; the most telling first.

    `rows` are answered ones without NaN and infinities. None are made of inputs about which the model tells.
    """
    told = {each.input for each in facts.columns if each.missing is not None or each.infinite is not None}
    if not all(len(array) for array in rows.values()):
        return NONE
    about = {each.input for each in facts.columns if each.table_rows or each.categories} | told
    floats = [name for name, array in rows.items() if array.dtype.kind == "f" and name not in told and array[0].size]
    whole = [name for name, array in rows.items() if array.dtype.kind in "iu" and name not in about and _counts(array)]
    size = sum(array[:1].nbytes for array in rows.values())
    rng = np.random.default_rng(seed)
    single = [each for name in floats for each in _changes(name, rows[name], rng)]
    single += [each for name in whole for each in _ends(name, rows[name], rng)]
    changes: list[tuple[int, tuple[_Change, ...]]] = [(rank, (change,)) for rank, change in single]
    changes += _together({name: rows[name] for name in floats}, rng) if len(floats) > 1 else ()
    changes = sorted(changes, key=lambda change: change[0])[: _BYTES // max(size, 1)]
    if not changes:
        return NONE
    inputs = {name: array[np.arange(len(changes)) % len(array)] for name, array in rows.items()}
    for row, (_, some) in enumerate(changes):
        for change in some:
            flat = inputs[change.input][row].reshape(-1)
            flat[slice(None) if change.at is None else change.at] = change.values
    return Questions(inputs=inputs, origins=(FAR,) * len(changes))


def _changes(name: str, known: Values, rng: np.random.Generator) -> Iterator[tuple[int, _Change]]:
    """What is changed, with its rank: a lower one is asked before others if not all can be."""
    dtype, size = known.dtype, known[0].size
    places = np.unique(np.linspace(0, size - 1, min(size, _PLACES)).astype(int)).tolist()
    for rank, value in enumerate((np.nan, np.inf, -np.inf)):
        special = np.full(size, value, dtype)
        yield rank, _Change(input=name, values=special)
        yield from ((rank + place, _Change(input=name, values=special[0], at=at)) for place, at in enumerate(places))
    yield from ((4, _Change(input=name, values=each.astype(dtype))) for each in _mixed(known[0], rng))
    for rank, ends in enumerate(_steps(known)):
        for each in _shares(known, rng):
            yield 2 * rank, _Change(input=name, values=(each * _drawn(ends, rng)).astype(dtype))
        for place, (at, sign) in enumerate(zip(places, np.resize([1.0, -1.0], len(places)), strict=True)):
            yield 2 * rank + place, _Change(input=name, values=np.asarray(sign * _drawn(ends, rng), dtype), at=at)
        if size > 1:
            yield 2 * rank, _Change(input=name, values=_cancelling(known, _drawn(ends, rng), rng))


def _together(known: Arrays, rng: np.random.Generator) -> Iterator[tuple[int, tuple[_Change, ...]]]:
    """All inputs at once: what each takes alone may overflow in their product, or in the sums of an attention."""
    for rank, steps in enumerate(zip(*(_steps(array) for array in known.values()), strict=True)):
        for kind in ("largest", "signs", "any"):
            changes = []
            for (name, array), ends in zip(known.items(), steps, strict=True):
                size = array[0].size
                signs = np.ones(size) if kind == "largest" else rng.choice([-1.0, 1.0], size)
                shares = signs * (rng.random(size) if kind == "any" else 1.0)
                changes.append(_Change(input=name, values=(shares * _drawn(ends, rng)).astype(array.dtype)))
            yield 2 * rank, tuple(changes)


def _mixed(row: Values, rng: np.random.Generator) -> Iterator[Values]:
    """NaN and infinities of both signs among known numbers, infinities alone, and numbers below the smallest normal."""
    flat, specials = row.reshape(-1).astype(np.float64), np.array([np.nan, np.inf, -np.inf])
    for some in (specials, specials[1:]):
        yield np.where(rng.random(flat.size) < _FEW, rng.choice(some, flat.size), flat)
    yield np.resize(specials[1:], flat.size)
    yield rng.uniform(-1, 1, flat.size) * float(np.finfo(row.dtype).tiny)


def _shares(known: Values, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """What share of a magnitude each element has: all the same but for signs, or of any sizes, so that sums cancel."""
    shape, size = known.shape[1:], known[0].size
    yield from (np.ones(size), -np.ones(size), np.full(size, rng.uniform(0.5, 1)))
    for axis, length in enumerate(shape):
        along = np.resize([1.0, -1.0], length).reshape([-1 if at == axis else 1 for at in range(len(shape))])
        yield np.broadcast_to(along, shape).reshape(-1)
    yield rng.choice([-1.0, 1.0], size)
    yield from (rng.uniform(-1, 1, size) for _ in range(2))
    yield 10.0 ** rng.uniform(-_DECADES, 0, size) * rng.choice([-1.0, 1.0], size)
    yield np.where(rng.random(size) < rng.random(), 1.0, 0.0)
    row = known[rng.integers(len(known))].reshape(-1).astype(np.float64)
    yield row / max(float(np.abs(row).max()), 1.0)


def _cancelling(known: Values, magnitude: float, rng: np.random.Generator) -> Values:
    """Known numbers but for two, which cancel each other."""
    row: Values = known[rng.integers(len(known))].reshape(-1).copy()
    row[rng.choice(row.size, 2, replace=False)] = np.array([magnitude, -magnitude], row.dtype)
    return row


def _counts(known: Values) -> bool:
    """Whether whole numbers are more than flags, such as a mask's."""
    return bool(known[0].size and (known > 1).any())


def _ends(name: str, known: Values, rng: np.random.Generator) -> Iterator[tuple[int, _Change]]:
    """Whole numbers that are all large: one is asked by itself, but several may overflow together."""
    ends, size = np.iinfo(known.dtype), known[0].size
    large = [ends.max, *(2**bits for bits in _BITS if 2**bits < ends.max)]
    for rank, most in enumerate(large):
        least = max(ends.min, -most)
        for values in ([most], [least], [most, least], rng.choice(np.array([most, least], known.dtype), size).tolist()):
            yield rank, _Change(input=name, values=np.resize(np.array(values, known.dtype), size))


def _steps(known: Values) -> list[tuple[float, float]]:
    """Magnitudes, each with that of the next step: the end of the type alone, then down to beyond what is known."""
    most = float(np.finfo(known.dtype).max)
    first = min(_FIRST * max(float(np.abs(known).max()), 1.0), most)
    edges = np.minimum(np.geomspace(first, most, _STEPS)[::-1], most).tolist()
    return [(most, most), *((low, high) for high, low in itertools.pairwise(edges))]


def _drawn(ends: tuple[float, float], rng: np.random.Generator) -> float:
    """A magnitude in a step: each row has its own, so that what goes wrong between two steps is met."""
    low, high = np.log(ends)
    return float(min(np.exp(rng.uniform(low, high)), ends[1]))
