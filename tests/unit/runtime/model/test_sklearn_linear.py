from pathlib import Path

import mlflow.sklearn
import numpy as np
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import graphs, loaders
from tests.unit.examples import tensor


def test_a_quadratic_discriminant_analysis_has_a_label_to_a_row_in_both_precisions(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    model = QuadraticDiscriminantAnalysis().fit(x, np.array(["a", "b", "c"])[np.arange(60) % 3])
    how = {"serialization_format": "cloudpickle", "pip_requirements": []}
    mlflow.sklearn.save_model(model, str(tmp_path / "model"), **how)
    original = loaders.load(tmp_path / "model", "sklearn", (tensor("x", -1, 3),), (), tabular=False)
    expected = original.answer({"x": x})
    made = {np.float32: original.to_onnx({"x": x}, 20, tmp_path), np.float64: original.to_double(20)}
    for kind, graph in made.items():
        graphs.save(graph, tmp_path / "made.onnx")
        answers = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"x": x.astype(kind)})
        assert answers["label"].tolist() == expected["label"].tolist()
        np.testing.assert_allclose(answers["probabilities"], expected["probabilities"], atol=1e-5)
