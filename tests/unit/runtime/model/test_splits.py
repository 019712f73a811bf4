"""What is served of an ensemble splits where the author's model does; one threshold that is off by an ulp is seen."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from shiplift.runtime.model.splits import Splits, of_forest, of_graph, of_trees, strange
from tests.unit.runtime.model.test_exact_trees import EXACT, original_of

pytestmark = pytest.mark.slow


def moved(splits: Splits, ulps: int) -> Splits:
    """The splits with the first one moved."""
    changed = splits.copy()
    changed[0] = np.uint64(int(changed[0]) + ulps)
    return changed


def graph_of(original: Any) -> onnx.GraphProto | None:
    try:
        return original.to_onnx({}, 20, Path()).graph
    except Exception:  # a booster of categories has no graph behind a matrix
        return None


def test_the_splits_of_every_ensemble_are_its_own_and_a_moved_one_is_not() -> None:
    graphs = 0
    for name, make in EXACT.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            original = original_of(make())
            own, forest, graph = of_trees(original.trees()), original.forest(), graph_of(original)
        if own is None:  # it splits by categories
            assert name.startswith(("lightgbm", "xgboost")), name
            continue
        assert forest is not None
        kept = of_forest(forest.model)
        assert strange(kept, own) == "", name
        served = of_graph(graph) if graph else None
        graphs += served is not None
        for splits in (kept, *([] if served is None else [served])):
            assert strange(splits, own) == "", name
            for ulps in (-1, 1):
                if moved(splits, ulps)[0] not in own:
                    assert "no node of the model does that" in strange(moved(splits, ulps), own), name
    assert graphs > 8


def test_a_graph_in_double_has_its_thresholds_in_a_tensor() -> None:
    table = {
        "nodes_featureids": [2, 0, 0],
        "nodes_modes": ["BRANCH_LT", "LEAF", "LEAF"],
        "nodes_values_as_tensor": numpy_helper.from_array(np.array([0.5, 0.0, 0.0])),
    }
    node = onnx.helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **table)
    splits = of_graph(onnx.helper.make_graph([node], "g", [], []))
    assert splits is not None
    told = strange(splits, np.array([], np.uint64))
    assert f"column 2 at {np.nextafter(np.float32(0.5), np.float32(0)):.9g}" in told
    assert of_graph(onnx.helper.make_graph([node, node], "g", [], [])) is None
