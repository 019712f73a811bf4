"""Scores of embeddings against the expected ones: their direction, and their neighbours.

Even with a cosine of 0.99, a quarter of the nearest neighbours can change, so neighbours have scores of their own.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.task_metric import TaskMetric, library, numbers

_NEIGHBOURS = 10
_BLOCK = 512  # samples whose neighbours are searched at once
_VECTORS = "a first output of vectors (numbers, (samples, size)), and as labels the expected vectors, of the same shape"
_Vectors = NDArray[np.float64]


def _kept(actual: _Vectors, expected: _Vectors) -> NDArray[np.float64]:
    """Each sample's share of its ten nearest neighbours by cosine that are kept, from 0 to 1; (samples,)."""
    count = min(_NEIGHBOURS, len(actual) - 1)
    if count < 1:
        return np.full(len(actual), float("nan"))
    kept: list[float] = []
    for got, wanted in zip(_similarities(actual), _similarities(expected), strict=True):
        pairs = zip(_nearest(got, count), _nearest(wanted, count), strict=True)
        kept += [len(np.intersect1d(a, b)) / count for a, b in pairs]
    return np.array(kept)


def _gains(actual: _Vectors, expected: _Vectors) -> NDArray[np.float64]:
    """Each sample's normalised discounted gain of its ten nearest neighbours by cosine, from 0 to 1; (samples,).

    The nearest of the expected neighbours is worth ten, the tenth is worth one, and all others nothing.
    """
    count = min(_NEIGHBOURS, len(actual) - 1)
    if count < 2:
        return np.full(len(actual), float("nan"))
    metric = library("sklearn.metrics").ndcg_score
    gains: list[float] = []
    for got, wanted in zip(_similarities(actual), _similarities(expected), strict=True):
        best = _ordered(wanted, count)
        worth = np.zeros_like(wanted)
        np.put_along_axis(worth, best, np.arange(count, 0, -1, dtype=np.float64)[None, :], axis=1)
        near = _nearest(got, count)
        # Only the nearest neighbours and those that are worth something count.
        for row, candidates in enumerate(map(np.union1d, near, best)):
            scores = np.where(np.isin(candidates, near[row]), got[row, candidates], -2)[None, :]
            gains.append(float(metric(worth[row : row + 1, candidates], scores, k=count, ignore_ties=True)))
    return np.array(gains)


def _similarities(vectors: _Vectors) -> Iterator[_Vectors]:
    """The cosine of each sample with all, in blocks of samples; its cosine with itself is set below all others."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms == 0, 1, norms)
    for start in range(0, len(vectors), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(vectors)))
        similarity = unit[rows] @ unit.T
        similarity[np.arange(len(rows)), rows] = -np.inf
        yield similarity


def _nearest(similarity: _Vectors, count: int) -> NDArray[np.int64]:
    return np.argpartition(-similarity, count - 1, axis=1)[:, :count]


def _ordered(similarity: _Vectors, count: int) -> NDArray[np.int64]:
    nearest = _nearest(similarity, count)
    order = np.argsort(-np.take_along_axis(similarity, nearest, axis=1), axis=1, kind="stable")
    return np.take_along_axis(nearest, order, axis=1)


def _cosine(outputs: Arrays, labels: _Vectors) -> Rows:
    actual, expected = numbers(outputs, labels)
    norms = np.linalg.norm(actual, axis=1) * np.linalg.norm(expected, axis=1)
    return ((actual * expected).sum(axis=1) / np.where(norms == 0, 1, norms),)


def _recall(outputs: Arrays, labels: _Vectors) -> Rows:
    return (_kept(*numbers(outputs, labels)),)


def _ndcg(outputs: Arrays, labels: _Vectors) -> Rows:
    return (_gains(*numbers(outputs, labels)),)


COSINE = TaskMetric(takes=_VECTORS, rows=_cosine)
RECALL_AT_10 = TaskMetric(takes=_VECTORS, rows=_recall)
NDCG_AT_10 = TaskMetric(takes=_VECTORS, rows=_ndcg)
