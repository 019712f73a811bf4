"""Known rows as a place to start from: those of the example's shape, few enough to hold, and their columns."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays, as_input
from shiplift.runtime.proof.questions.column import Column
from shiplift.runtime.proof.questions.question import KnownRows
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

_WIDE = 1_000  # a matrix with more columns is asked as a whole, besides the columns of which something is told
_ROWS, _BYTES = 4_000, 64 << 20  # of known rows that others are made of


def count(rows: Mapping[str, NDArray[Any]]) -> int:
    """How many rows there are."""
    return min((len(array) for array in rows.values()), default=0)


def pick(rows: Mapping[str, NDArray[Any]], specs: tuple[TensorSpec, ...], at: NDArray[np.intp]) -> Arrays:
    """The rows at these places as new arrays, in the dtypes of the inputs. Inputs that aren't there are left out."""
    return {spec.name: as_input(rows[spec.name][at], spec) for spec in specs if spec.name in rows}


def some(total: int, most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """At most `most` of `total` places, in their order: all, or as many at random."""
    if total <= most:
        return np.arange(total)
    return np.sort(rng.choice(total, most, replace=False, shuffle=False))


def row_bytes(rows: Mapping[str, NDArray[Any]]) -> int:
    """About how many bytes a row takes."""
    return sum(int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in rows.values()) or 1


def bases(known: KnownRows, specs: tuple[TensorSpec, ...], rng: np.random.Generator) -> Arrays:
    """Known rows of the example's shape, the example's first, to change values of."""
    first = pick(known.example, specs, np.arange(count(known.example)))
    most = max(1, min(_ROWS, _BYTES // row_bytes(first)))
    alike = [rows for rows in (known.validation, known.recorded) if count(rows) and _alike(rows, first)]
    picked = [first, *(pick(rows, specs, some(count(rows), most, rng)) for rows in alike)]
    return {name: np.concatenate([rows[name] for rows in picked]) for name in first}


def _alike(rows: Mapping[str, NDArray[Any]], like: Arrays) -> bool:
    return all(name in rows and rows[name].shape[1:] == array.shape[1:] for name, array in like.items())


def columns(facts: ModelFacts, rows: Arrays, *, coarse: bool = False) -> tuple[Column, ...]:
    """Every column of the inputs; an input without columns, such as an image, is one itself."""
    told = {(column.input, column.index): column for column in facts.columns}
    found = (column for spec in facts.inputs if spec.name in rows for column in _of(spec, rows[spec.name], told))
    return tuple(replace(column, coarse=coarse) for column in found)


def _of(spec: TensorSpec, known: NDArray[Any], told: Mapping[tuple[str, int | None], ColumnFacts]) -> Iterator[Column]:
    every = told.get((spec.name, None), ColumnFacts(input=spec.name))
    wide = known.ndim == 2 and known.shape[1] > _WIDE
    if wide or not _is_matrix(spec, every):
        yield Column(
            input=spec.name,
            index=None,
            name=spec.name,
            datatype=spec.datatype,
            shape=known.shape[1:],
            known=known,
            facts=every,
        )
    own = {at: told.get((spec.name, at), every) for at in range(known.shape[1])} if _is_matrix(spec, every) else {}
    for at in [at for at, facts in own.items() if not wide or facts.thresholds or facts.categories][:_WIDE]:
        yield Column(
            input=spec.name,
            index=at,
            name=spec.name if known.shape[1] == 1 else f"{spec.name}[{at}]",
            datatype=spec.datatype,
            shape=(),
            known=known[:, at],
            facts=own[at],
        )


def _is_matrix(spec: TensorSpec, facts: ColumnFacts) -> bool:
    """Whether the second axis is of columns, and not of a sequence: of any length, or of ids that a table holds."""
    return len(spec.shape) == 2 and spec.shape[1] != -1 and (spec.shape[1] == 1 or not facts.table_rows)
