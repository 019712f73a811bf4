from pathlib import Path
from typing import Any

import mlflow.onnx
import mlflow.sklearn
import numpy as np
import pytest
from mlflow.models import infer_signature
from onnx import TensorProto, helper
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from shiplift.runtime.admission.pyfunc_answers import PyfuncOutput, _matched, as_logged, judge
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.model.conversion import loaders
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.questions.question import Questions
from tests.unit.examples import tensor

ROWS = np.random.default_rng(5).normal(size=(60, 3))
CLASSES = (ROWS[:, 0] > 0).astype(np.int64)


def judged(folder: Path, model: Any, questions: Any = ROWS, **settings: Any) -> PyfuncOutput:
    """What pyfunc answers of a model, logged plainly."""
    answer = getattr(model, settings.get("pyfunc_predict_fn", "predict"))(ROWS)
    mlflow.sklearn.save_model(
        model,
        folder,
        signature=infer_signature(ROWS, answer),
        input_example=ROWS[:4],
        pip_requirements=[],  # MLflow would load the model in another process to find them
        **settings,
    )
    logged = read_model(folder)
    specs = logged.signature.inputs
    original = loaders.load(folder, logged.flavor, specs, logged.signature.outputs, tabular=logged.tabular)
    asked = Questions(inputs={specs[0].name: questions}, origins=("range",) * len(questions))
    return judge(folder, original, specs, {"questions-0": asked})


def whole(tensor: str, *, rank: int) -> dict[str, Any]:
    """The form of an answer that is one tensor as it is."""
    part = {"name": "", "tensor": tensor, "rank": rank, "column": -1, "holds": "", "axis": ""}
    return {"kind": "array", "parts": [part]}


def test_what_pyfunc_answers_is_among_the_outputs_of_the_loaded_model(tmp_path: Path) -> None:
    classifier = LogisticRegression().fit(ROWS, CLASSES)
    label = judged(tmp_path / "label", classifier)
    assert label.answered == "label"
    assert label.form == whole("label", rank=1)
    proba = judged(tmp_path / "proba", classifier, pyfunc_predict_fn="predict_proba")
    assert proba.answered == "probabilities"
    assert proba.form == whole("probabilities", rank=2)
    assert judged(tmp_path / "number", LinearRegression().fit(ROWS, ROWS[:, 1])).answered == "variable"
    assert judged(tmp_path / "cluster", KMeans(2, n_init=1).fit(ROWS)).answered == "variable"


def test_a_model_is_refused_that_answers_something_else_than_pyfunc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LinearRegression().fit(ROWS, ROWS[:, 1])
    answer = loaders.Sklearn.answer
    monkeypatch.setattr(loaders.Sklearn, "answer", lambda *asked: {"variable": answer(*asked)["variable"] + 1})
    with pytest.raises(ExportFailed, match=r"does not answer what mlflow\.pyfunc answers"):
        judged(tmp_path / "off", model)


def test_a_model_whose_pyfunc_answers_what_no_tensor_holds_is_refused(tmp_path: Path) -> None:
    targets = np.column_stack([CLASSES, np.arange(60) % 3])  # a list of two matrices of other widths
    model = MultiOutputClassifier(LogisticRegression()).fit(ROWS, targets)
    example: dict[str, Any] = {"signature": infer_signature(ROWS, targets), "pip_requirements": []}
    mlflow.sklearn.save_model(model, tmp_path / "m", pyfunc_predict_fn="predict_proba", **example)
    logged = read_model(tmp_path / "m")
    specs = logged.signature.inputs
    original = loaders.load(tmp_path / "m", "sklearn", specs, logged.signature.outputs, tabular=False)
    asked = Questions(inputs={specs[0].name: ROWS[:4]}, origins=("example",) * 4)
    with pytest.raises(ExportFailed, match="predict answered 2 arrays as 'output', each with a row per sample"):
        judge(tmp_path / "m", original, specs, {"example": asked})


