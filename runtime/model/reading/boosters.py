"""Readers of LightGBM, XGBoost and CatBoost: their trees, and what they take for missing."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shiplift.runtime.model.reading.found import LEAF, OTHER, Found, Reading, Tree, of_trees, together
from shiplift.runtime.model.reading.rounding import below_float32, up_to_float32

_ZERO = float(np.float32(1e-35))  # LightGBM takes numbers up to this for zero


def lightgbm(model: Any, reading: Reading) -> Found:
    """A booster or an estimator of LightGBM, which compares float64 and takes anything for a number."""
    booster = getattr(model, "booster_", model)
    dumped = booster.dump_model()
    trees = [list(_nodes(tree["tree_structure"])) for tree in dumped["tree_info"]]
    columns = range(int(booster.num_feature()))
    zero = any(node.get("missing_type") == "Zero" for nodes in trees for node in nodes)
    own = Found(
        thresholds=dict.fromkeys(columns, np.array([-_ZERO, _ZERO])) if zero else {},
        sentinels=dict.fromkeys(columns, (0.0,)) if zero else {},
        missing=dict.fromkeys(columns, True),
        infinite=dict.fromkeys(columns, True),
    )
    return together([own, of_trees([_lightgbm_tree(nodes) for nodes in trees])])


def _nodes(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [node[side] for side in ("left_child", "right_child") if side in node]


def _lightgbm_tree(nodes: list[dict[str, Any]]) -> Tree:
    places = {id(node): place for place, node in enumerate(nodes)}

    def feature(node: dict[str, Any]) -> int:
        if "split_feature" not in node:
            return LEAF
        return int(node["split_feature"]) if node["decision_type"] == "<=" else OTHER

    columns = [feature(node) for node in nodes]
    return Tree(
        feature=np.array(columns, np.int64),
        bound=np.array([_bound(node) if at >= 0 else 0.0 for node, at in zip(nodes, columns, strict=True)]),
        left=np.array([places.get(id(node.get("left_child")), -1) for node in nodes]),
        right=np.array([places.get(id(node.get("right_child")), -1) for node in nodes]),
    )


def _bound(node: dict[str, Any]) -> float:
    """The greatest number that goes left: of the numbers that are taken for zero, all go the same way."""
    threshold = float(node["threshold"])
    return float(np.nextafter(-_ZERO, -np.inf)) if -_ZERO <= threshold < 0 else threshold


def xgboost(model: Any, reading: Reading) -> Found:
    """A booster or an estimator of XGBoost, which compares float32: less than the threshold goes left."""
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    boosting = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    trees = (boosting.get("gbtree") or boosting)["model"].get("trees", [])
    columns, mark = range(int(booster.num_features())), getattr(model, "missing", math.nan)
    named = isinstance(mark, float | int) and math.isfinite(mark)
    own = Found(
        sentinels=dict.fromkeys(columns, (float(mark),)) if named else {},
        missing=dict.fromkeys(columns, True),
        infinite=dict.fromkeys(columns, False),
    )
    return together([own, of_trees([_xgboost_tree(tree) for tree in trees])])


def _xgboost_tree(tree: dict[str, Any]) -> Tree:
    left, right = (np.array(tree[f"{side}_children"], np.int64) for side in ("left", "right"))
    other = np.array(tree.get("split_type") or np.zeros(len(left))) != 0
    feature = np.where(other, OTHER, np.array(tree["split_indices"], np.int64))
    return Tree(
        feature=np.where(left < 0, LEAF, feature),
        bound=below_float32(np.array(tree["split_conditions"], np.float64)),
        left=left,
        right=right,
    )


def catboost(model: Any, reading: Reading) -> Found:
    """A CatBoost model of numbers: all splits of a level are the same. Greater than the border goes right."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.json"
        model.save_model(str(file), format="json")
        dumped = json.loads(file.read_text())
    features = dumped["features_info"].get("float_features") or []
    columns = {int(each["feature_index"]): int(each["flat_feature_index"]) for each in features}
    treated = {int(each["flat_feature_index"]): each.get("nan_value_treatment") for each in features}
    borders = {
        int(each["flat_feature_index"]): up_to_float32(np.array(each["borders"] or [], np.float64)) for each in features
    }
    missing = {column: how in ("AsFalse", "AsTrue") for column, how in treated.items()}
    trees = [_catboost_tree(tree["splits"] or [], columns) for tree in dumped.get("oblivious_trees") or []]
    return together([Found(thresholds=borders, missing=missing), of_trees(trees)])


def _catboost_tree(splits: list[dict[str, Any]], columns: dict[int, int]) -> Tree:
    """A full tree whose node n has the children 2n + 1 and 2n + 2."""
    inner, count = 2 ** len(splits) - 1, 2 ** (len(splits) + 1) - 1
    level = np.floor(np.log2(np.arange(inner) + 1)).astype(int)
    numeric = [columns.get(int(split.get("float_feature_index", -1)), OTHER) for split in splits]
    bounds = up_to_float32(np.array([float(split.get("border") or 0.0) for split in splits], np.float64))
    nodes = np.arange(count)
    return Tree(
        feature=np.concatenate([np.array(numeric, np.int64)[level], np.full(count - inner, LEAF)]),
        bound=np.concatenate([bounds[level], np.zeros(count - inner)]),
        left=2 * nodes + 1,
        right=2 * nodes + 2,
    )
