"""Makes the classes and probabilities in a model's outputs comparable with the classes in its labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.task_metric import Mismatch, TaskMetric, library

_CLASSES = (
    "an output with a class per sample, or with one score per class (samples, classes), and as labels one class per "
    "sample: numbers or text, as the model names them"
)
_SCORES = (
    "an output of one score per class (floats, (samples, classes), or the positive class's alone), and as labels one "
    "class per sample, numbered as the scores, or one name for each"
)


def predicted(outputs: Arrays) -> NDArray[Any]:
    """One class per sample: a label output unchanged, otherwise the largest of the first output's scores."""
    for name in ("label", "top_labels"):
        if name in outputs:
            return outputs[name].reshape(len(outputs[name]), -1)[:, 0]
    first = next(iter(outputs.values()))
    if first.dtype.kind != "f":
        return first.reshape(len(first), -1)[:, 0]
    flat = first.reshape(len(first), -1)
    return flat.argmax(axis=1) if flat.shape[1] > 1 else (flat[:, 0] > 0.5).astype(np.int64)


def classes(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    """Predicted and expected classes, one per sample, both integers or both text.

    Raises:
        Mismatch: there is not one label per sample, or one side has numbers and the other text.
    """
    actual = predicted(outputs)
    if len(actual) != labels.size:
        raise Mismatch
    kinds = ["text" if array.dtype.kind in "OSU" else "numbers" for array in (actual, labels)]
    if kinds[0] != kinds[1]:
        raise Mismatch(f"the model's classes are {kinds[0]}, the labels are {kinds[1]}")
    return comparable(actual), comparable(labels.reshape(-1))


def probabilities(outputs: Arrays) -> NDArray[np.float64]:
    """Probabilities (samples, classes); scores that are none become probabilities by softmax or sigmoid.

    Raises:
        Mismatch: no output has scores.
    """
    scores = _scores(outputs)
    if scores.shape[1] == 1:
        positive = scores if ((scores >= 0) & (scores <= 1)).all() else 1 / (1 + np.exp(-scores))
        return np.hstack([1 - positive, positive])
    if (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3):
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _scores(outputs: Arrays) -> NDArray[np.float64]:
    """The scores of the classes: (samples, classes), or (samples, 1) for the positive class alone."""
    scores = next((array for array in outputs.values() if array.dtype.kind == "f" and array.ndim <= 2), None)
    if scores is None:
        raise Mismatch("no output has scores")
    return scores.reshape(len(scores), -1).astype(np.float64)


def scored_classes(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    """The probabilities (samples, classes), and the column of each sample's class.

    Class names count in alphabetical order, if there is one for each column.

    Raises:
        Mismatch: no output has scores, or the labels don't name their columns.
    """
    likely = probabilities(outputs)
    return likely, _columns(labels.reshape(-1), *likely.shape)


def _columns(labels: NDArray[Any], samples: int, columns: int) -> NDArray[np.int64]:
    expected = comparable(labels)
    if len(expected) != samples:
        raise Mismatch(f"{len(expected)} labels for {samples} samples")
    if expected.dtype.kind == "U":
        names, numbers = np.unique(expected, return_inverse=True)
        if len(names) != columns:
            raise Mismatch(f"there are {len(names)} names of classes and {columns} scores")
        return np.asarray(numbers, dtype=np.int64)
    if not ((expected >= 0) & (expected < columns)).all():
        raise Mismatch(f"there are classes from {min(expected)} to {max(expected)}, and scores of 0 to {columns - 1}")
    return np.asarray(expected, dtype=np.int64)


def comparable(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers as integers, everything else as text."""
    if values.dtype.kind in "biuf":
        return values.astype(np.int64)
    return np.array([text_of(value) for value in values], dtype=np.str_)


def _hits(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    actual, expected = classes(outputs, labels)
    return ((actual == expected).astype(np.float64),)


def _macro_f1(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    present = np.unique(np.concatenate([actual, expected]))
    hits = np.array([((actual == c) & (expected == c)).sum() for c in present], dtype=np.float64)
    counts = np.array([(actual == c).sum() + (expected == c).sum() for c in present], dtype=np.float64)
    return float(np.mean(2 * hits / counts))


def f1_of(label: Any) -> TaskMetric:
    """The F1 of one class, as macro F1 averages it.

    All samples count, not only those of the class: samples wrongly predicted as the class are errors too.
    """
    positive = comparable(np.asarray([label]))[0]

    def score(actual: NDArray[Any], expected: NDArray[Any]) -> float:
        hit, true = actual == positive, expected == positive
        counted = int(hit.sum() + true.sum())
        return 2 * int((hit & true).sum()) / counted if counted else 1.0

    return TaskMetric(takes=_CLASSES, rows=classes, score=score)


def _roc_auc(likely: NDArray[Any], expected: NDArray[Any]) -> float:
    """One class against the rest, averaged over the classes that are present: a resample may lack one.

    The area is Mann and Whitney's statistic, computed for all classes with one ranking; scikit-learn takes 2 ms for
    each.
    """
    counts = np.bincount(expected, minlength=likely.shape[1])
    if (counts > 0).sum() < 2 or not np.isfinite(likely).all():
        return float("nan")
    columns = np.flatnonzero(counts) if likely.shape[1] > 2 else np.array([1])
    ranks = library("scipy.stats").rankdata(likely, axis=0)
    sums = np.bincount(expected, weights=ranks[np.arange(len(expected)), expected], minlength=likely.shape[1])
    own, others = counts[columns], len(expected) - counts[columns]
    return float(np.mean((sums[columns] - own * (own + 1) / 2) / (own * others)))


def _losses(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    likely, expected = scored_classes(outputs, labels)
    smallest = np.finfo(likely.dtype).eps  # scikit-learn's bound, because a probability of 0 would be an infinite loss
    return (-np.log(np.clip(likely[np.arange(len(expected)), expected], smallest, 1)),)


ACCURACY = TaskMetric(takes=_CLASSES, rows=_hits)
F1 = TaskMetric(takes=_CLASSES, rows=classes, score=_macro_f1)
ROC_AUC = TaskMetric(takes=_SCORES, rows=scored_classes, score=_roc_auc)
LOG_LOSS = TaskMetric(takes=_SCORES, rows=_losses)
