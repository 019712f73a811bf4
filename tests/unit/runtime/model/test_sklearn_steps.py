from pathlib import Path
from typing import Any

import mlflow.sklearn
import numpy as np
from sklearn.preprocessing import Binarizer, KBinsDiscretizer

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import graphs, loaders
from tests.unit.examples import tensor

_RNG = np.random.default_rng(0)
ROWS = _RNG.normal(size=(80, 3))
MODELS: dict[str, Any] = {
    "binarizer": Binarizer(threshold=float(ROWS[3, 1])),
    "zero": Binarizer(),
    "ordinal": KBinsDiscretizer(5, encode="ordinal", strategy="uniform"),
    "onehot": KBinsDiscretizer(4, encode="onehot"),
    "one_bin": KBinsDiscretizer(2, encode="onehot-dense"),
}


def test_values_at_the_steps_are_on_the_estimator_s_side_in_double(tmp_path: Path) -> None:
    for name, model in MODELS.items():
        known = np.column_stack([ROWS, np.zeros(len(ROWS))])  # a constant feature has one bin
        model.fit(known)
        edges = np.concatenate([*getattr(model, "bin_edges_", []), [0.0, ROWS[3, 1]]])
        edges = edges[np.isfinite(edges)]
        near = np.stack([np.nextafter(edges, -9), edges, np.nextafter(edges, 9)]).reshape(-1)
        asked = np.concatenate([np.repeat(near[:, None], 4, axis=1), known])
        mlflow.sklearn.save_model(model, str(tmp_path / name), serialization_format="cloudpickle", pip_requirements=[])
        original = loaders.load(tmp_path / name, "sklearn", (tensor("x", -1, 4, datatype="FP64"),), (), tabular=False)
        original.to_onnx({"x": asked}, 20, tmp_path)
        graphs.save(original.to_double(20), tmp_path / "made.onnx")
        answers = onnx_models.answer(onnx_models.session(tmp_path / "made.onnx"), {"x": asked})
        expected = original.answer({"x": asked})["variable"]
        np.testing.assert_array_equal(answers["variable"], expected, err_msg=name)
