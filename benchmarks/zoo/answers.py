"""Whether production answers what MLflow answers: predictions as arrays by output name, and how far two are apart."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.model.text.comparing import text_difference

_TEXTUAL = "OSU"


def named(prediction: Any) -> Arrays:
    """A prediction of `mlflow.pyfunc` as arrays of shape (samples, ...) by output name; "" if it has no name.

    A number in place of which it has None is NaN, as in production.
    """
    if hasattr(prediction, "columns"):
        return {str(name): _array(prediction[name]) for name in prediction.columns}
    if isinstance(prediction, dict):
        return {name: _array(value) for name, value in prediction.items()}
    return {"": _array(prediction)}


def _array(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    numbers = array.dtype.kind == "O" and all(item is None or isinstance(item, int | float) for item in array.flat)
    return array.astype(np.float64) if numbers else array


def difference(expected: Arrays, actual: Arrays) -> tuple[float, float]:
    """The largest difference between two answers, and the largest of each output's relative to its largest number.

    Outputs that nothing is expected of don't count. Texts that differ, a missing output, other sizes and numbers that
    are not finite are an infinite difference.
    """
    if not expected:
        return math.inf, math.inf
    pairs = [_difference(value, _of(actual, name)) for name, value in expected.items()]
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def _of(answers: Arrays, name: str) -> NDArray[Any] | None:
    return next(iter(answers.values())) if not name and len(answers) == 1 else answers.get(name)


def _difference(expected: NDArray[Any], actual: NDArray[Any] | None) -> tuple[float, float]:
    wrong = (math.inf, math.inf)
    if actual is None or expected.size != actual.size or not expected.size:
        return wrong
    if expected.dtype.kind in _TEXTUAL or actual.dtype.kind in _TEXTUAL:
        apart = text_difference(expected, actual)
        return apart, apart
    left, right = (array.reshape(-1).astype(np.float64) for array in (expected, actual))
    largest = float(np.abs(left - right).max())
    if not math.isfinite(largest):
        return wrong
    return largest, largest / max(1.0, float(np.abs(left).max()))
