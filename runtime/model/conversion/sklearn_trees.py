"""What skl2onnx changes in the trees of scikit-learn: where missing values go, and thresholds that it rounds up."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from shiplift.runtime.model.reading.rounding import down_to_float32

_MISSING = "nodes_missing_value_tracks_true"


def rounded(estimator: Any) -> Any:
    """The estimator, or a copy whose histogram boosting has thresholds rounded down to float32.

    The graph compares float32. That changes no answer to features of float32, while half of the thresholds rounded to
    the nearest would let pass what they are to hold back.
    """
    if not any(hasattr(part, "_predictors") for part in within(estimator)):
        return estimator
    changed = copy.deepcopy(estimator)
    for part in within(changed):
        for predictor in (each for stage in getattr(part, "_predictors", ()) for each in stage):
            predictor.nodes["num_threshold"] = down_to_float32(predictor.nodes["num_threshold"])
    return changed


def with_missing(model: onnx.ModelProto, estimator: Any) -> onnx.ModelProto:
    """The converted model, with the branches for missing values of the estimator's trees; skl2onnx has them go right.

    A tree of the graph is one of the estimator's if its features and thresholds are the same.
    """
    trees = [part.tree_ for part in within(estimator) if hasattr(part, "tree_")]
    branches = {_key(tree.feature, tree.threshold): tree.missing_go_to_left for tree in trees}
    for node in model.graph.node if branches else ():
        if node.op_type.startswith("TreeEnsemble"):
            _set(node, branches)
    return model


def _set(node: onnx.NodeProto, branches: dict[bytes, NDArray[Any]]) -> None:
    fields = {each.name: each for each in node.attribute}
    of_tree = np.array(fields["nodes_treeids"].ints)
    features, thresholds = np.array(fields["nodes_featureids"].ints), np.array(fields["nodes_values"].floats)
    leaf = np.array(fields["nodes_modes"].strings) == b"LEAF"
    left = np.array(fields[_MISSING].ints)
    for tree in np.unique(of_tree):
        at = np.flatnonzero(of_tree == tree)
        key = _key(np.where(leaf, -2, features)[at], np.where(leaf, -2.0, thresholds)[at])
        left[at] = np.where(leaf[at], 0, branches.get(key, left[at]))
    fields[_MISSING].ints[:] = left.tolist()


def _key(features: NDArray[Any], thresholds: NDArray[Any]) -> bytes:
    """A tree's features and thresholds, these rounded down to float32 as skl2onnx writes them."""
    return features.astype(np.int64).tobytes() + down_to_float32(thresholds.astype(np.float64)).tobytes()


def within(estimator: Any) -> Iterator[Any]:
    """An estimator, and all estimators that it is made of."""
    yield from _within(estimator, set())


def _within(part: Any, seen: set[int]) -> Iterator[Any]:
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, list | tuple | dict | np.ndarray):
        items = part.values() if isinstance(part, dict) else part
        for item in () if getattr(items, "dtype", np.dtype(object)).kind != "O" else items:
            yield from _within(item, seen)
    elif hasattr(part, "get_params") and not isinstance(part, type):
        yield part
        yield from _within(vars(part), seen)
