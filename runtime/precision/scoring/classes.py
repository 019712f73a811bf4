"""The classes and the probabilities in a model's outputs, and the classes in its labels, made comparable."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.precision import Metric


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


def classes_of(metric: Metric, actual: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
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


def _scores(metric: Metric, outputs: Arrays) -> NDArray[np.float64]:
    """The scores of the classes: (samples, classes), or (samples, 1) for the positive class alone."""
    scores = next((array for array in outputs.values() if array.dtype.kind == "f" and array.ndim <= 2), None)
    if scores is None:
        raise DataInvalid(
            f"metric {metric} needs an output of scores, one per class; there is none among {', '.join(outputs)}",
            do="Log a model that gives probabilities or logits, or choose another `data.metric`.",
        )
    return scores.reshape(len(scores), -1).astype(np.float64)


def probabilities(metric: Metric, outputs: Arrays) -> NDArray[np.float64]:
    """Probabilities (samples, classes), by softmax or sigmoid if the scores are none."""
    scores = _scores(metric, outputs)
    if scores.shape[1] == 1:
        positive = scores if ((scores >= 0) & (scores <= 1)).all() else 1 / (1 + np.exp(-scores))
        return np.hstack([1 - positive, positive])
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def class_numbers(metric: Metric, outputs: Arrays, labels: NDArray[Any]) -> NDArray[np.int64]:
    """The column of each sample's class; names count in alphabetical order, if there is one for each column."""
    columns = max(2, _scores(metric, outputs).shape[1])
    classes = comparable(labels.reshape(-1))
    if classes.dtype.kind == "U":
        names, numbers = np.unique(classes, return_inverse=True)
        problem = "" if len(names) == columns else f"{len(names)} names of classes"
    else:
        numbers = classes
        within = ((numbers >= 0) & (numbers < columns)).all()
        problem = "" if within else f"classes from {min(numbers)} to {max(numbers)}"
    rows = len(next(iter(outputs.values())))
    if problem or len(numbers) != rows:
        raise DataInvalid(
            f"metric {metric} needs one class per sample ({rows}), numbered as the scores (0 to {columns - 1}); "
            f"there are {problem or f'{len(numbers)} labels'}",
            do="Log class numbers (not one-hot), or choose another `data.metric`.",
        )
    return np.asarray(numbers, dtype=np.int64)


def comparable(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as integers, everything else as text."""
    if values.dtype.kind in "biuf":
        return values.astype(np.int64)
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in values], dtype=np.str_)
