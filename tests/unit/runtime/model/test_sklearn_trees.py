"""Graphs of scikit-learn's trees: missing values, and histogram boosting on both sides of its thresholds."""

from typing import Any

import numpy as np
import skl2onnx
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    VotingRegressor,
)
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import sklearn_trees
from shiplift.runtime.model.reading.recording import facts_of
from shiplift.runtime.records.tensor import TensorSpec

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(200, 4)).astype(np.float32)
GAPS = np.where(RNG.random(ROWS.shape) < 0.3, np.float32(np.nan), ROWS)


def test_missing_values_go_the_way_of_the_estimator_s_trees() -> None:
    tree = DecisionTreeRegressor()
    models: list[Any] = [
        tree,
        ExtraTreesRegressor(5),
        BaggingRegressor(tree, 5),
        VotingRegressor([("one", tree), ("many", ExtraTreesRegressor(3))]),
        make_pipeline(StandardScaler(), tree),
    ]
    for model in models:
        model.fit(ROWS, ROWS[:, 0] + ROWS[:, 1])
        graph = sklearn_trees.with_missing(skl2onnx.to_onnx(model, ROWS[:1]), model)
        served = next(iter(onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"X": GAPS}).values()))
        np.testing.assert_allclose(served.ravel(), model.predict(GAPS), atol=1e-5)


def test_a_classifier_s_probabilities_of_rows_with_missing_values() -> None:
    model = RandomForestClassifier(20).fit(GAPS, ROWS[:, 0] > 0)
    graph = sklearn_trees.with_missing(skl2onnx.to_onnx(model, ROWS[:1], options={"zipmap": False}), model)
    served = onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"X": GAPS})
    np.testing.assert_allclose(served["probabilities"], model.predict_proba(GAPS), atol=1e-5)


def test_a_graph_without_trees_stays_as_it_is() -> None:
    graph = skl2onnx.to_onnx(LinearRegression().fit(ROWS, ROWS[:, 0]), ROWS[:1])
    before = graph.SerializeToString()
    assert sklearn_trees.with_missing(graph, LinearRegression()).SerializeToString() == before


def test_histogram_boosting_is_right_for_float32_on_both_sides_of_every_threshold() -> None:
    model = make_pipeline(HistGradientBoostingRegressor(max_iter=20)).fit(ROWS, ROWS[:, 0] * ROWS[:, 1])
    told = facts_of(model, (TensorSpec(name="X", datatype="FP32", shape=(-1, 4)),)).columns
    asked = np.repeat(ROWS, 20, axis=0)
    for at, column in enumerate(told):
        nearest = np.array(column.thresholds, np.float32)
        near = [np.nextafter(nearest, np.float32(way)) for way in (-9, 9)]
        asked[at::4, at] = np.resize(np.concatenate([nearest, *near]), len(asked[at::4]))
    graph = skl2onnx.to_onnx(sklearn_trees.rounded(model), ROWS[:1])
    served = next(iter(onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"X": asked}).values()))
    np.testing.assert_allclose(served.ravel(), model.predict(asked), atol=1e-5)
