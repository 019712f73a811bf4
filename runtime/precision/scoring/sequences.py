"""Scores of texts and of sequences of classes: wrong words and characters, and answers that are right as a whole.

A sequence of numbers, such as a transcript's tokens, is compared like a text whose words are the numbers. RapidFuzz
counts edits per sample, so that the rate of any set of samples is the sum of edits over the sum of lengths.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.task_metric import Mismatch, TaskMetric, first, library

_TEXTS = "a first output of texts (one per sample), and as labels the expected texts, one per sample"
_WORDS = f"{_TEXTS}; or integers (samples, length) on both sides, of which negative ones are padding"
_ANSWERS = (
    "a first output of one text per sample, of integers, or of scores whose last axis are the classes, and as labels "
    "the expected texts or integers (samples, ...), of which negative ones do not count"
)


def _texts(outputs: Arrays, labels: NDArray[Any]) -> tuple[list[str], list[str]] | None:
    """Both sides' texts, one per sample; None if neither has texts."""
    output = first(outputs)
    kinds = {array.dtype.kind in "OSU" for array in (output, labels)}
    if kinds == {False}:
        return None
    if kinds != {True} or not output.size == labels.size == len(output):
        raise Mismatch
    actual, expected = ([text_of(text).strip() for text in array.reshape(-1)] for array in (output, labels))
    return actual, expected


def _integers(outputs: Arrays, labels: NDArray[Any]) -> tuple[list[list[int]], list[list[int]]]:
    output = first(outputs)
    both = (output, labels)
    if any(array.dtype.kind not in "iu" or array.ndim != 2 for array in both) or len(output) != len(labels):
        raise Mismatch
    actual, expected = ([[item for item in row if item >= 0] for row in array.tolist()] for array in both)
    return actual, expected


def _edits(actual: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> Rows:
    distance: Callable[..., int] = library("rapidfuzz.distance.Levenshtein").distance
    edits = [distance(one, other) for one, other in zip(actual, expected, strict=True)]
    return np.array(edits, dtype=np.float64), np.array([len(part) for part in expected], dtype=np.float64)


def _word_edits(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    texts = _texts(outputs, labels)
    if texts is None:
        return _edits(*_integers(outputs, labels))
    actual, expected = texts
    return _edits([text.split() for text in actual], [text.split() for text in expected])


def _character_edits(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    texts = _texts(outputs, labels)
    if texts is None:
        raise Mismatch
    return _edits(*texts)


def _rate(edits: NDArray[np.float64], lengths: NDArray[np.float64]) -> float:
    return float(edits.sum() / lengths.sum()) if lengths.sum() else float("nan")


def _exact(outputs: Arrays, labels: NDArray[Any]) -> Rows:
    texts = _texts(outputs, labels)
    if texts is not None:
        return (np.array([one == other for one, other in zip(*texts, strict=True)], dtype=np.float64),)
    output = first(outputs)
    answers = output.argmax(axis=-1) if output.dtype.kind == "f" and output.ndim > 1 else output
    expected = labels.reshape(answers.shape) if labels.size == answers.size else labels
    whole = expected.dtype.kind in "biu" or (expected.dtype.kind == "f" and (expected == np.floor(expected)).all())
    if answers.dtype.kind not in "biu" or not whole or answers.shape != expected.shape:
        raise Mismatch
    right = (answers == expected) | (expected < 0)
    return (right.reshape(len(right), -1).all(axis=1).astype(np.float64),)


WER = TaskMetric(takes=_WORDS, rows=_word_edits, score=_rate)
CER = TaskMetric(takes=_TEXTS, rows=_character_edits, score=_rate)
EXACT_MATCH = TaskMetric(takes=_ANSWERS, rows=_exact)
