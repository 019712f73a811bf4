"""Task metrics on a validation set, with standard errors, so that a gate knows when it can't decide.

Means over samples have errors in closed form; those of the others are the spread of bootstrap resamples (Efron and
Tibshirani, 1993). ROC AUC, log loss, R2 and MAPE are scikit-learn's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring.classes import class_numbers, classes_of, comparable, predicted, probabilities
from shiplift.runtime.precision.scoring.neighbours import recall
from shiplift.runtime.records.precision import Metric

_RESAMPLES = 200


def score(metric: Metric, outputs: Arrays, labels: NDArray[Any]) -> tuple[float, float]:
    """The metric and its standard error.

    For accuracy, f1 (macro), roc_auc (one against the rest, macro) and log_loss the labels are class numbers or names;
    the latter two take the first floating output as scores, or as probabilities if it has them. For the others the
    labels are the expected first output. recall_at_10 is the share of each sample's ten nearest neighbours in the
    validation set, by cosine, that are those of the expected embeddings.

    Raises:
        DataInvalid: outputs and labels can't be compared by this metric.
    """
    if metric in _CLASSES:
        return _CLASSES[metric](*classes_of(metric, predicted(outputs), labels))
    if metric in _SCORES:
        return _bootstrapped(_SCORES[metric], probabilities(metric, outputs), class_numbers(metric, outputs, labels))
    output = next(iter(outputs.values()))
    if output.dtype.kind not in "fiu" or labels.dtype.kind not in "fiub" or output.size != labels.size:
        raise DataInvalid(
            f"metric {metric} needs labels shaped like the first output {output.shape}; they are {labels.dtype} "
            f"of shape {labels.shape}",
            do="Log labels of that shape, or choose another `data.metric`.",
        )
    rows = len(output)
    actual, expected = (array.reshape(rows, -1).astype(np.float64) for array in (output, labels))
    if metric in _WHOLE:
        return _bootstrapped(_WHOLE[metric], actual, expected)
    return _mean_and_error(_VALUES[metric](actual, expected))


def defined(metric: Metric, labels: NDArray[Any]) -> bool:
    """Whether a metric has a value for samples with such labels: for ROC AUC they have to be of two classes."""
    return metric != "roc_auc" or len(np.unique(labels.astype(str))) > 1


def class_f1(outputs: Arrays, labels: NDArray[Any], label: Any) -> tuple[float, float]:
    """The F1 of one class, as macro F1 averages it, and its standard error.

    All samples count, not only those of the class: samples wrongly predicted as the class are errors too.
    """
    actual, expected = (comparable(classes) for classes in classes_of("f1", predicted(outputs), labels))
    positive = comparable(np.asarray([label]))[0]
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


def _accuracy(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    return _mean_and_error((comparable(actual) == comparable(expected)).astype(np.float64))


def _f1(actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    predictions, labels = comparable(actual), comparable(expected)
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(labels), size=(_RESAMPLES, len(labels)))
    resampled = [_macro_f1(predictions[pick], labels[pick]) for pick in picks]
    return _macro_f1(predictions, labels), float(np.std(resampled))


def _macro_f1(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    classes = np.unique(np.concatenate([actual, expected]))
    hits = np.array([((actual == c) & (expected == c)).sum() for c in classes], dtype=np.float64)
    counts = np.array([(actual == c).sum() + (expected == c).sum() for c in classes], dtype=np.float64)
    return float(np.mean(2 * hits / counts))


def _bootstrapped(
    metric: Callable[[NDArray[Any], NDArray[Any]], float], actual: NDArray[Any], expected: NDArray[Any]
) -> tuple[float, float]:
    """A metric of all samples and the spread of its bootstrap resamples; those that it is not defined for are left out.

    Both are NaN if a number is not finite.
    """
    if not np.isfinite(actual).all() or not np.isfinite(expected).all():
        return float("nan"), float("nan")
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(expected), size=(_RESAMPLES, len(expected)))
    resampled = np.array([metric(actual[pick], expected[pick]) for pick in picks])
    return metric(actual, expected), float(np.nanstd(resampled)) if np.isfinite(resampled).any() else float("inf")


def _roc_auc(probabilities: NDArray[Any], classes: NDArray[Any]) -> float:
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415

    if len(np.unique(classes)) < 2:
        return float("nan")
    if probabilities.shape[1] == 2:
        return float(roc_auc_score(classes, probabilities[:, 1]))
    present = np.unique(classes)  # a resample may lack a class
    return float(np.mean([roc_auc_score(classes == c, probabilities[:, c]) for c in present]))


def _log_loss(probabilities: NDArray[Any], classes: NDArray[Any]) -> float:
    from sklearn.metrics import log_loss  # noqa: PLC0415

    return float(log_loss(classes, probabilities, labels=np.arange(probabilities.shape[1])))


def _rmse(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean((actual - expected) ** 2)))


def _r2(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    from sklearn.metrics import r2_score  # noqa: PLC0415

    return float(r2_score(expected, actual)) if len(expected) > 1 else float("nan")


def _mape(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    from sklearn.metrics import mean_absolute_percentage_error  # noqa: PLC0415

    return float(mean_absolute_percentage_error(expected, actual))


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    spread = float(values.std(ddof=1)) if len(values) > 1 else float("inf")
    return float(values.mean()), spread / float(np.sqrt(len(values)))


def _cosine(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return np.asarray((left * right).sum(axis=1) / np.where(norms == 0, 1, norms))


_CLASSES: dict[Metric, Callable[[NDArray[Any], NDArray[Any]], tuple[float, float]]] = {"accuracy": _accuracy, "f1": _f1}
_SCORES: dict[Metric, Callable[[NDArray[Any], NDArray[Any]], float]] = {"roc_auc": _roc_auc, "log_loss": _log_loss}
_WHOLE: dict[Metric, Callable[[NDArray[Any], NDArray[Any]], float]] = {"rmse": _rmse, "r2": _r2, "mape": _mape}
_VALUES: dict[Metric, Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]] = {
    "mae": lambda left, right: np.abs(left - right).mean(axis=1),
    "cosine": _cosine,
    "recall_at_10": recall,
}
