"""Which single values the original refuses, and from where on: an answered row is asked again with one value changed.

The questions leave out NaN and infinities where nobody knows whether a model takes them, and they change several values
of a row. Here a row that is refused differs from an answered one in a single value, which so is to blame. Where numbers
are refused, bisection finds the last of them. Of what is answered, the answers are forgotten: what is served need not
answer such values alike.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.guards.seen import SeenInput
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask, rows_of, together

_PLACES = 64  # columns of an input that are changed
_LARGE = (1e39, 1e308)  # too large for FP32, which some models compute in; too large for nearly any sum
_STEPS = 80  # of a bisection: FP64 has as many values as 64 halvings leave, and a few on the way are rounded
_SPECIAL = (("missing", np.nan), ("infinite", np.inf), ("infinite", -np.inf))


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """Rows that the original refuses, each for one value, and its errors; `taken` are such rows that it answers."""

    questions: Questions
    answers: Answers
    taken: Questions


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """A value to put at a place of an input."""

    input: str
    column: int | None
    origin: str
    value: Any


def refusals(
    ask: Ask,
    rows: Arrays,
    right: Answers,
    *,
    narrow: bool,
    batches: bool,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Refusals | None:
    """Asks an answered one of the `rows`, to which the original's answers are `right`, with single values changed.

    `narrow`: what is served tells only values apart that differ in FP32. None: nothing was refused.
    """
    end = clock() + seconds
    base = _base(rows, right)
    if base is None:
        return None
    inputs = [SeenInput.of(name, [array], right.answered) for name, array in rows.items() if array.dtype.kind in "iuf"]
    probes = [probe for seen in inputs for probe in (*_special(seen, narrow), *_refused(seen))]
    if not probes:
        return None
    asked = _joined([_changed(base, probe) for probe in probes])
    answers = answers_to(ask, asked, batches=batches, seconds=seconds / 2, clock=clock)
    found = [(probe, error) for probe, error in zip(probes, answers.errors, strict=False) if error]
    if not found:
        return None
    taken = [probe for probe, error in zip(probes, answers.errors, strict=False) if not error]
    search = _Search(ask=ask, base=base, narrow=narrow, in_time=lambda: clock() < end, seen=set())
    for probe, error in [each for each in found if each[0].origin == "range"]:
        if last := search.last(probe):
            found.append((last, error))
    refused, errors = [probe for probe, _ in found], tuple(error for _, error in found)
    return Refusals(
        questions=_questions(base, refused),
        answers=Answers(outputs={}, errors=errors),
        taken=_questions(base, taken),
    )


def _questions(base: Arrays, probes: list[_Probe]) -> Questions:
    rows = [_changed(base, probe) for probe in probes]
    inputs = _joined(rows) if rows else rows_of(base, [])
    return Questions(inputs=inputs, origins=tuple(probe.origin for probe in probes))


def _base(rows: Arrays, right: Answers) -> Arrays | None:
    """The first answered row without NaN and infinities."""
    finite = [np.isfinite(each).reshape(len(each), -1).all(axis=1) for each in rows.values() if each.dtype.kind == "f"]
    usable = np.flatnonzero(np.logical_and.reduce([right.answered, *finite]))
    return rows_of(rows, usable[:1]) if len(usable) else None


def _special(seen: SeenInput, narrow: bool) -> Iterator[_Probe]:
    """NaN, infinities and very large numbers in each column of floats, or in a few all over a wide input."""
    if seen.dtype.kind != "f":
        return
    wide = seen.dtype == np.float64 and not narrow
    large = _LARGE if wide else (float(np.finfo(np.float16 if seen.dtype == np.float16 else np.float32).max),)
    values = (*_SPECIAL, *(("range", sign * size) for size in large for sign in (1, -1)))
    for column in _some(seen.columns):
        for origin, value in values:
            yield _Probe(input=seen.name, column=column, origin=origin, value=value)


def _refused(seen: SeenInput) -> Iterator[_Probe]:
    """Values of refused rows that are beyond all answered ones: the nearest on each side."""
    for at, column in enumerate(seen.columns):
        for values in (np.sort(seen.low[seen.below[:, at], at])[-1:], np.sort(seen.high[seen.above[:, at], at])[:1]):
            yield from (_Probe(input=seen.name, column=column, origin="range", value=value) for value in values)


def _some(columns: tuple[int | None, ...]) -> list[int | None]:
    return [columns[at] for at in np.unique(np.linspace(0, len(columns) - 1, min(len(columns), _PLACES)).astype(int))]


@dataclass(frozen=True, kw_only=True)
class _Search:
    """The search for the last value that is refused; those `seen` are tried first, since columns are often alike."""

    ask: Ask
    base: Arrays
    narrow: bool
    in_time: Callable[[], bool]
    seen: set[Any]

    def last(self, probe: _Probe) -> _Probe | None:
        """The refused value that is next to one which is taken, between the probe's and the base's; None: not found."""
        kind = self.base[probe.input].dtype
        kind = np.dtype(np.float32) if self.narrow and kind == np.float64 else kind
        taken, refused = kind.type(_at(self.base, probe)), kind.type(probe.value)
        for value in [each for each in self.seen if type(each) is type(taken) and _between(taken, each, refused)]:
            if self._refuses(probe, value) and not self._refuses(probe, _next(value, taken)):
                return _valued(probe, value)
        for _ in range(_STEPS):
            middle = _middle(taken, refused)
            if middle in (taken, refused):
                self.seen.add(refused)
                return _valued(probe, refused)
            taken, refused = (taken, middle) if self._refuses(probe, middle) else (middle, refused)
        return None

    def _refuses(self, probe: _Probe, value: Any) -> bool:
        """Whether the original raises. Out of time it seems to take all, and the search ends at what is known."""
        return self.in_time() and bool(together(self.ask, _changed(self.base, _valued(probe, value))).errors[0])


def _between(taken: Any, value: Any, refused: Any) -> bool:
    return bool(min(taken, refused) < value < max(taken, refused))


def _next(value: Any, to: Any) -> Any:
    if isinstance(value, np.floating):
        return np.nextafter(value, to)
    return type(value)(int(value) + (1 if to > value else -1))


def _middle(taken: Any, refused: Any) -> Any:
    if isinstance(taken, np.floating):
        return _of_order((_order(taken) + _order(refused)) // 2, taken.dtype)
    return type(taken)((int(taken) + int(refused)) // 2)


def _order(value: Any) -> int:
    """A float's place among all of its type: 0 for both zeros, 1 for the least above."""
    bits = int(value.view(f"i{value.itemsize}"))
    return bits if bits >= 0 else -(bits & ((1 << (8 * value.itemsize - 1)) - 1))


def _of_order(order: int, dtype: np.dtype[Any]) -> Any:
    magnitude = np.array(abs(order), dtype=f"i{dtype.itemsize}").view(dtype)[()]
    return -magnitude if order < 0 else magnitude


def _at(base: Arrays, probe: _Probe) -> Any:
    return base[probe.input].reshape(1, -1)[0, probe.column or 0]


def _valued(probe: _Probe, value: Any) -> _Probe:
    return _Probe(input=probe.input, column=probe.column, origin=probe.origin, value=value)


def _changed(base: Arrays, probe: _Probe) -> Arrays:
    """The row with the value at the probe's place, or in the first element of an input without columns."""
    changed: NDArray[Any] = base[probe.input].copy()
    changed.reshape(1, -1)[0, probe.column or 0] = probe.value
    return base | {probe.input: changed}


def _joined(rows: list[Arrays]) -> Arrays:
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
