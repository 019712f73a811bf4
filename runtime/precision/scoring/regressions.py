"""Scores of predicted numbers against expected ones."""

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.task_metric import TaskMetric, library, numbers

_LIKE_OUTPUT = "a first output of numbers, and as labels the expected output: numbers of the same shape"
_Pair = NDArray[np.float64]


def _absolute(outputs: Arrays, labels: _Pair) -> Rows:
    actual, expected = numbers(outputs, labels)
    return (np.abs(actual - expected).mean(axis=1),)


def _squared(outputs: Arrays, labels: _Pair) -> Rows:
    actual, expected = numbers(outputs, labels)
    return (((actual - expected) ** 2).mean(axis=1),)


def _root(squared: _Pair) -> float:
    return float(np.sqrt(squared.mean()))


def _percentage(outputs: Arrays, labels: _Pair) -> Rows:
    actual, expected = numbers(outputs, labels)
    if not np.isfinite(actual).all() or not np.isfinite(expected).all():
        return (np.full(len(actual), np.nan),)
    metric = library("sklearn.metrics").mean_absolute_percentage_error
    return (metric(expected.T, actual.T, multioutput="raw_values"),)  # each column is a sample


def _r2(actual: _Pair, expected: _Pair) -> float:
    if len(expected) < 2 or not np.isfinite(actual).all() or not np.isfinite(expected).all():
        return float("nan")
    return float(library("sklearn.metrics").r2_score(expected, actual))


MAE = TaskMetric(takes=_LIKE_OUTPUT, rows=_absolute)
RMSE = TaskMetric(takes=_LIKE_OUTPUT, rows=_squared, score=_root)
R2 = TaskMetric(takes=_LIKE_OUTPUT, rows=numbers, score=_r2)
MAPE = TaskMetric(takes=_LIKE_OUTPUT, rows=_percentage)
