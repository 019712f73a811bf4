"""scikit-learn's models of data frames as graphs: logged as MLflow's documentation does, and asked fresh rows."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from benchmarks.zoo.export_only import column
from benchmarks.zoo.exporting import export


def exported(model: Any, example: Any, folder: Path) -> Any:
    """The graph of a model that was logged in skops, MLflow's default, with an example."""
    import mlflow

    mlflow.sklearn.save_model(model, str(folder / "model"), input_example=example, pip_requirements=[])
    return export(folder / "model", folder / "work", pickle="refuse")


def test_the_iris_example_of_the_documentation_is_a_graph(tmp_path: Path) -> None:
    features, species = load_iris(return_X_y=True, as_frame=True)
    model = LogisticRegression(max_iter=500).fit(features, species)
    graph = exported(model, features, tmp_path)
    assert [spec.name for spec in graph.inputs] == list(features.columns)
    fresh = features + np.random.default_rng(0).normal(scale=0.3, size=features.shape)
    answers = graph.answer({spec.name: column(fresh[spec.name], spec) for spec in graph.inputs})
    np.testing.assert_array_equal(answers["label"], model.predict(fresh))
    np.testing.assert_allclose(answers["probabilities"], model.predict_proba(fresh), atol=1e-4)
