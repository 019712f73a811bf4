from pathlib import Path
from typing import Any

import mlflow.sklearn
import numpy as np
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import graphs, loaders
from tests.unit.examples import tensor

ROWS = 100 * np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)  # far from the boundaries
MODELS: dict[str, Any] = {
    "quadratic": QuadraticDiscriminantAnalysis(),
    "sgd": SGDClassifier(loss="log_loss", random_state=0),
    "huber": SGDClassifier(loss="modified_huber", random_state=0),
    "scaled": make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)),
}


def test_labels_and_probabilities_are_the_estimator_s_in_both_precisions(tmp_path: Path) -> None:
    how: dict[str, Any] = {"serialization_format": "cloudpickle", "pip_requirements": []}
    for name, model in MODELS.items():
        model.fit(ROWS, np.array(["a", "b", "c"])[np.arange(60) % 3])
        mlflow.sklearn.save_model(model, str(tmp_path / name), **how)
        original = loaders.load(tmp_path / name, "sklearn", (tensor("x", -1, 3),), (), tabular=False)
        expected = original.answer({"x": ROWS})
        made = {np.float32: original.to_onnx({"x": ROWS}, 20, tmp_path), np.float64: original.to_double(20)}
        for kind, graph in made.items():
            graphs.save(graph, tmp_path / "made.onnx")
            answers = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"x": ROWS.astype(kind)})
            assert answers["label"].tolist() == expected["label"].tolist(), name
            np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-5, err_msg=name)
