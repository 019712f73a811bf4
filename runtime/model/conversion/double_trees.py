"""The trees of a graph in FP64, as they are in the estimators that it was made of; skl2onnx rounds or moves thresholds.

A tree of the graph is one of the estimators' if its features are the same, and its thresholds are the nearest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from shiplift.runtime.model.conversion.double_graphs import consistent, rounding
from shiplift.runtime.model.conversion.sklearn_trees import within

_LEAF = -2
_LEARNING, _WITH_TENSORS = "ai.onnx.ml", 3  # the first version whose trees have tables of FP64
_NEAR = 1e-5  # of a threshold: what rounding to FP32, or to the next number, may move it
_MISSING = "nodes_missing_value_tracks_true"
WEIGHTS = {"TreeEnsembleClassifier": "class", "TreeEnsembleRegressor": "target"}


@dataclass(frozen=True, kw_only=True)
class FittedTree:
    """A tree as fitted, by node: leaves have the feature -2 and the threshold 0.

    `leaves` are histogram boosting's values of nodes, and `base` what they are added to; None: not its tree.
    """

    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    missing: NDArray[Any]
    leaves: NDArray[np.float64] | None = None
    base: NDArray[np.float64] | None = None


def exact(model: onnx.ModelProto, estimator: Any) -> onnx.ModelProto:
    """The model in FP64 throughout, with thresholds, leaves and branches for missing values as fitted.

    Trees that compare FP32, as all but those of histogram boosting do, get features rounded to that.
    """
    model = consistent(model)
    fitted: dict[bytes, list[FittedTree]] = {}
    for tree in _fitted(estimator):
        fitted.setdefault(tree.feature.tobytes(), []).append(tree)
    ensembles = [node for node in model.graph.node if node.op_type in WEIGHTS]
    for entry in model.opset_import if ensembles else ():
        if entry.domain == _LEARNING:
            entry.version = max(entry.version, _WITH_TENSORS)
    return rounding(model, [node for node in ensembles if _set(node, fitted)])


def _fitted(estimator: Any) -> Iterator[FittedTree]:
    for part in within(estimator):
        if hasattr(part, "tree_"):
            leaf = part.tree_.children_left == -1
            yield FittedTree(
                feature=np.where(leaf, _LEAF, part.tree_.feature).astype(np.int64),
                threshold=np.where(leaf, 0.0, part.tree_.threshold),
                missing=part.tree_.missing_go_to_left,
            )
        for stage in getattr(part, "_predictors", ()):
            yield from (_of_nodes(predictor.nodes, np.ravel(part._baseline_prediction)) for predictor in stage)


def _of_nodes(nodes: Any, base: NDArray[np.float64]) -> FittedTree:
    leaf = nodes["is_leaf"] != 0
    return FittedTree(
        feature=np.where(leaf, _LEAF, nodes["feature_idx"]).astype(np.int64),
        threshold=np.where(leaf, 0.0, nodes["num_threshold"]),
        missing=nodes["missing_go_to_left"],
        leaves=nodes["value"].astype(np.float64),
        base=base.astype(np.float64),
    )


def _set(node: onnx.NodeProto, fitted: dict[bytes, list[FittedTree]]) -> bool:
    """Sets the tables of an ensemble; returns whether its trees compare features as FP32."""
    fields = {field.name: field for field in node.attribute}
    of_tree, features = np.array(fields["nodes_treeids"].ints), np.array(fields["nodes_featureids"].ints)
    leaf = np.array(fields["nodes_modes"].strings) == b"LEAF"
    values = numbers_of(fields, "nodes_values")
    missing = np.array(fields[_MISSING].ints) if _MISSING in fields else np.zeros(len(values), np.int64)
    kind = WEIGHTS[node.op_type]
    weights, owners = numbers_of(fields, f"{kind}_weights"), np.array(fields[f"{kind}_treeids"].ints)
    base, found = numbers_of(fields, "base_values"), []
    nodeids = np.array(fields[f"{kind}_nodeids"].ints)
    for tree in np.unique(of_tree):
        at, mine = np.flatnonzero(of_tree == tree), owners == tree
        own = np.where(leaf[at], _LEAF, features[at]).astype(np.int64)
        likely = fitted.get(own.tobytes(), ())
        nearest = _nearest(likely, np.where(leaf[at], 0.0, values[at]), nodeids[mine], weights[mine])
        if nearest is None:
            continue
        found.append(nearest)
        values[at], missing[at] = nearest.threshold, np.where(leaf[at], 0, nearest.missing)
        if nearest.leaves is not None:
            weights[mine] = nearest.leaves[nodeids[mine]]
    if not found:
        return False
    if found[0].base is not None and found[0].base.size == base.size:
        base = found[0].base
    tables = {"nodes_values": values, f"{kind}_weights": weights, "base_values": base}
    with_tables(node, tables, missing)
    return found[0].leaves is None


def _nearest(
    fitted: Sequence[FittedTree],
    values: NDArray[np.float64],
    leaves: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> FittedTree | None:
    """The tree whose thresholds are `values`, and whose `leaves` have these `weights`, as well as they can be."""

    def off(tree: FittedTree) -> float:
        of_leaves = 0.0 if tree.leaves is None else _off(tree.leaves[leaves], weights)
        return max(_off(tree.threshold, values), of_leaves)

    best = min(fitted, key=off, default=None)
    return best if best is not None and off(best) <= _NEAR else None


def _off(exact: NDArray[np.float64], rounded: NDArray[np.float64]) -> float:
    """The largest distance, relative to the values."""
    with np.errstate(invalid="ignore"):
        distances = np.abs(exact - rounded) / np.maximum(1e-30, np.abs(exact))
    return float(np.where(exact == rounded, 0.0, distances).max(initial=0))


def numbers_of(fields: dict[str, Any], name: str) -> NDArray[np.float64]:
    """A table of an ensemble, in whichever type it is."""
    if f"{name}_as_tensor" in fields:
        return np.asarray(numpy_helper.to_array(fields[f"{name}_as_tensor"].t), np.float64)
    return np.array(fields[name].floats if name in fields else (), np.float64)


def with_tables(
    node: onnx.NodeProto, tables: dict[str, NDArray[np.float64]], missing: NDArray[Any] | None = None
) -> None:
    """Replaces a node's tables by ones in FP64; nobody reads the rates at which nodes are hit.

    `missing` says whether each node's missing values go left; None: as they do.
    """
    old = {*tables, *(f"{name}_as_tensor" for name in tables), *([] if missing is None else [_MISSING])}
    kept = [field for field in node.attribute if field.name not in old and "hitrates" not in field.name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if missing is not None:
        node.attribute.append(helper.make_attribute(_MISSING, [int(each) for each in missing]))
    for name, numbers in tables.items():
        if len(numbers):
            node.attribute.append(helper.make_attribute(f"{name}_as_tensor", numpy_helper.from_array(numbers)))
