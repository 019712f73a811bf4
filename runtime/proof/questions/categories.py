"""Columns of categories: texts or numbers of which the model knows a list."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.proof.questions.column import Candidates, Column, distinct, texts
from shiplift.runtime.proof.questions.integers import held
from shiplift.runtime.proof.questions.numbers import fitting, takes_missing

_UNSEEN = ("never seen", "", " ", "Ünseen", "0", "-1", "nan", "None", "a" * 300)
_SEVERAL = 40  # a column of texts with no more distinct values, each of which recurs, holds categories
_UNSEEN_SHARE = 0.05  # of sampled values


class Categories:
    """Values of a list: each of them, others, and texts that differ by case, spaces or accents alone."""

    def recognises(self, column: Column) -> bool:
        """Whether the model has a list of categories, or known texts recur."""
        return column.shape == () and column.dtype.kind != "b" and len(_seen(column)) > 0

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Seen categories in turn with unseen ones."""
        seen = _seen(column)
        if column.datatype == "BYTES":
            return {"category": texts(_in_turn(seen.tolist(), [*_UNSEEN, *_varied(seen.tolist(), rng)]))}
        marks = [mark for mark in column.facts.sentinels if not isinstance(mark, str)]
        asked = _in_turn(seen.tolist(), [*_others(seen.tolist()), *marks])
        missing = [math.nan] if takes_missing(column) else []
        return {"category": _typed(asked, column), "missing": _typed(missing, column)}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Known values and seen categories, and a few unseen."""
        share, known = rng.random(count), np.asarray(column.known).ravel().astype(column.dtype)
        values = rng.choice(_seen(column), count)
        if len(known):
            values = np.where(share < 0.5, rng.choice(known, count), values)
        rare = rng.choice(self.candidates(column, rng)["category"], count)
        return np.where(share > 1 - _UNSEEN_SHARE, rare, values)


def _seen(column: Column) -> NDArray[Any]:
    """The model's categories that the column can hold; without any, known texts if they recur."""
    told = column.facts.categories
    if column.datatype != "BYTES":
        return _typed([value for value in told if not isinstance(value, str)], column)
    return texts([str(value) for value in told]) if told else _recurring(column)


def _recurring(column: Column) -> NDArray[Any]:
    values = [str(value) for value in np.asarray(column.known).ravel()]
    few = not column.facts.words and len(set(values)) <= min(_SEVERAL, len(values) // 2)
    return texts(sorted(values) if few else [])


def _typed(numbers: list[Any], column: Column) -> NDArray[Any]:
    """Those of the numbers that the column can hold, each once."""
    if column.dtype.kind in "iu":
        return held([int(number) for number in numbers if number == np.floor(number)], column.dtype)
    return distinct(fitting(np.array(numbers, np.float64), column.dtype))


def _in_turn(first: list[Any], second: list[Any]) -> list[Any]:
    """One of each list in turn, then the rest of the longer."""
    pairs = [value for pair in zip(first, second, strict=False) for value in pair]
    shorter = min(len(first), len(second))
    return [*pairs, *first[shorter:], *second[shorter:]]


def _varied(own: list[str], rng: np.random.Generator) -> list[str]:
    """A few categories with another case, with spaces around them, or cut."""
    some = [own[at] for at in rng.permutation(len(own))[:4]]
    return [form for text in some for form in (text.upper(), text.lower(), f"{text} ", f" {text}", text[:-1])]


def _others(numbers: list[Any]) -> list[Any]:
    """Numbers that are no category: beyond both ends, and between two."""
    gaps = sorted(set(range(int(min(numbers)), int(max(numbers)) + 1)[:1000]) - set(numbers))
    return [max(numbers) + 1, min(numbers) - 1, max(numbers) + 1000, *gaps[:2]]
