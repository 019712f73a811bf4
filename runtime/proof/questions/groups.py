"""Groups of questions with an origin in common: how many there are, and how as many as the budget allows are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.questions import known as rows_known
from shiplift.runtime.proof.questions.column import Candidates, Column, ColumnKind
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.tensor import TensorSpec

_SEVERAL, _TIES, _SAMPLED = 400, 400, 2_000  # rows that can be made of these kinds, which have no end
_TIMES, _REPEATED = 8, 400  # a special value is put into so many known rows, unless that makes more rows of its origin
_ONCE = ("threshold", "id")
_MOST = {"id": 60}  # few: they are far from what is usual in a column of other numbers, and so are the answers
_WEIGHTS = {"threshold": 4.0, "id": 0.5}
_CHANGED = 4  # columns of a row at most, where several are changed at once


@dataclass(frozen=True, kw_only=True)
class QuestionGroup:
    """`available` questions, called `label` in reports; `make` makes the first so many. `weight` is its share."""

    label: str
    available: int
    make: Callable[[int], tuple[Questions, ...]]
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Known:
    """A column with its kind, its special values by origin, and the rows that its values are put into."""

    column: Column
    kind: ColumnKind
    special: Candidates


def of_source(
    origin: str, rows: Mapping[str, NDArray[Any]], specs: tuple[TensorSpec, ...], rng: np.random.Generator
) -> QuestionGroup:
    """Rows as they are known; a part of them at random if not all may be asked."""

    def make(count: int) -> tuple[Questions, ...]:
        at = rows_known.some(total, count, rng)
        return (Questions(inputs=rows_known.pick(rows, specs, at), origins=(origin,) * len(at)),)

    total = rows_known.count(rows)
    return QuestionGroup(label=f"{origin} rows", available=total, make=make, weight=4.0)


def of_special_values(columns: Sequence[Known], bases: Arrays, rng: np.random.Generator) -> list[QuestionGroup]:
    """For each origin its special values, each in a known row that is otherwise unchanged; columns take turns."""
    origins: dict[str, list[tuple[str, Column, NDArray[Any]]]] = {}
    for each in columns:
        for origin, values in each.special.items():
            if len(values):
                origins.setdefault(origin.partition(":")[0], []).append((origin, each.column, values))
    return [_of_values(origin, parts, bases, rng) for origin, parts in origins.items()]


def _of_values(
    origin: str, parts: list[tuple[str, Column, NDArray[Any]]], bases: Arrays, rng: np.random.Generator
) -> QuestionGroup:
    sizes = [len(values) for _, _, values in parts]
    part = np.repeat(np.arange(len(parts)), sizes)
    rank = np.concatenate([np.arange(size) for size in sizes])
    available = sum(sizes)
    if origin not in _ONCE:
        available = max(available, min(_TIMES * available, _REPEATED))
    available = min(available, _MOST.get(origin, available))
    order = np.resize(np.argsort(rank, kind="stable"), available)

    def make(count: int) -> tuple[Questions, ...]:
        rows, taken = drawn(bases, count, rng), order[:count]
        for at in np.unique(part[taken]):
            _, column, values = parts[at]
            places = np.flatnonzero(part[taken] == at)
            column.put(rows[column.input], places, values[rank[taken][places]])
        return (Questions(inputs=rows, origins=tuple(parts[at][0] for at in part[taken])),)

    return QuestionGroup(label=f"rows for {origin!r}", available=available, make=make, weight=_WEIGHTS.get(origin, 1.0))


def of_several(columns: Sequence[Known], bases: Arrays, rng: np.random.Generator) -> QuestionGroup:
    """Known rows with special values in two to four columns at once."""
    lists = [[v for origin, v in each.special.items() if len(v) and origin not in _MOST] for each in columns]
    full = [(each.column, values) for each, values in zip(columns, lists, strict=True) if values]

    def make(count: int) -> tuple[Questions, ...]:
        rows = drawn(bases, count, rng)
        for at in range(count):
            for which in rng.choice(len(full), int(rng.integers(2, min(_CHANGED, len(full)) + 1)), replace=False):
                column, special = full[which]
                values = special[int(rng.integers(len(special)))]
                column.put(rows[column.input], np.array([at]), values[rng.integers(len(values), size=1)])
        return (Questions(inputs=rows, origins=("several",) * count),)

    return QuestionGroup(
        label="rows with several special values", available=_SEVERAL if len(full) > 1 else 0, make=make
    )


def of_ties(columns: Sequence[Known], bases: Arrays, rng: np.random.Generator) -> QuestionGroup:
    """Rows that are on a threshold, or next to one, in every column that has any."""
    split = [
        (each.column, values)
        for each in columns
        for origin, values in each.special.items()
        if origin.startswith("threshold:") and len(values)
    ]

    def make(count: int) -> tuple[Questions, ...]:
        rows = drawn(bases, count, rng)
        for column, values in split:
            column.put(rows[column.input], np.arange(count), values[rng.integers(0, len(values), count)])
        return (Questions(inputs=rows, origins=("tie",) * count),)

    return QuestionGroup(label="rows on thresholds of all columns", available=_TIES if len(split) > 1 else 0, make=make)


def of_range(columns: Sequence[Known], bases: Arrays, rng: np.random.Generator) -> QuestionGroup:
    """Rows whose columns are drawn one by one, each from its own range."""

    def make(count: int) -> tuple[Questions, ...]:
        rows = drawn(bases, count, rng)
        for each in columns:
            column = each.column
            column.put(rows[column.input], np.arange(count), each.kind.sample(column, count, rng))
        return (Questions(inputs=rows, origins=("range",) * count),)

    return QuestionGroup(label="rows across the range", available=_SAMPLED, make=make, weight=2.0)


def drawn(bases: Arrays, count: int, rng: np.random.Generator) -> Arrays:
    """Known rows at random, as copies."""
    at = rng.integers(0, rows_known.count(bases), count)
    return {name: array[at] for name, array in bases.items()}
