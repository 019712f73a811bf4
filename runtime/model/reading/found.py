"""What a part of a model says about the columns that it takes, by their places, and how that moves to other columns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

MAX_NODES = 1_000_000  # of all trees of an ensemble
LEAF, OTHER = -1, -2  # in place of a feature: of no split, and of one by something else than a number

Values = NDArray[np.float64]
Move = Callable[
    [int, Values], tuple[int, Values] | None
]  # thresholds of a column as those of another; None: they can't


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A tree as arrays by node: rows whose `feature` is up to `bound` go left. The first node is the root."""

    feature: NDArray[np.int64]
    bound: Values
    left: NDArray[np.int64]
    right: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found, by the place of the column. `thresholds` are greatest values of the lower side."""

    thresholds: Mapping[int, Values] = field(default_factory=dict)
    categories: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    sentinels: Mapping[int, tuple[float | str, ...]] = field(default_factory=dict)
    words: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    tables: Mapping[int, int] = field(default_factory=dict)
    missing: Mapping[int, bool] = field(default_factory=dict)
    infinite: Mapping[int, bool] = field(default_factory=dict)
    trees: tuple[Tree, ...] = ()
    notes: tuple[str, ...] = ()

    def edges(self) -> dict[int, Values]:
        """All thresholds, those of trees among them, each once and rising."""
        columns: dict[int, list[Values]] = {column: [values] for column, values in self.thresholds.items()}
        for tree in self.trees:
            for column in np.unique(tree.feature[tree.feature >= 0]).tolist():
                columns.setdefault(column, []).append(tree.bound[tree.feature == column])
        return {column: np.unique(np.concatenate(values)) for column, values in columns.items()}

    def at(self, places: Mapping[int, int]) -> "Found":
        """The same of the columns that `places` names, under the places it gives them; the others are left out."""
        return self.moved(lambda column, values: (places[column], values) if column in places else None).keyed(places)

    def keyed(self, places: Mapping[int, int]) -> "Found":
        """What isn't about thresholds, moved to other places."""
        return replace(
            self,
            categories=_keyed(self.categories, places),
            sentinels=_keyed(self.sentinels, places),
            words=_keyed(self.words, places),
            tables=_keyed(self.tables, places),
            missing=_keyed(self.missing, places),
            infinite=_keyed(self.infinite, places),
        )

    def moved(self, move: Move) -> "Found":
        """Thresholds as those of the columns that `move` names; those that it can't move are left out."""
        edges = self.edges()
        new = {column: move(column, values) for column, values in edges.items()}
        thresholds: dict[int, list[Values]] = {}
        for column, values in self.thresholds.items():
            if (to := new[column]) is not None:
                thresholds.setdefault(to[0], []).append(to[1][np.searchsorted(edges[column], values)])
        kept = {column: _finite(np.concatenate(values)) for column, values in thresholds.items()}
        return replace(self, thresholds=kept, trees=tuple(_moved(tree, edges, new) for tree in self.trees))


class Reading(Protocol):
    """How readers read what is within a model; `dtype` is that of its numbers."""

    dtype: np.dtype[Any]

    def predictor(self, model: Any) -> Found:
        """What a model says about the columns that it takes."""
        ...

    def before(self, transformer: Any, found: Found) -> Found:
        """What a transformer says about the columns that it takes, and what was `found` of those that it returns."""
        ...


def of_trees(trees: Sequence[Tree]) -> Found:
    """What trees say; of very many only some are read, all over the ensemble."""
    nodes = sum(len(tree.feature) for tree in trees)
    step = max(1, -(-nodes // MAX_NODES))
    some = tuple(trees[::step])
    return Found(trees=some, notes=(f"Of {len(trees)} trees, {len(some)} were read.",) if step > 1 else ())


def together(parts: Iterable[Found]) -> Found:
    """Findings about the same columns as one; a column takes missing values if every part that says so takes them."""
    found = tuple(parts)
    thresholds: dict[int, list[Values]] = {}
    for part in found:
        for column, values in part.thresholds.items():
            thresholds.setdefault(column, []).append(values)
    return Found(
        thresholds={column: np.unique(np.concatenate(values)) for column, values in thresholds.items()},
        categories=_joined([part.categories for part in found]),
        sentinels=_joined([part.sentinels for part in found]),
        words=_joined([part.words for part in found]),
        tables=_least([part.tables for part in found]),
        missing=_all([part.missing for part in found]),
        infinite=_all([part.infinite for part in found]),
        trees=tuple(tree for part in found for tree in part.trees),
        notes=tuple(dict.fromkeys(note for part in found for note in part.notes)),
    )


def _finite(values: Values) -> Values:
    return np.unique(values[np.isfinite(values)])


def _moved(tree: Tree, edges: Mapping[int, Values], new: Mapping[int, tuple[int, Values] | None]) -> Tree:
    feature, bound = tree.feature.copy(), tree.bound.copy()
    for column, to in new.items():
        nodes = tree.feature == column
        feature[nodes] = OTHER if to is None else to[0]
        if to is not None:
            bound[nodes] = to[1][np.searchsorted(edges[column], tree.bound[nodes])]
    feature[(feature >= 0) & ~np.isfinite(bound)] = OTHER
    return replace(tree, feature=feature, bound=bound)


def _keyed(values: Mapping[int, Any], places: Mapping[int, int]) -> dict[int, Any]:
    return {places[column]: value for column, value in values.items() if column in places}


def _joined(parts: list[Mapping[int, tuple[Any, ...]]]) -> dict[int, tuple[Any, ...]]:
    columns = dict.fromkeys(column for part in parts for column in part)
    return {column: tuple(dict.fromkeys(v for part in parts for v in part.get(column, ()))) for column in columns}


def _all(parts: list[Mapping[int, bool]]) -> dict[int, bool]:
    columns = dict.fromkeys(column for part in parts for column in part)
    return {column: all(part.get(column, True) for part in parts) for column in columns}


def _least(parts: list[Mapping[int, int]]) -> dict[int, int]:
    columns = dict.fromkeys(column for part in parts for column in part)
    return {column: min(part[column] for part in parts if column in part) for column in columns}
