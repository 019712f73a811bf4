"""The score of segmentations: how well the predicted area of each class covers exactly the expected one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.task_metric import Mismatch, TaskMetric, first

_MASKS = (
    "a first output of a class per pixel (integers, (samples, height, width)) or of scores (floats, (samples, classes, "
    "height, width)), and as labels the expected class per pixel (integers, (samples, height, width)), where negative "
    "numbers, and 255 in uint8, do not count"
)
_VOID = 255  # in uint8 masks: pixels that do not count, by the convention of Pascal VOC and Cityscapes
_MOST_CLASSES = 4096


def _areas(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    """The intersection and the union of both areas in pixels, per sample and class: (samples, classes) each."""
    actual, expected = _masks(outputs, labels)
    counted = expected >= 0
    if labels.dtype == np.uint8:
        counted &= expected != _VOID
    known = [mask[counted].max(initial=0) for mask in (actual, expected)]
    classes = int(max(known)) + 1
    if classes > _MOST_CLASSES:
        raise Mismatch(f"there are {classes} classes, the limit is {_MOST_CLASSES}")
    overlap, union = np.zeros((2, len(actual), classes))
    for at, (predicted, true, valid) in enumerate(zip(actual, expected, counted, strict=True)):
        predicted, true = predicted[valid], true[valid]  # noqa: PLW2901 - this sample's pixels that count
        overlap[at] = np.bincount(true[predicted == true], minlength=classes)
        union[at] = np.bincount(predicted, minlength=classes) + np.bincount(true, minlength=classes) - overlap[at]
    return overlap, union


def _masks(outputs: Arrays, labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    output = first(outputs)
    if output.dtype.kind == "f" and output.ndim == 4:
        output = output.argmax(axis=1) if output.shape[1] > 1 else output[:, 0] > 0.5
    if labels.ndim == 4 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if output.ndim == 4 and output.shape[1] == 1:
        output = output[:, 0]
    if any(mask.dtype.kind not in "biu" or mask.ndim != 3 for mask in (output, labels)) or output.shape != labels.shape:
        raise Mismatch
    actual, expected = output.astype(np.int64), labels.astype(np.int64)
    if (actual < 0).any():
        raise Mismatch("a predicted class is negative")
    return actual, expected


def _mean_iou(overlap: NDArray[np.float64], union: NDArray[np.float64]) -> float:
    """The mean over the classes that are predicted or expected anywhere."""
    areas = union.sum(axis=0)
    there = areas > 0
    return float((overlap.sum(axis=0)[there] / areas[there]).mean()) if there.any() else float("nan")


MEAN_IOU = TaskMetric(takes=_MASKS, rows=_areas, score=_mean_iou)
