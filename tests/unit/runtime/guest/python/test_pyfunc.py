"""`mlflow.pyfunc`, asked with tensors: every form of its answers that a tensor can hold."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import lightgbm
import mlflow
import mlflow.lightgbm
import mlflow.xgboost
import numpy as np
import pandas as pd
import pydantic
import pytest
import scipy.sparse
import xgboost
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
from sklearn.cluster import DBSCAN
from sklearn.kernel_approximation import AdditiveChi2Sampler

from shiplift.runtime.guest.python.outputs import Unservable
from shiplift.runtime.guest.python.pyfunc import Model
from shiplift.runtime.guest.python.values import MISSING, texts


class Answering(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # MLflow checks by types
        return self.how(model_input)

    def __init__(self, how: Callable[[Any], Any]) -> None:
        self.how = how


def loaded(folder: Path, how: Callable[[Any], Any], inputs: Any, outputs: tuple[str, ...] = ()) -> Model:
    signature = ModelSignature(inputs=Schema(inputs))
    mlflow.pyfunc.save_model(folder, python_model=Answering(how), signature=signature, pip_requirements=[])
    return Model({"model": str(folder), "outputs": list(outputs)})


class Pair(pydantic.BaseModel):
    a: int
    b: str


@dataclass
class Point:
    at: float


ROWS = {"x": np.array([[1.0], [2.0]])}
# What the column x becomes, and the outputs that a client gets.
FORMS: list[tuple[Callable[[Any], Any], dict[str, list[Any]]]] = [
    (lambda x: x.tolist(), {"output": [1, 2]}),
    (lambda x: [str(v) for v in x], {"output": ["1.0", "2.0"]}),
    (lambda x: x, {"output": [1, 2]}),
    (lambda x: x.to_frame("y").assign(z="t"), {"y": [1, 2], "z": ["t", "t"]}),
    (lambda x: {"y": x, "z": [[v, v] for v in x]}, {"y": [1, 2], "z": [[1, 1], [2, 2]]}),
    (lambda x: [{"y": v, "z": "t"} for v in x], {"y": [1, 2], "z": ["t", "t"]}),
    (lambda x: [{"y": v} if v > 1 else {"z": v} for v in x], {"output": ['{"z": 1.0}', '{"y": 2.0}']}),
    (lambda x: [Pair(a=int(v), b="t") for v in x], {"output": ['{"a": 1, "b": "t"}', '{"a": 2, "b": "t"}']}),
    (lambda x: scipy.sparse.csr_matrix(x.to_numpy().reshape(-1, 1)), {"output": [[1], [2]]}),
    (lambda x: [None if v > 1 else "t" for v in x], {"output": ["t", MISSING]}),
    (lambda x: [{} for v in x], {"output": ["{}", "{}"]}),
    (lambda x: [Point(v) for v in x], {"output": ['{"at": 1.0}', '{"at": 2.0}']}),
    (lambda x: [[{"y": v}] for v in x], {"output": [['{"y": 1.0}'], ['{"y": 2.0}']]}),
    (lambda x: [bytes([int(v), 0]) for v in x], {"output": ["AQA=", "AgA="]}),
    (lambda x: pd.Series(pd.Categorical([str(v) for v in x])), {"output": ["1.0", "2.0"]}),
    (lambda x: [[1.0] * int(v) for v in x], {"output": ["[1.0]", "[1.0, 1.0]"]}),
    (lambda x: [1, "1"], {"output": ["1", '"1"']}),
    (lambda x: pd.to_datetime(x, unit="D"), {"output": ["1970-01-02T00:00:00", "1970-01-03T00:00:00"]}),
]


def test_every_form_of_an_answer_is_served(tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", lambda frame: frame["x"], [ColSpec("double", "x")])
    for number, (form, right) in enumerate(FORMS):
        model._model._model_impl.python_model.how = lambda frame, form=form: form(frame["x"])
        answers = model.answer(ROWS)
        assert {name: array.tolist() for name, array in answers.items()} == right, number


def test_a_list_of_arrays_has_an_output_for_each_if_the_export_saw_that(tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", lambda frame: frame["x"], [ColSpec("double", "x")])
    forms: list[Callable[[Any], Any]] = [
        lambda x: (x, np.ones((len(x), 3))),
        lambda x: [x, x],
        lambda x: (x.tolist(), ["t"] * len(x)),
    ]
    for listed, form in itertools.product((True, None), forms):
        model._model._model_impl.python_model.how = lambda frame, form=form: form(frame["x"].to_numpy())
        model._listed = listed
        answers = model.answer({"x": np.ones((3, 1))})
        assert {name: len(array) for name, array in answers.items()} == {"output_0": 3, "output_1": 3}
        assert model.form["kind"] == "list"
    model._model._model_impl.python_model.how = lambda frame: [np.ones(2)] * len(frame)
    for rows in (2, 3):  # one array for each row
        assert model.answer({"x": np.ones((rows, 1))})["output"].shape == (rows, 2)
    model._model._model_impl.python_model.how, model._listed = lambda frame: frame["x"], True
    with pytest.raises(Unservable, match="Series, not a list of arrays"):
        model.answer(ROWS)


def test_a_missing_number_is_nan(tmp_path: Path) -> None:
    model = loaded(
        tmp_path / "model", lambda frame: [None if v > 1 else v for v in frame["x"]], [ColSpec("double", "x")]
    )
    np.testing.assert_array_equal(model.answer(ROWS)["output"], [1, np.nan])


def test_what_one_sample_gets_may_lack_the_axis_of_samples(tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", lambda frame: {"n": 3, "all": ["a", "b", "c"]}, [ColSpec("double", "x")])
    answers = model.answer({"x": np.array([[1.0]])})
    assert {name: array.tolist() for name, array in answers.items()} == {"n": [3], "all": [["a", "b", "c"]]}
    with pytest.raises(Unservable, match="not one row per sample"):
        model.answer(ROWS)


def test_what_no_tensor_holds_is_named(tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", lambda frame: frame["x"], [ColSpec("double", "x")])
    forms: tuple[Any, ...] = (lambda x: x * 1j, lambda x: [{v} for v in x])
    for form in (*forms, lambda x: (v for v in x)):
        model._model._model_impl.python_model.how = lambda frame, form=form: form(frame["x"])
        with pytest.raises(Unservable, match="'output'"):
            model.answer(ROWS)


def test_a_model_gets_its_columns_as_their_author_sent_them(tmp_path: Path) -> None:
    seen: list[Any] = []
    inputs = [
        ColSpec(DataType.datetime, "when"),
        ColSpec(DataType.binary, "file"),
        ColSpec(DataType.string, "said", required=False),
        ColSpec(DataType.boolean, "told", required=False),
        ColSpec(DataType.long, "left", required=False),
    ]
    model = loaded(tmp_path / "model", lambda frame: [0], inputs)
    model._model._model_impl.python_model.how = lambda frame: (seen.append(frame), [0])[1]  # type: ignore[func-returns-value]
    tensors = {"when": texts(["2024-01-01"]), "file": texts([b"a"]), "said": texts([None]), "told": np.array([np.nan])}
    model.answer(tensors)
    frame = seen[0]
    assert list(frame) == ["when", "file", "said", "told"]
    assert frame["when"].tolist() == [pd.Timestamp("2024-01-01")]
    assert frame["file"].tolist() == [b"a"]
    assert frame["said"].isna().all()
    assert frame["told"].tolist() == [None]


def test_parameters_are_checked_against_the_logged_ones_which_fill_up(tmp_path: Path) -> None:
    class Scaled(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # MLflow checks by types
            return model_input["x"] * params["k"] + params["more"][0]

    signature = ModelSignature(
        inputs=Schema([ColSpec("double", "x")]),
        params=ParamSchema([ParamSpec("k", "long", 3), ParamSpec("more", "double", [0.5], (-1,))]),
    )
    mlflow.pyfunc.save_model(tmp_path / "model", python_model=Scaled(), signature=signature, pip_requirements=[])
    model = Model({"model": str(tmp_path / "model"), "outputs": []})
    for params, right in ((None, [3.5, 6.5]), ({"k": 1}, [1.5, 2.5]), ({"more": [1, 2], "none": 1}, [4, 7])):
        assert model.answer(ROWS, params)["output"].tolist() == right
    with pytest.raises(MlflowException, match="Invalid parameters"):
        model.answer(ROWS, {"k": "x"})


def test_calls_are_not_traced_since_no_confined_process_opens_a_database(tmp_path: Path) -> None:
    class Traced(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
        @mlflow.trace  # type: ignore[untyped-decorator]
        def answer(self, frame: Any) -> Any:
            return [mlflow.get_current_active_span() is None] * len(frame)

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # MLflow checks by types
            return self.answer(model_input)

    signature = ModelSignature(inputs=Schema([ColSpec("double", "x")]))
    mlflow.pyfunc.save_model(tmp_path / "model", python_model=Traced(), signature=signature, pip_requirements=[])
    model = Model({"model": str(tmp_path / "model"), "outputs": []})
    assert model.answer(ROWS)["output"].tolist() == [True, True]


def test_a_model_with_type_hints_gets_their_types(tmp_path: Path) -> None:
    class Hinted(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
        def predict(self, model_input: list[Pair]) -> list[str]:
            return [pair.b * pair.a for pair in model_input]

    mlflow.pyfunc.save_model(tmp_path / "model", python_model=Hinted(), pip_requirements=[])
    model = Model({"model": str(tmp_path / "model"), "outputs": ["output"]})
    assert model.answer({"input": texts([{"a": 2, "b": "x"}])})["output"].tolist() == ["xx"]


def test_type_hints_get_dates_of_python_in_their_time_zones(tmp_path: Path) -> None:
    class Hinted(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
        def predict(self, model_input: list[datetime]) -> list[str]:
            return [repr(when) for when in model_input]

    mlflow.pyfunc.save_model(tmp_path / "model", python_model=Hinted(), pip_requirements=[])
    model = Model({"model": str(tmp_path / "model"), "outputs": ["output"]})
    zones = (None, UTC, timezone(timedelta(hours=2)))
    asked = [datetime(2024, 1, 2, 3, 4, 5, 6, zone) for zone in zones]
    assert model.answer({"input": texts(asked)})["output"].tolist() == mlflow.pyfunc.load_model(
        tmp_path / "model"
    ).predict(asked)


def test_answers_that_the_signature_contradicts_are_named(tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", lambda frame: {"z": frame["x"]}, [ColSpec("double", "x")], ("x", "y"))
    with pytest.raises(Unservable, match="predict answered z, the signature says x, y"):
        model.answer(ROWS)


def test_tensors_of_texts_are_of_the_type_that_mlflow_wants(tmp_path: Path) -> None:
    text = TensorSpec(np.dtype("str"), (-1, 2))
    model = loaded(tmp_path / "one", lambda array: [str(array.dtype.kind)] * len(array), [text])
    assert model.answer({"input": np.array([["a", "ü"]], object)})["output"].tolist() == ["U"]
    named = [TensorSpec(np.dtype("str"), (-1, 1), "a"), TensorSpec(np.dtype("float64"), (-1, 1), "b")]
    model = loaded(tmp_path / "two", lambda arrays: [arrays["a"].dtype.kind + arrays["b"].dtype.kind], named)
    assert model.answer({"a": np.array([["a"]], object), "b": np.ones((1, 1))})["output"].tolist() == ["Uf"]


def test_outputs_beyond_the_signature_are_outputs_of_their_own(tmp_path: Path) -> None:
    model = loaded(
        tmp_path / "model", lambda frame: {"more": frame["x"], "y": frame["x"] * 2}, [ColSpec("double", "x")], ("y",)
    )
    assert {name: array.tolist() for name, array in model.answer(ROWS).items()} == {"y": [2, 4], "more": [1, 2]}


@pytest.mark.parametrize("logged_for", ["predict", "transform"])
def test_an_estimator_that_only_transforms_answers_that(logged_for: str, tmp_path: Path) -> None:
    rows = np.array([[1.0, 3.0], [2.0, 5.0]])
    estimator = AdditiveChi2Sampler().fit(rows)
    signature = infer_signature(rows, rows)
    mlflow.sklearn.save_model(
        estimator,
        tmp_path / "model",
        signature=signature,
        pip_requirements=[],
        pyfunc_predict_fn=logged_for,
        serialization_format="cloudpickle",
    )
    answers = Model({"model": str(tmp_path / "model"), "outputs": ["output"]}).answer({"input": rows})
    assert answers["output"].tolist() == estimator.transform(rows).tolist()


def test_an_estimator_that_neither_predicts_nor_transforms_is_named(tmp_path: Path) -> None:
    mlflow.sklearn.save_model(DBSCAN(), tmp_path, pip_requirements=[], serialization_format="cloudpickle")
    with pytest.raises(ValueError, match="DBSCAN has no predict and no transform"):
        Model({"model": str(tmp_path), "outputs": []})


@pytest.mark.parametrize("library", ["lightgbm", "lightgbm.train", "xgboost", "xgboost.train"])
def test_a_booster_gets_the_categories_of_its_training(library: str, tmp_path: Path) -> None:
    cities = ["Ulm", "Rom", "Bonn", "Rom"] * 20
    frame = pd.DataFrame({"x": [0.5, 1.5, 2.5, 3.5] * 20, "zone": [3, 7] * 40, "city": cities})
    target = frame["x"] + 10 * (frame["city"] == "Rom") + frame["zone"]
    model = trained(library, frame.astype({"zone": "category", "city": "category"}), target)
    flavor = mlflow.lightgbm if library.startswith("lightgbm") else mlflow.xgboost
    signature = infer_signature(frame, np.zeros(1))  # MLflow takes categories for texts or numbers
    flavor.save_model(model, str(tmp_path), signature=signature, pip_requirements=[])
    asked = {
        "x": np.array([[0.5], [9.0], [1.0]]),
        "zone": np.array([[7], [3], [4]]),
        "city": np.array([["Rom"], ["Ulm"], ["Nowhere"]], dtype=object),
    }
    right = pd.DataFrame(
        {
            "x": asked["x"].ravel(),
            "zone": pd.Categorical([7, 3, None], categories=[3, 7]),
            "city": pd.Categorical(["Rom", "Ulm", None], categories=["Bonn", "Rom", "Ulm"]),
        }
    )
    expected = (
        model.predict(right)
        if library != "xgboost.train"
        else model.predict(xgboost.DMatrix(right, enable_categorical=True))
    )
    (answer,) = Model({"model": str(tmp_path), "outputs": []}).answer(asked).values()
    np.testing.assert_allclose(answer, expected, rtol=1e-6)
    assert len(set(answer.tolist())) > 1


def trained(library: str, rows: Any, target: Any) -> Any:
    """A small model that splits by category."""
    quiet = {"verbose": -1, "min_data_in_leaf": 1, "min_data_per_group": 1, "cat_smooth": 0.0}
    if library == "lightgbm":
        return lightgbm.LGBMRegressor(n_estimators=5, n_jobs=1, **quiet).fit(rows, target)
    if library == "lightgbm.train":
        return lightgbm.train({**quiet, "num_threads": 1}, lightgbm.Dataset(rows, target), 5)
    if library == "xgboost":
        return xgboost.XGBRegressor(n_estimators=5, n_jobs=1, enable_categorical=True).fit(rows, target)
    matrix = xgboost.DMatrix(rows, target, enable_categorical=True)
    return xgboost.train({"nthread": 1}, matrix, 5)


def test_a_frame_keeps_its_columns_whatever_the_signature_calls_its_output(tmp_path: Path) -> None:
    inputs = [ColSpec("double", "x")]
    model = loaded(tmp_path / "model", lambda frame: frame.assign(y=[1, "a"]), inputs, ("output",))
    assert list(model.answer(ROWS)) == ["x", "y"]
    assert [part["name"] for part in model.form["parts"]] == ["x", "y"]
