"""Rows with missing values go where scikit-learn's trees send them, whether or not training had any."""

from typing import Any

import numpy as np
import skl2onnx
from sklearn.ensemble import BaggingRegressor, ExtraTreesRegressor, RandomForestClassifier, VotingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import missing_branches

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
        graph = missing_branches.keep(skl2onnx.to_onnx(model, ROWS[:1]), model)
        served = next(iter(onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"X": GAPS}).values()))
        np.testing.assert_allclose(served.ravel(), model.predict(GAPS), atol=1e-5)


def test_a_classifier_s_probabilities_of_rows_with_missing_values() -> None:
    model = RandomForestClassifier(20).fit(GAPS, ROWS[:, 0] > 0)
    graph = missing_branches.keep(skl2onnx.to_onnx(model, ROWS[:1], options={"zipmap": False}), model)
    served = onnx_models.answer(onnx_models.session(graph.SerializeToString()), {"X": GAPS})
    np.testing.assert_allclose(served["probabilities"], model.predict_proba(GAPS), atol=1e-5)


def test_a_graph_without_trees_stays_as_it_is() -> None:
    graph = skl2onnx.to_onnx(LinearRegression().fit(ROWS, ROWS[:, 0]), ROWS[:1])
    before = graph.SerializeToString()
    assert missing_branches.keep(graph, LinearRegression()).SerializeToString() == before
