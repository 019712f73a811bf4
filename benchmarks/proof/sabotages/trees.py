"""Sabotages of a forest's checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.proof.sabotages.mutation import Files, Mutation
from shiplift.runtime.records.trees import CHECKPOINT

_FILE = Path("written/trees") / CHECKPOINT
_LEAF = -1  # no child

Change = Callable[[Any, Any], str | None]  # of a tree's accessor and its inner nodes


def _of_trees(name: str, change: Change) -> Mutation:
    """A mutation of the first tree in which there is something to change."""

    def apply(files: Files) -> str | None:
        import treelite

        file = files.folder / _FILE
        if not file.is_file():
            return None
        model = treelite.Model.deserialize(file)
        for at in range(model.num_tree):
            tree = model.get_tree_accessor(at)
            what = change(tree, tree.get_field("cleft") != _LEAF)
            if what:
                model.serialize(file)
                return f"tree {at}: {what}"
        return None

    return Mutation(name=f"trees-{name}", of="trees", apply=apply, subtle=name.endswith("one-ulp"))


def threshold_moved(tree: Any, inner: Any) -> str | None:
    """A threshold is one unit in the last place of FP32 higher."""
    values = tree.get_field("threshold").copy()
    nodes = np.flatnonzero(inner & (tree.get_field("node_type") == 1) & np.isfinite(values))
    if not len(nodes):
        return None
    at = int(nodes[len(nodes) // 2])
    values[at] = np.nextafter(np.float32(values[at]), np.float32(np.inf))
    tree.set_field("threshold", values)
    return f"the threshold of node {at} is one ulp higher"


def leaf_changed(tree: Any, inner: Any) -> str | None:
    """A leaf is 5 % larger."""
    values = tree.get_field("leaf_value").copy()
    leaves = np.flatnonzero(~inner & (values != 0)) if len(values) == len(inner) else np.array([], np.intp)
    if not len(leaves):
        return None
    at = int(leaves[np.abs(values[leaves]).argmax()])
    values[at] *= 1.05
    tree.set_field("leaf_value", values)
    return f"leaf {at} is 5 % larger"


def missing_flipped(tree: Any, inner: Any) -> str | None:
    """Missing values take the other branch at every node."""
    values = tree.get_field("default_left").copy()
    if not inner.any():
        return None
    values[inner] = 1 - values[inner]
    tree.set_field("default_left", values)
    return "missing values take the other branch"


def children_swapped(tree: Any, inner: Any) -> str | None:
    """The root's children are swapped."""
    if not inner.any():
        return None
    left, right = tree.get_field("cleft").copy(), tree.get_field("cright").copy()
    left[0], right[0] = int(right[0]), int(left[0])
    tree.set_field("cleft", left)
    tree.set_field("cright", right)
    return "the root's children are swapped"


def feature_shifted(tree: Any, inner: Any) -> str | None:
    """The root looks at another feature."""
    values = tree.get_field("split_index").copy()
    if not inner.any() or len(np.unique(values[inner])) < 2:
        return None
    others = values[inner][values[inner] != values[0]]
    values[0] = others[0]
    tree.set_field("split_index", values)
    return f"the root looks at feature {int(others[0])}"


def category_shifted(tree: Any, inner: Any) -> str | None:
    """The categories of a split are one higher."""
    values = tree.get_field("category_list").copy()
    if not len(values) or not inner.any():
        return None
    tree.set_field("category_list", values + 1)
    return "its categories are one higher"


TREES = tuple(
    _of_trees(name, change)
    for name, change in {
        "threshold-one-ulp": threshold_moved,
        "leaf-changed": leaf_changed,
        "missing-flipped": missing_flipped,
        "children-swapped": children_swapped,
        "feature-shifted": feature_shifted,
        "category-shifted": category_shifted,
    }.items()
)
