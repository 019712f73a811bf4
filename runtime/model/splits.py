"""The splits of an ensemble of trees: by which column and where, as served and as trained.

Questions reach few nodes of a large ensemble, so a threshold that is off by the last digit may stay unseen. Each split
of what is served has to be one of the model's own. Where it is in a tree is for the questions to see.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from shiplift.runtime.model.reading.found import MAX_NODES, OTHER, Tree
from shiplift.runtime.model.reading.rounding import down_to_float32

_ENSEMBLES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
_UP_TO, _LESS = (b"BRANCH_LEQ", b"BRANCH_GT"), (b"BRANCH_LT", b"BRANCH_GTE")
_LEAF, _LESS_THAN, _NUMERICAL = -1, 2, 1
_ZERO = 2e-35  # LightGBM takes numbers of half that size for zero

Splits = NDArray[np.uint64]  # a column and the greatest FP32 of its lower side, in one number


def of_trees(trees: Sequence[Tree]) -> Splits | None:
    """Those of a model as it was read; None: it has none, other ones, too, or too many to read all."""
    if not trees or sum(len(tree.feature) for tree in trees) > MAX_NODES:
        return None
    features, bounds = (np.concatenate([getattr(tree, name) for tree in trees]) for name in ("feature", "bound"))
    return None if (features == OTHER).any() else _packed(features[features >= 0], bounds[features >= 0])


def of_graph(graph: onnx.GraphProto) -> Splits | None:
    """Those of a graph with one ensemble of trees; None: it has none, or several."""
    nodes = [node for node in graph.node if node.op_type in _ENSEMBLES]
    if len(nodes) != 1:
        return None
    fields = {field.name: field for field in nodes[0].attribute}
    modes, features = np.array(fields["nodes_modes"].strings), np.array(fields["nodes_featureids"].ints)
    exact = fields.get("nodes_values_as_tensor")
    values = numpy_helper.to_array(exact.t) if exact else np.array(fields["nodes_values"].floats)
    up_to, less = np.isin(modes, _UP_TO), np.isin(modes, _LESS)
    return _of_both(features, np.asarray(values, np.float64), up_to, less)


def of_forest(forest: Any) -> Splits:
    """Those of treelite's model."""
    parts = []
    for at in range(forest.num_tree):
        tree = forest.get_tree_accessor(at)
        inner = (tree.get_field("cleft") != _LEAF) & (tree.get_field("node_type") == _NUMERICAL)
        values = tree.get_field("threshold").astype(np.float64)
        less = inner & (tree.get_field("cmp") == _LESS_THAN)
        parts.append(_of_both(tree.get_field("split_index").astype(np.int64), values, inner & ~less, less))
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def strange(served: Splits, own: Splits) -> str:
    """A split of what is served that the model has not, or not as often; empty: there is none."""
    known, counts = np.unique(own, return_counts=True)
    kinds, found = np.unique(served, return_counts=True)
    at = np.searchsorted(known, kinds)
    inside = at < len(known)
    at = np.where(inside, at, 0)
    same = inside & (known[at] == kinds) & (found <= counts[at]) if len(known) else np.zeros(len(kinds), np.bool_)
    if same.all():
        return ""
    first = kinds[~same][0]
    column, bound = int(first >> np.uint64(32)), np.array(first & np.uint64(0xFFFFFFFF), np.uint32).view(np.float32)
    return f"it splits column {column} at {float(bound):.9g}, and no node of the model does that"


def _of_both(
    features: NDArray[Any], values: NDArray[np.float64], up_to: NDArray[np.bool_], less: NDArray[np.bool_]
) -> Splits:
    """Nodes whose lower side has values `up_to` theirs, and those whose lower side has what is `less`."""
    below = np.nextafter(values, -np.inf)
    bounds = np.where(less, below, values)
    kept = (up_to | less) & np.isfinite(values)
    return _packed(features[kept], bounds[kept])


def _packed(features: NDArray[Any], bounds: NDArray[np.float64]) -> Splits:
    single = down_to_float32(bounds) + np.float32(0)  # no negative zero
    kept = (np.abs(single) > _ZERO) | (single == 0)
    bits = single[kept].view(np.uint32).astype(np.uint64)
    return np.asarray(features[kept].astype(np.uint64) << np.uint64(32) | bits)
