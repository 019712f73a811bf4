"""How rows are asked: alone, in a batch among neighbours that differ, and from several threads at once.

All of it is a way to call an `Ask`, so that the original, the exported graph and a packaged server are asked alike.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.guest.python.values import all_missing, as_served
from shiplift.runtime.model.tensors import Arrays, concatenate
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.records.proof import Counterexample


class Busy(Exception):
    """An `Ask` gets no answer now, for reasons that have nothing to do with the row."""


Ask = Callable[[Arrays], Arrays]  # outputs by name, with as many rows as the inputs; raises whatever it does
_SHOWN = 200  # characters of an error
_TEXTS = "OSU"
MOST_NEIGHBOURS = 3  # in a batch: each row takes every place in it, so twice as many take four times as long


def alone(ask: Ask, inputs: Arrays) -> Answers:
    """Each row by itself."""
    return joined([together(ask, rows_of(inputs, [row])) for row in range(count_of(inputs))])


def together(ask: Ask, inputs: Arrays) -> Answers:
    """All rows in one batch: an error is that of each. So is an answer without a row for each of them.

    Raises:
        Busy: there is no answer now.
    """
    count = count_of(inputs)
    try:
        outputs = {name: np.asarray(value) for name, value in ask(inputs).items()}
    except Busy:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:_SHOWN]
        return Answers(outputs={}, errors=(f"{type(error).__name__}: {reason}",) * count)
    if problem := _problem(outputs, count):
        return Answers(outputs={}, errors=(problem,) * count)
    return Answers(outputs=outputs, errors=("",) * count)


def from_threads(ask: Ask, inputs: Arrays, threads: int) -> Answers:
    """Each row by itself, from this many threads at once."""
    with ThreadPoolExecutor(threads) as pool:
        return joined(list(pool.map(lambda row: together(ask, rows_of(inputs, [row])), range(count_of(inputs)))))


def with_neighbours(ask: Ask, inputs: Arrays, expected: Answers, origins: Sequence[str]) -> Counterexample | None:
    """The first row that is answered differently in a batch than `expected`, which is what it is answered alone.

    Rows are asked in batches of at most `MOST_NEIGHBOURS`, in which each takes every place. Those that raise alone are
    left out, since a batch is answered or not as a whole. The counterexample names the neighbour that made the
    difference, if one does by itself.
    """
    for batch in _turned(np.flatnonzero(expected.answered).tolist()):
        right = expected.take(batch)
        seen = together(ask, rows_of(inputs, batch))
        setting = f"in a batch of {len(batch)}"
        found = compare(right, seen, [origins[row] for row in batch], setting=setting).first
        if found:
            at = found.row
            changed = found.model_copy(update={"row": batch[at]})
            return _with_culprit(ask, inputs, expected, changed, [*batch[at + 1 :], *batch[:at]])
    return None


def count_of(inputs: Arrays) -> int:
    """How many rows there are."""
    return len(next(iter(inputs.values())))


def _turned(rows: Sequence[int]) -> Iterator[list[int]]:
    """Batches of these rows, each of which begins with another of its rows; and one of equal rows."""
    for start in range(0, len(rows), MOST_NEIGHBOURS):
        batch = list(rows[start : start + MOST_NEIGHBOURS])
        yield from (batch[at:] + batch[:at] for at in range(len(batch)))
        if len(batch) == MOST_NEIGHBOURS:
            yield [batch[0], batch[0]]  # as two clients send it


def _with_culprit(
    ask: Ask, inputs: Arrays, expected: Answers, found: Counterexample, others: Sequence[int]
) -> Counterexample:
    """The same difference with the first neighbour that makes one by itself."""
    right = expected.take([found.row])
    for other in others:
        pair = together(ask, rows_of(inputs, [found.row, other]))
        seen = compare(right, pair.take([0]), [found.origin]).first
        if seen:
            return seen.model_copy(update={"row": found.row, "setting": f"in a batch with row {other}"})
    return found


def rows_of(inputs: Arrays, rows: Sequence[int] | NDArray[np.intp]) -> Arrays:
    """These rows, in this order."""
    return {name: array[np.asarray(rows, dtype=np.intp)] for name, array in inputs.items()}


def _problem(outputs: Arrays, count: int) -> str:
    """Why outputs are no answer to that many rows; empty if they are."""
    for name, array in outputs.items():
        if array.dtype.kind not in "biufOSU" or (array.dtype.kind == "O" and not _all_texts(array)):
            return f"{name!r} has the type {array.dtype}"
        if array.ndim == 0 or len(array) != count:
            return f"{name!r} has shape {list(array.shape)} for {count} rows: its first axis is not a batch"
    return "" if outputs else "no output"


def _all_texts(array: NDArray[Any]) -> bool:
    return all(isinstance(item, str | bytes) for item in array.ravel())


def joined(parts: Sequence[Answers]) -> Answers:
    """Consecutive rows as one. A row without an answer has zeros; one of another type than the others is an error."""
    like = next((part.outputs for part in parts if part.outputs), None)
    if like is None:
        return Answers(outputs={}, errors=tuple(error for part in parts for error in part.errors))
    types = common_types([part.outputs for part in parts])
    kept = [in_types(_like(part, like), types) for part in parts]
    like = next((part.outputs for part in kept if part.outputs), like)
    outputs = concatenate([part.outputs or _blank(like, len(part.errors)) for part in kept])
    return Answers(outputs=outputs, errors=tuple(error for part in kept for error in part.errors))


def _blank(like: Arrays, rows: int) -> Arrays:
    """This many rows of zeros, or of empty texts."""
    return {name: np.zeros((rows, *array.shape[1:]), dtype=array.dtype) for name, array in like.items()}


def _like(part: Answers, like: Arrays) -> Answers:
    """The answers, if they are those outputs with as many axes; else errors."""
    if part.outputs and (missing := sorted(like.keys() - part.outputs.keys())):
        return Answers(outputs={}, errors=(f"there is no {missing[0]!r}, which the first row has",) * len(part.errors))
    for name, array in part.outputs.items():
        expected = like.get(name)
        if expected is None or expected.ndim != array.ndim:
            said = "no" if expected is None else f"{expected.dtype} with {expected.ndim} axes"
            problem = f"{name!r} is {array.dtype} with {array.ndim} axes, the first row has {said}"
            return Answers(outputs={}, errors=(problem,) * len(part.errors))
    return part


def in_types(answers: Answers, types: Mapping[str, np.dtype[Any]]) -> Answers:
    """The answers in the types of their outputs; a row that would say something else in these is an error."""
    outputs, errors = {}, list(answers.errors)
    for name, array in answers.outputs.items():
        dtype = types.get(name, array.dtype)
        served = [as_served(array, dtype)]
        if not _one_type(served[0].dtype, dtype):
            served = [as_served(array[at : at + 1], dtype) for at in range(len(array))]
        for at in (at for at, row in enumerate(served) if not _one_type(row.dtype, dtype)):
            errors[at] = errors[at] or f"{name!r} is {array.dtype}, the first row has {dtype}"
            served[at] = np.zeros(served[at].shape, dtype)
        outputs[name] = np.concatenate(served)
    return Answers(outputs=outputs if not all(errors) else {}, errors=tuple(errors))


def _one_type(left: np.dtype[Any], right: np.dtype[Any]) -> bool:
    """Whether two types are the same; those of texts of different lengths are."""
    return left == right or {left.kind, right.kind} <= set(_TEXTS)


def common_types(answers: Sequence[Arrays]) -> dict[str, np.dtype[Any]]:
    """The type of each output in which all answers say what they say: the first one's, if there is none.

    A row whose number is missing is answered with NaN, whatever the others are.
    """
    names = dict.fromkeys(name for outputs in answers for name in outputs)
    return {name: _common([outputs[name] for outputs in answers if name in outputs]) for name in names}


def _common(arrays: Sequence[NDArray[Any]]) -> np.dtype[Any]:
    known = [array for array in arrays if not all_missing(array)]
    kinds = {array.dtype.kind for array in known}
    if known and kinds <= set(_TEXTS):
        return known[0].dtype if len({array.dtype for array in arrays}) == 1 else np.dtype(object)
    floats = [array for array in arrays if array.dtype.kind == "f"]
    logical = kinds <= set("bf") and all((np.isnan(array) | (array == 0) | (array == 1)).all() for array in floats)
    wider = np.result_type(*{array.dtype for array in arrays}) if kinds <= set("biuf") else arrays[0].dtype
    alike = kinds <= set("iuf") or (floats and logical)
    fits = alike and (floats or wider.kind != "f") and as_served(arrays[0], wider).dtype == wider
    return wider if fits else arrays[0].dtype  # no float holds all of INT64 and UINT64
