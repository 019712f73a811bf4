"""Where rows with a missing value go in the trees of scikit-learn: skl2onnx sends all of them right."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

_FIELD = "nodes_missing_value_tracks_true"


def keep(model: onnx.ModelProto, estimator: Any) -> onnx.ModelProto:
    """The converted model, with the branches for missing values of the estimator's trees.

    A tree of the graph is one of the estimator's if its features and thresholds are the same.
    """
    branches = {_key(tree.feature, tree.threshold): tree.missing_go_to_left for tree in _trees(estimator, set())}
    for node in model.graph.node if branches else ():
        if node.op_type.startswith("TreeEnsemble"):
            _set(node, branches)
    return model


def _set(node: onnx.NodeProto, branches: dict[bytes, NDArray[Any]]) -> None:
    fields = {each.name: each for each in node.attribute}
    of_tree = np.array(fields["nodes_treeids"].ints)
    features, thresholds = np.array(fields["nodes_featureids"].ints), np.array(fields["nodes_values"].floats)
    leaf = np.array(fields["nodes_modes"].strings) == b"LEAF"
    left = np.array(fields[_FIELD].ints)
    for tree in np.unique(of_tree):
        at = np.flatnonzero(of_tree == tree)
        key = _key(np.where(leaf, -2, features)[at], np.where(leaf, -2.0, thresholds)[at])
        left[at] = np.where(leaf[at], 0, branches.get(key, left[at]))
    fields[_FIELD].ints[:] = left.tolist()


def _key(features: NDArray[Any], thresholds: NDArray[Any]) -> bytes:
    """A tree's features and thresholds, these rounded down to float32 as skl2onnx writes them."""
    nearest = thresholds.astype(np.float32)
    down = np.where(nearest > thresholds, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    return features.astype(np.int64).tobytes() + down.astype(np.float32).tobytes()


def _trees(model: Any, seen: set[int]) -> Iterator[Any]:
    """The fitted trees of an estimator, and of whatever it is made of."""
    if id(model) in seen or isinstance(model, str | bytes):
        return
    seen.add(id(model))
    if hasattr(model, "missing_go_to_left"):
        yield model
    elif isinstance(model, list | tuple | dict | np.ndarray):
        parts = model.values() if isinstance(model, dict) else model
        for part in () if getattr(parts, "dtype", np.dtype(object)).kind != "O" else parts:
            yield from _trees(part, seen)
    elif hasattr(model, "get_params"):
        yield from _trees(vars(model), seen)
        if hasattr(model, "tree_"):
            yield from _trees(model.tree_, seen)
