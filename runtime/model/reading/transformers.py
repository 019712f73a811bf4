"""Readers of scikit-learn's transformers: what they say of the columns that they take, and how thresholds pass them."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.reading.found import Found, Reading, together
from shiplift.runtime.model.reading.rounding import last_up_to
from shiplift.runtime.model.reading.scikit_learn import through


def unknown(transformer: Any, found: Found, reading: Reading) -> Found:
    """A transformer that mixes columns, or that is not known: what is behind it says nothing about what it takes."""
    told = bool(found.trees or found.thresholds or found.categories)
    note = f"What the model does behind {type(transformer).__name__} was not read."
    notes = (*found.notes, note) if told else found.notes
    if hasattr(transformer, "__sklearn_tags__") and not transformer.__sklearn_tags__().input_tags.allow_nan:
        width = range(int(getattr(transformer, "n_features_in_", 0)))
        return Found(missing=dict.fromkeys(width, False), infinite=dict.fromkeys(width, False), notes=notes)
    return Found(notes=notes)


def scaler(transformer: Any, found: Found, reading: Reading) -> Found:
    """Each column by a rising function of its own, such as its distance from the mean."""
    edges = found.edges()
    width, rows = int(transformer.n_features_in_), max((len(values) for values in edges.values()), default=0)
    bounds = np.full((rows, width), np.inf)
    for column, values in edges.items():
        bounds[: len(values), column] = values
    inverse = last_up_to(lambda values: _transformed(transformer, values), bounds, reading.dtype) if rows else bounds
    moved = found.moved(lambda column, values: (column, inverse[: len(values), column]))
    return replace(moved, infinite=dict.fromkeys(range(width), False))


def _transformed(transformer: Any, values: NDArray[Any]) -> NDArray[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns without names, and of overflows
        return np.asarray(transformer.transform(values))


def function(transformer: Any, found: Found, reading: Reading) -> Found:
    """A function of numpy, such as `log1p`, is one of each element; of others but a check nothing is known."""
    called = getattr(transformer.func, "func", transformer.func)  # of a partial
    if called is None or getattr(called, "__name__", "") == "check_array":
        return found
    read = scaler if isinstance(called, np.ufunc) else unknown
    return read(transformer, found, reading)


def selection(transformer: Any, found: Found, reading: Reading) -> Found:
    """Some of the columns."""
    chosen = np.flatnonzero(transformer.get_support()).tolist()
    width = range(int(transformer.n_features_in_))
    rest = dict.fromkeys(set(width) - set(chosen), bool(transformer.__sklearn_tags__().input_tags.allow_nan))
    return together([found.at(dict(enumerate(chosen))), Found(missing=rest, infinite=dict.fromkeys(width, False))])


def imputer(transformer: Any, found: Found, reading: Reading) -> Found:
    """Missing values, or the value that stands for them, become others; the rest stays as it is."""
    width = range(int(transformer.n_features_in_))
    statistics = np.asarray(getattr(transformer, "statistics_", np.zeros(len(width))), object)
    kept = [at for at in width if transformer.keep_empty_features or not _is_nan(statistics[at])]
    mark = transformer.missing_values
    named = isinstance(mark, str) or (isinstance(mark, float | int) and not _is_nan(mark))
    behind = found.at(dict(enumerate(kept)))
    return replace(
        behind,
        sentinels=dict.fromkeys(width, (mark,)) if named else behind.sentinels,
        missing=dict.fromkeys(width, _is_nan(mark) or mark is None),
        infinite=dict.fromkeys(width, False),
    )


def encoder(transformer: Any, found: Found, reading: Reading) -> Found:
    """Categories become numbers: which ones it saw."""
    own = {at: plain(values) for at, values in enumerate(transformer.categories_)}
    missing = {at: any(_is_nan(value) for value in values) for at, values in enumerate(transformer.categories_)}
    return Found(categories=own, missing=missing, infinite=dict.fromkeys(own, False), notes=found.notes)


def bins(transformer: Any, found: Found, reading: Reading) -> Found:
    """Bins of numbers: a value on an edge is in the upper bin."""
    edges = {
        at: np.nextafter(np.asarray(values, np.float64)[1:-1], -np.inf)
        for at, values in enumerate(transformer.bin_edges_)
    }
    return Found(thresholds=edges, missing=dict.fromkeys(edges, False), infinite=dict.fromkeys(edges, False))


def binarizer(transformer: Any, found: Found, reading: Reading) -> Found:
    """A threshold for all columns; a value on it is 0."""
    width = range(int(transformer.n_features_in_))
    return Found(
        thresholds=dict.fromkeys(width, np.array([transformer.threshold], np.float64)),
        missing=dict.fromkeys(width, False),
        infinite=dict.fromkeys(width, False),
    )


def vectorizer(transformer: Any, found: Found, reading: Reading) -> Found:
    """The words of a vocabulary; one that hashes words has none."""
    return Found(words={0: plain(sorted(map(str, getattr(transformer, "vocabulary_", {}))))}, notes=found.notes)


def pipeline(transformer: Any, found: Found, reading: Reading) -> Found:
    """Several transformers, one behind the other."""
    return through([step for _, step in transformer.steps], found, reading)


def column_transformer(transformer: Any, found: Found, reading: Reading) -> Found:
    """Transformers beside each other, each of some columns."""
    parts = []
    for name, step, _ in transformer.transformers_:
        taken = transformer._transformer_to_input_indices.get(name, [])
        given = range(*transformer.output_indices_[name].indices(10**9))
        if step == "drop":
            continue
        part = reading.before(step, found.at({at: place for place, at in enumerate(given)}))
        parts.append(part.at(dict(enumerate(map(int, taken)))))
    return together(parts)


def union(transformer: Any, found: Found, reading: Reading) -> Found:
    """Transformers beside each other, all of the same columns."""
    parts, start = [], 0
    for _, step in transformer.transformer_list:
        if step == "drop":
            continue
        width = len(found.missing) if step == "passthrough" else len(step.get_feature_names_out())
        places = {start + at: at for at in range(width)}
        parts.append(reading.before(step, found.at(places)))
        start += width
    return together(parts)


def _is_nan(value: Any) -> bool:
    """Whether a value is NaN, None or pandas' NA: none of them equals itself, or is anything."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))


def plain(values: Iterable[Any]) -> tuple[Any, ...]:
    """Categories as plain values, without missing ones and what no client can send."""
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    return tuple(
        item for item in items if (isinstance(item, bool | int | float) or _is_text(item)) and not _is_nan(item)
    )


def _is_text(item: Any) -> bool:
    """Whether it is a text that UTF-8 can carry, and arrays of texts keep: they drop zeros at its end."""
    return isinstance(item, str) and "\0" not in item and not any("\ud800" <= each <= "\udfff" for each in item)
