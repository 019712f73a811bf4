"""Whether a forest is sound: treelite trusts the positions and sizes in a checkpoint, and reads where they say."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAF = -1
_OF_NODES = ("cleft", "cright", "split_index", "threshold", "leaf_value", "default_left", "cmp", "node_type")


def sound(forest: Any) -> bool:
    """Whether every position in a treelite model is inside of it, and every path ends at a leaf."""
    header = forest.get_header_accessor()
    targets, classes = int(header.get_field("num_target")[0]), header.get_field("num_class")
    if targets < 1 or len(classes) != targets or classes.min() < 1:
        return False
    return _sound_scores(forest, header, targets, int(classes.max())) and all(
        _sound_tree(forest.get_tree_accessor(at), forest.num_feature, header.get_field("leaf_vector_shape"))
        for at in range(forest.num_tree)
    )


def _sound_scores(forest: Any, header: Any, targets: int, classes: int) -> bool:
    """Whether each tree adds to scores that there are, and its leaves have as many as it adds to."""
    of_trees = [header.get_field(name) for name in ("target_id", "class_id")]
    shape = header.get_field("leaf_vector_shape")
    if len(shape) != len(of_trees) or len(header.get_field("base_scores")) != targets * classes:
        return False
    sizes = zip(of_trees, (targets, classes), shape, strict=True)
    return all(
        len(ids) == forest.num_tree and (ids < most).all() and size == (most if (ids < 0).any() else 1)
        for ids, most, size in sizes
    )


def _sound_tree(tree: Any, features: int, leaf_shape: NDArray[Any]) -> bool:
    count, fields = int(tree.get_field("num_nodes")[0]), {name: tree.get_field(name) for name in _OF_NODES}
    if count < 1 or any(len(field) != count for field in fields.values()):
        return False
    inner, split = fields["cleft"] != _LEAF, fields["split_index"]
    children = np.column_stack([fields["cleft"], fields["cright"]])
    inside = ((children > 0) & (children < count))[inner].all() and ((split >= 0) & (split < features))[inner].all()
    return bool(inside) and _ends(children, inner) and all(_sound_lists(tree, count, inner, int(np.prod(leaf_shape))))


def _ends(children: NDArray[Any], inner: NDArray[np.bool_]) -> bool:
    """Whether no node is reached twice, so that a path can't be endless."""
    reached, level = 1, np.array([0])
    while len(level) and reached <= len(children):
        level = children[level[inner[level]]].reshape(-1)
        reached += len(level)
    return reached <= len(children)


def _sound_lists(tree: Any, count: int, inner: NDArray[np.bool_], leaf_size: int) -> Iterator[bool]:
    """Whether what a node has of the scores and categories of all nodes is there; a leaf has one score, or all."""
    for name in ("leaf_vector", "category_list"):
        begin, end = tree.get_field(f"{name}_begin"), tree.get_field(f"{name}_end")
        yield len(begin) == count and len(end) == count
        yield bool((begin <= end).all() and (end <= len(tree.get_field(name))).all())
    lengths = tree.get_field("leaf_vector_end")[~inner] - tree.get_field("leaf_vector_begin")[~inner]
    yield bool((lengths == (leaf_size if leaf_size > 1 else 0)).all())
