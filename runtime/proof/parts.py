"""What can differ between two sets of answers: errors, an output's name, type or shape, and its values. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import text_of
from shiplift.runtime.model.text.comparing import text_difference
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.tolerances import NOISE_FACTOR, Floats, resolution_of, smallest_of, tolerances
from shiplift.runtime.records.proof import ColumnDifference

_SHOWN = 60  # characters of an answer
_KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats"}

Flags = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ComparedPart:
    """One thing to compare: in which rows it is `wrong`, how to tell of such a row, and which column is the worst.

    `tell` returns fields of a counterexample.
    """

    wrong: Flags
    tell: Callable[[int], dict[str, Any]]
    worst: ColumnDifference | None = None


def parts(original: Answers, served: Answers) -> Iterator[ComparedPart]:
    """Everything that is compared: errors first, then each output of the rows that both answered."""
    yield _errors(original, served)
    both = original.answered & served.answered
    if not both.any():
        return
    for name in dict.fromkeys([*original.outputs, *served.outputs]):
        if name in original.outputs and name in served.outputs:
            yield _output(name, both, original, served)
        else:
            yield _whole(name, both, *("has it" if name in each.outputs else "lacks it" for each in (original, served)))


def _errors(original: Answers, served: Answers) -> ComparedPart:
    """Rows of which only one side has an answer."""

    def tell(row: int) -> dict[str, Any]:
        original_said, served_said = (
            f"raises {each.errors[row]}" if each.errors[row] else "answers" for each in (original, served)
        )
        return {"original": original_said, "served": served_said}

    return ComparedPart(wrong=original.answered != served.answered, tell=tell)


def _whole(name: str, both: Flags, original: str, served: str) -> ComparedPart:
    """An output that differs in its name, type or shape, so in every row."""
    return ComparedPart(wrong=both, tell=lambda _: {"output": name, "original": original, "served": served})


def _output(name: str, both: Flags, right: Answers, given: Answers) -> ComparedPart:
    original, served = right.outputs[name], given.outputs[name]
    if _kind(original) != _kind(served) or _row_shape(original) != _row_shape(served):
        said = (f"answers {_kind(array)} of shape {list(array.shape[1:])}" for array in (original, served))
        return _whole(name, both, *said)
    expected, actual = (array.reshape(len(array), -1) for array in (original, served))
    if _kind(original) == "floats":
        return _floats(name, both, expected, actual, right)
    if _kind(original) == "texts":
        expected, actual = _texts(expected), _texts(actual)
        actual = _with_same_numbers(expected, actual, right.noise.get(name))
    off = np.asarray(expected != actual, dtype=np.bool_) & both[:, None]
    return ComparedPart(wrong=np.any(off, axis=1), tell=lambda row: _told(name, row, off, expected, actual))


def _with_same_numbers(expected: NDArray[Any], actual: NDArray[Any], noise: Floats | None) -> NDArray[Any]:
    """The actual texts, but the expected ones where both are JSON whose numbers are within the noise; None: equal."""
    if noise is None:
        return actual
    allowed = NOISE_FACTOR * float(noise.max())
    pairs = zip(expected.ravel(), actual.ravel(), strict=True)
    same = [text_difference(np.array([left]), np.array([right])) <= allowed for left, right in pairs]
    return np.where(np.array(same, dtype=np.bool_).reshape(expected.shape), expected, actual)


def _floats(name: str, both: Flags, original: NDArray[Any], served: NDArray[Any], right: Answers) -> ComparedPart:
    expected, actual = original.astype(np.float64), served.astype(np.float64)
    with np.errstate(over="ignore"):  # what is too large for the type that is served is infinite in it
        same = original.astype(served.dtype) == served
    same |= (expected == actual) | (np.isnan(expected) & np.isnan(actual)) | ~both[:, None]
    with np.errstate(invalid="ignore"):
        distances = np.where(same, 0.0, np.abs(expected - actual))
    distances[np.isnan(distances)] = np.inf  # NaN against a number
    resolution, noise, usual = resolution_of(original, served), right.noise.get(name), right.usual.get(name)
    allowed = tolerances(expected, both, resolution, noise, usual) + smallest_of(original, served)
    off = distances > allowed

    def tell(row: int) -> dict[str, Any]:
        column = int(np.flatnonzero(off[row])[0])
        measured = {"difference": float(distances[row, column]), "tolerance": float(allowed[row, column])}
        return _told(name, row, off, original, served) | (measured if np.isfinite(distances[row, column]) else {})

    return ComparedPart(wrong=np.any(off, axis=1), tell=tell, worst=_worst(name, distances, allowed))


def _worst(name: str, distances: Floats, allowed: Floats) -> ColumnDifference | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = np.where((distances > 0) & np.isfinite(distances), distances / allowed, 0.0)
    if not excess.any():
        return None
    row, column = np.unravel_index(int(excess.argmax()), excess.shape)
    difference, tolerance = float(distances[row, column]), float(allowed[row, column])
    return ColumnDifference(output=name, column=int(column), difference=difference, tolerance=tolerance)


def _told(name: str, row: int, off: Flags, original: NDArray[Any], served: NDArray[Any]) -> dict[str, Any]:
    column = int(np.flatnonzero(off[row])[0])
    return {
        "output": name,
        "column": column if off.shape[1] > 1 else None,
        "original": f"answers {_shown(original[row, column])}",
        "served": f"answers {_shown(served[row, column])}",
    }


def _kind(array: NDArray[Any]) -> str:
    """What is alike: widths may differ, since a graph computes in few of them."""
    return _KINDS.get(array.dtype.kind, "texts")


def _row_shape(array: NDArray[Any]) -> tuple[int, ...]:
    """A row's shape without axes of size 1: a column is (rows,) or (rows, 1)."""
    return tuple(size for size in array.shape[1:] if size != 1)


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    return np.array([text_of(item, errors="replace") for item in array.ravel()], dtype=object).reshape(array.shape)


def _shown(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
