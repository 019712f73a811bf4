"""Leaves of trees as boxes: how far each column may be for a row to end there."""

from collections.abc import Iterator, Sequence

import numpy as np

from shiplift.runtime.model.reading.found import LEAF, Tree
from shiplift.runtime.records.facts import MAX_BOUNDS, MAX_BOXES, Bound

_WALKED = 20_000  # leaves of all trees together that are looked at

Box = tuple[Bound, ...]


def boxes(trees: Sequence[Tree]) -> tuple[tuple[Box, ...], str]:
    """Boxes of leaves, each led by its last split, at most as many as facts may have; and a note if there are more."""
    share = max(2, _WALKED // max(1, len(trees)))
    found = [box for tree in trees[:_WALKED] for box in _of_tree(tree, share)]
    order = np.random.default_rng(0).permutation(len(found))[:MAX_BOXES]
    kept: list[Box] = []
    room = MAX_BOUNDS
    for box in (found[at] for at in order):
        room -= len(box)
        if room < 0:
            break
        kept.append(box)
    leaves = [int((tree.feature == LEAF).sum()) for tree in trees]
    all_walked = len(trees) <= _WALKED and max(leaves, default=0) <= share
    note = f"Of the {sum(leaves)} leaves of {len(trees)} trees, {len(kept)} were read."
    return tuple(kept), "" if all_walked and len(kept) == len(found) else note


def _of_tree(tree: Tree, most: int) -> Iterator[Box]:
    """The boxes of the leaves that a walk from the root comes to first."""
    waiting: list[tuple[int, dict[int, tuple[float | None, float | None]]]] = [(0, {})]
    given = 0
    while waiting and given < most:
        node, sides = waiting.pop()
        feature, bound = int(tree.feature[node]), float(tree.bound[node])
        if feature == LEAF:
            if sides:
                given += 1
                yield tuple((column, low, high) for column, (low, high) in reversed(sides.items()))
            continue
        left, right = dict(sides), dict(sides)
        if feature >= 0:
            low, high = sides.get(feature, (None, None))
            for side in (left, right):
                side.pop(feature, None)  # the last split comes last
            left[feature] = (low, bound if high is None else min(bound, high))
            right[feature] = (bound if low is None else max(bound, low), high)
        children = ((int(tree.right[node]), right), (int(tree.left[node]), left))
        waiting += [(child, side) for child, side in children if not _is_empty(side.get(feature, (None, None)))]


def _is_empty(side: tuple[float | None, float | None]) -> bool:
    """Whether no value is between the bounds; CatBoost asks on both branches what one has answered."""
    low, high = side
    return low is not None and high is not None and low >= high