def test_rows_that_both_refuse_say_nothing_and_a_model_that_cannot_be_asked_is_told(tmp_path: Path) -> None:
    classifier = LogisticRegression().fit(ROWS, CLASSES)
    impossible = np.full((2, 3), np.nan)
    left_out = judged(tmp_path / "nan", classifier, impossible).left_out
    assert len(left_out) == 1
    assert left_out[0].startswith("What mlflow.pyfunc answers was not asked: ValueError: Input X contains NaN")
    (tmp_path / "nan" / "MLmodel").write_text("flavors: {sklearn: {}}\n")
    assert judge(tmp_path / "nan", None, (), {}).left_out  # type: ignore[arg-type] # it isn't asked


def test_rows_of_a_length_that_only_the_graph_takes_say_nothing(tmp_path: Path) -> None:
    x = np.ones((2, 2, 3), np.float32)
    of = ["batch", "length", 3]
    ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, of) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "any-length", *([end] for end in ends))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    signature = infer_signature({"x": x}, {"y": -x})  # MLflow then takes the example's length alone
    mlflow.onnx.save_model(model, tmp_path / "m", signature=signature, pip_requirements=[])
    specs = read_model(tmp_path / "m").signature.inputs
    original = loaders.load(tmp_path / "m", "onnx", specs, (), tabular=False)
    longer = np.ones((1, 9, 3), np.float32)
    sets = {
        str(at): Questions(inputs={"x": rows}, origins=("range",) * len(rows)) for at, rows in enumerate((x, longer))
    }
    assert judge(tmp_path / "m", original, specs, sets).answered == "y"


def test_the_columns_of_pyfunc_s_frame_are_found_in_one_matrix() -> None:
    matrix = np.arange(6.0).reshape(3, 2)
    right = Answers.of({"a": matrix[:, 0], "b": matrix[:, 1]})
    form = {"kind": "records", "parts": [{"name": name, "tensor": name, "rank": 1} for name in ("a", "b")]}
    judged = _matched(right, Answers.of({"variable": matrix}), ["range"] * 3, form)
    assert judged.form
    assert [(part["name"], part["tensor"], part["column"]) for part in judged.form["parts"]] == [
        ("a", "variable", 0),
        ("b", "variable", 1),
    ]


def test_inputs_have_their_names_in_any_order_and_otherwise_their_places() -> None:
    specs = [tensor("a", -1, 4), tensor("b", -1, 4)]
    assert as_logged(["b", "a"], specs) == {"b": "b", "a": "a"}
    assert as_logged(["x y", "z"], specs) == {"x y": "a", "z": "b"}
    assert as_logged([], specs) == {"a": "a", "b": "b"}


def test_labels_that_pyfunc_answers_as_floats_are_floats(tmp_path: Path) -> None:
    """XGBoost's `multi:softmax`: 2.0, not 2."""
    import mlflow.xgboost
    import xgboost

    rows = ROWS.astype(np.float32)
    data = xgboost.DMatrix(rows, np.arange(60) % 3)
    model = xgboost.train({"objective": "multi:softmax", "num_class": 3, "max_depth": 2}, data, 3)
    labels = model.predict(data)
    signature = infer_signature(rows, labels)
    mlflow.xgboost.save_model(model, tmp_path / "m", signature=signature, pip_requirements=[])
    logged = read_model(tmp_path / "m")
    specs = logged.signature.inputs
    original = loaders.load(tmp_path / "m", "xgboost", specs, logged.signature.outputs, tabular=False)
    asked = Questions(inputs={specs[0].name: rows}, origins=("range",) * 60)
    assert judge(tmp_path / "m", original, specs, {"questions-0": asked}).answered == "label"
    graph = original.to_onnx({specs[0].name: rows[:2]}, 18, tmp_path)
    answers = onnx_models.answer(onnx_models.session(graph.SerializeToString()), {specs[0].name: rows})
    assert answers["label"].dtype == original.answer({specs[0].name: rows})["label"].dtype == labels.dtype
    np.testing.assert_array_equal(answers["label"], labels)
