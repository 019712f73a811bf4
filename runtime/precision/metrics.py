"""Task metrics on a validation set, with standard errors, so that a gate knows when it can't decide."""

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

    For accuracy and f1 (macro) the labels are class numbers or names; for mae and cosine, the expected first output.

    Raises:
        DataInvalid: outputs and labels can't be compared by this metric.
    """
    if metric in ("accuracy", "f1"):
        return _CLASSES[metric](*_classes(metric, predicted(outputs), labels))
    output = next(iter(outputs.values()))
    if output.dtype.kind not in "fiu" or labels.dtype.kind not in "fiub" or output.size != labels.size:
        raise DataInvalid(
            f"metric {metric} needs labels shaped like the first output {output.shape}; they are {labels.dtype} "
            f"of shape {labels.shape}",
            do="Log labels of that shape, or choose another `data.metric`.",
        )
    rows = len(output)
    actual, expected = (array.reshape(rows, -1).astype(np.float64) for array in (output, labels))
    return _mean_and_error(_VALUES[metric](actual, expected))


def class_f1(outputs: Arrays, labels: NDArray[Any], label: Any) -> tuple[float, float]:
    """The F1 of one class, as macro F1 averages it, and its standard error.

    All samples count, not only those of the class: samples wrongly predicted as the class are errors too.
    """
    actual, expected = (_comparable(classes) for classes in _classes("f1", predicted(outputs), labels))
    positive = _comparable(np.asarray([label]))[0]
    hit, true = actual == positive, expected == positive
    counts = np.array([(hit & true).sum(), (hit ^ true).sum(), (~hit & ~true).sum()])
    resamples = np.random.default_rng(0).multinomial(len(actual), counts / len(actual), size=_RESAMPLES)
    return float(_f1_of(counts[None])[0]), float(np.std(_f1_of(resamples)))


def _f1_of(counts: NDArray[Any]) -> NDArray[np.float64]:
    """F1 from rows of true positives, errors (of either kind) and true negatives; 1 if the first two are 0."""
    doubled_hits, errors = 2.0 * counts[:, 0], counts[:, 1]
    f1: NDArray[np.float64] = np.ones(len(counts))
    np.divide(doubled_hits, doubled_hits + errors, out=f1, where=doubled_hits + errors > 0)
    return f1


def better(metric: Metric) -> int:
    """1 if a larger score is better, -1 if a smaller one is."""
    return -1 if metric == "mae" else 1


def predicted(outputs: Arrays) -> NDArray[Any]:
    """One class per sample: a label output as it is, else the largest of the first output's scores."""
    for name in ("label", "top_labels"):
        if name in outputs:
            return outputs[name].reshape(len(outputs[name]), -1)[:, 0]
    first = next(iter(outputs.values()))
    if first.dtype.kind != "f":
        return first.reshape(len(first), -1)[:, 0]
    flat = first.reshape(len(first), -1)
    return flat.argmax(axis=1) if flat.shape[1] > 1 else (flat[:, 0] > 0.5).astype(np.int64)


def _classes(metric: Metric, actual: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Predicted and expected classes, one per sample, both numbers or both text."""
    if len(actual) != labels.size:
        raise DataInvalid(
            f"metric {metric} needs one class per sample ({len(actual)}), got labels of shape {labels.shape}",
            do="Log class numbers or names (not one-hot), or choose another `data.metric`.",
        )
    kinds = ["text" if array.dtype.kind in "OSU" else "numbers" for array in (actual, labels)]
    if kinds[0] != kinds[1]:
        raise DataInvalid(
            f"the model's classes are {kinds[0]}, the labels are {kinds[1]}",
            do="Log labels the way the model names its classes.",
        )
    return actual, labels.reshape(-1)


def _accuracy(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    return _mean_and_error((_comparable(actual) == _comparable(expected)).astype(np.float64))


def _f1(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    predictions, labels = _comparable(actual), _comparable(expected)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(labels), size=(_RESAMPLES, len(labels)))
    resampled = [_macro_f1(predictions[pick], labels[pick]) for pick in picks]
    return _macro_f1(predictions, labels), float(np.std(resampled))


def _macro_f1(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    classes = np.unique(np.concatenate([actual, expected]))
    hits = np.array([((actual == c) & (expected == c)).sum() for c in classes], dtype=np.float64)
    counts = np.array([(actual == c).sum() + (expected == c).sum() for c in classes], dtype=np.float64)
    return float(np.mean(2 * hits / counts))


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as integers, everything else as text."""
    if values.dtype.kind in "biuf":
        return values.astype(np.int64)
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in values], dtype=np.str_)


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    spread = float(values.std(ddof=1)) if len(values) > 1 else float("inf")
    return float(values.mean()), spread / float(np.sqrt(len(values)))


def _cosine(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / np.where(norms == 0, 1, norms))


_CLASSES: dict[str, Callable[[NDArray[Any], NDArray[Any]], tuple[float, float]]] = {"accuracy": _accuracy, "f1": _f1}
_VALUES: dict[str, Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]] = {
    "mae": lambda left, right: np.abs(left - right).mean(axis=1),
    "cosine": _cosine,
}
