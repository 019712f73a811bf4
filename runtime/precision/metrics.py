"""Task metrics on a validation set, each with its standard error, so that a gate knows when it can't decide."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.precision import Metric

_RESAMPLES = 200  # bootstrap resamples for F1 (Efron and Tibshirani, 1993): its error has no closed form


def score(metric: Metric, outputs: Arrays, labels: NDArray[Any]) -> tuple[float, float]:
    """The metric and its standard error.

    accuracy and f1 (macro) take class numbers or texts as labels; mae and cosine take the expected first output.

    Raises:
        DataInvalid: outputs and labels can't be compared with this metric.
    """
    if metric in ("accuracy", "f1"):
        return _CLASSES[metric](*_classes(metric, predicted(outputs), labels))
    got = next(iter(outputs.values()))
    if got.dtype.kind not in "fiu" or labels.dtype.kind not in "fiub" or got.size != labels.size:
        raise DataInvalid(
            f"metric {metric} needs labels shaped like the first output {got.shape}; they are {labels.dtype} of shape "
            f"{labels.shape}",
            do="Log labels of that shape, or choose another `data.metric`.",
        )
    left, right = got.reshape(len(got), -1).astype(np.float64), labels.reshape(len(got), -1).astype(np.float64)
    return _mean_and_error(_VALUES[metric](left, right))


def class_f1(outputs: Arrays, labels: NDArray[Any], of: Any) -> tuple[float, float]:
    """The F1 of the class that the label `of` names, as macro F1 averages it, and its standard error.

    All samples count, not the class's own alone: those wrongly taken for it are its errors too.
    """
    given, wanted = (_comparable(one) for one in _classes("f1", predicted(outputs), labels))
    one = _comparable(np.asarray([of]))[0]
    said, true = given == one, wanted == one
    counts = np.array([(said & true).sum(), (said ^ true).sum(), (~said & ~true).sum()])
    drawn = np.random.default_rng(0).multinomial(len(given), counts / len(given), size=_RESAMPLES)
    return float(_f1_of(counts[None])[0]), float(np.std(_f1_of(drawn)))


def _f1_of(counts: NDArray[Any]) -> NDArray[np.float64]:
    """F1 from rows of hits, misses (of either kind) and the rest; 1 where there was nothing to find."""
    twice, misses = 2.0 * counts[:, 0], counts[:, 1]
    found: NDArray[np.float64] = np.ones(len(counts))
    np.divide(twice, twice + misses, out=found, where=twice + misses > 0)
    return found


def better(metric: Metric) -> int:
    """1 where a larger score is better, -1 where a smaller one is."""
    return -1 if metric == "mae" else 1


def predicted(outputs: Arrays) -> NDArray[Any]:
    """One class a sample: a label output as it is, else the largest of the first output's scores."""
    for name in ("label", "top_labels"):
        if name in outputs:
            return outputs[name].reshape(len(outputs[name]), -1)[:, 0]
    first = next(iter(outputs.values()))
    if first.dtype.kind != "f":
        return first.reshape(len(first), -1)[:, 0]
    flat = first.reshape(len(first), -1)
    return flat.argmax(axis=1) if flat.shape[1] > 1 else (flat[:, 0] > 0.5).astype(np.int64)


def _classes(metric: Metric, got: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predicted and expected classes, one a sample, both numbers or both text."""
    if len(got) != labels.size:
        raise DataInvalid(
            f"metric {metric} needs one class a sample ({len(got)}); there are labels of shape {labels.shape}",
            do="Log class numbers or names (not one-hot), or choose another `data.metric`.",
        )
    text = ["text" if array.dtype.kind in "OSU" else "numbers" for array in (got, labels)]
    if text[0] != text[1]:
        raise DataInvalid(
            f"the model's classes are {text[0]}, the labels are {text[1]}",
            do="Log labels as the model names its classes.",
        )
    return got, labels.reshape(-1)


def _accuracy(got: NDArray[Any], wanted: NDArray[Any]) -> tuple[float, float]:
    return _mean_and_error((_comparable(got) == _comparable(wanted)).astype(np.float64))


def _f1(got: NDArray[Any], wanted: NDArray[Any]) -> tuple[float, float]:
    left, right = _comparable(got), _comparable(wanted)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(left), size=(_RESAMPLES, len(left)))
    again = [_macro_f1(left[pick], right[pick]) for pick in picks]
    return _macro_f1(left, right), float(np.std(again))


def _macro_f1(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    classes = np.unique(np.concatenate([got, wanted]))
    hits = np.array([((got == c) & (wanted == c)).sum() for c in classes], dtype=np.float64)
    said = np.array([(got == c).sum() + (wanted == c).sum() for c in classes], dtype=np.float64)
    return float(np.mean(2 * hits / said))


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as integers, everything else as text."""
    if values.dtype.kind in "biuf":
        return values.astype(np.int64)
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in values], dtype=np.str_)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    spread = float(values.std(ddof=1)) if len(values) > 1 else float("inf")
    return float(values.mean()), spread / float(np.sqrt(len(values)))


def _cosine(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    size = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / np.where(size == 0, 1, size))


_CLASSES: dict[str, Callable[[NDArray[Any], NDArray[Any]], tuple[float, float]]] = {"accuracy": _accuracy, "f1": _f1}
_VALUES: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]] = {
    "mae": lambda left, right: np.abs(left - right).mean(axis=1),
    "cosine": _cosine,
}
