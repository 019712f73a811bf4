"""What a fitted model says about its columns, as a record of limited size."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shiplift.runtime.model.reading.found import Found, Values, together
from shiplift.runtime.model.reading.leaves import boxes
from shiplift.runtime.model.reading.reader import ModelReader
from shiplift.runtime.model.reading.transformers import plain
from shiplift.runtime.records import facts as limits
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

Column = tuple[str, int | None]  # the input, and the place on its second axis; None: all of the input


def facts_of(
    model: Any, inputs: tuple[TensorSpec, ...], categories: Mapping[str, Sequence[Any]] | None = None
) -> ModelFacts:
    """What a fitted model of the columns of a data frame, or of one matrix, says about them.

    A frame's columns are the `inputs`, each (-1, 1); they match the model's names, else their order. `categories` are
    those that are known otherwise, by the column's name.
    """
    floats = {spec.datatype for spec in inputs if spec.datatype in ("FP32", "FP64")}
    found = ModelReader(np.dtype(np.float32 if floats == {"FP32"} else np.float64)).predictor(model)
    columns = _columns(inputs)
    names = {name: at for at, (name, index) in enumerate(columns) if index is None}
    known = {names[name]: plain(values) for name, values in (categories or {}).items() if name in names}
    return recorded(together([found.at(_places(model, columns)), Found(categories=known)]), inputs, columns)


def recorded(found: Found, inputs: tuple[TensorSpec, ...], columns: Sequence[Column]) -> ModelFacts:
    """What was found of these columns as a record, whose size has limits."""
    edges = found.edges()
    most = min(limits.MAX_THRESHOLDS, limits.MAX_VALUES // max(1, len(edges)))
    told = [column for column in range(len(columns)) if _tells(found, edges, column)]
    kept, note = boxes(found.trees)
    order = {column: at for at, column in enumerate(told)}
    return ModelFacts(
        inputs=inputs,
        columns=tuple(_facts(found, column, *columns[column], _some(edges.get(column), most)) for column in told),
        boxes=tuple(tuple((order[at], low, high) for at, low, high in box) for box in kept),
        notes=tuple(filter(None, (*found.notes, note, *_cut(edges, most)))),
    )


def _columns(inputs: tuple[TensorSpec, ...]) -> list[Column]:
    """Columns by their places: each input of a frame, or those of the one matrix."""
    if len(inputs) == 1 and len(inputs[0].shape) == 2 and inputs[0].shape[1] != 1:
        return of_matrix(inputs[0])
    return [(spec.name, None) for spec in inputs]


def of_matrix(spec: TensorSpec) -> list[Column]:
    """The columns of a matrix; none if their number is not known."""
    return [(spec.name, at) for at in range(max(0, spec.shape[1]))]


def _places(model: Any, columns: Sequence[Column]) -> dict[int, int]:
    """Where each of the model's columns is among these."""
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    own = [name for name, _ in columns]
    if names and set(names) <= set(own):
        return {at: own.index(name) for at, name in enumerate(names)}
    return {at: at for at in range(len(columns))}


def _tells(found: Found, edges: Mapping[int, Values], column: int) -> bool:
    told = (edges, found.categories, found.sentinels, found.words, found.tables, found.missing, found.infinite)
    return any(column in each for each in told)


def _facts(found: Found, column: int, name: str, index: int | None, thresholds: Values) -> ColumnFacts:
    return ColumnFacts(
        input=name,
        index=index,
        thresholds=tuple(thresholds.tolist()),
        categories=tuple(found.categories.get(column, ()))[: limits.MAX_CATEGORIES],
        sentinels=tuple(found.sentinels.get(column, ()))[:16],
        words=_spread(found.words.get(column, ()), limits.MAX_WORDS),
        table_rows=found.tables.get(column),
        missing=found.missing.get(column),
        infinite=found.infinite.get(column),
    )


def _some(values: Values | None, most: int) -> Values:
    """At most so many of the values, all over their range."""
    if values is None:
        return np.empty(0)
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).astype(int)]


def _spread(words: tuple[str, ...], most: int) -> tuple[str, ...]:
    """At most so many words: those that aren't ASCII first, then others all over the alphabet."""
    ordered = sorted(words, key=str.isascii)
    special = [word for word in ordered if not word.isascii()][:most]
    plain = [word for word in ordered if word.isascii()]
    left = most - len(special)
    return (*special, *plain[:: max(1, -(-len(plain) // left) if left else len(plain) + 1)][:left])


def _cut(edges: Mapping[int, Values], most: int) -> Iterator[str]:
    total = sum(len(values) for values in edges.values())
    if (kept := sum(min(len(values), most) for values in edges.values())) < total:
        yield f"Of the model's {total} thresholds, {kept} were read."
