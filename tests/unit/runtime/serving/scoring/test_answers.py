"""Answers in pyfunc's form, as MLflow's server writes them."""

import io
import json
from datetime import date
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mlflow.pyfunc.scoring_server import predictions_to_json

from shiplift.runtime.guest.python.outputs import Outputs
from shiplift.runtime.guest.python.pyfunc import Model, _form
from shiplift.runtime.records.scoring import AnswerForm
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.serving.scoring.answers import body_of, form_of, value_of
from tests.unit.runtime.serving.scoring.schemas import of_columns

ANSWERS: dict[str, Any] = {
    "labels": np.array([1, 0, 2]),
    "texts": np.array(["a", "b", "ü"], dtype=object),
    "one column": np.array([[1.5], [2.5], [float("nan")]]),
    "a matrix": np.arange(6, dtype=np.float32).reshape(3, 2),
    "a list": ["a", "b", "c"],
    "a list of lists": [[1, 2], [3, 4], [5, 6]],
    "booleans": np.array([True, False, True]),
    "a frame": pd.DataFrame({"label": ["a", "b", "c"], "score": [0.5, 0.25, 1.0]}),
    "a frame of numbered columns": pd.DataFrame(np.arange(6.0).reshape(3, 2)),
    "texts, some missing": ["a", None, "c"],
    "a series": pd.Series([1.0, 2.0, 3.0], name="price"),
    "a nameless series": pd.Series([1, 2, 3]),
    "a mapping": {"label": np.array([1, 2, 3]), "scores": np.ones((3, 2))},
    "numbers, some None": [1.5, None, float("nan")],
    "a frame with None": pd.DataFrame({"a": pd.Series([1.5, None, float("nan")], dtype=object)}),
    "booleans, some None": [True, None, False],
    "bytes": [b"a\x00", b"", bytes(100)],
    "bytes, some missing": [b"\xff", None, b"b"],
    "an array of bytes": np.array([b"ab", b"c", b"d"]),
    "a frame of bytes": pd.DataFrame({"file": [b"a", b"b", b"c"], "text": ["a", "b", "c"]}),
    "a list of arrays": [np.array([1, 2, 3]), np.ones((3, 2)), ["a", None, "c"]],
    "a tuple of one array": (np.array([[1.5], [2.5], [3.5]]),),
    "a nullable column, one None": pd.DataFrame({"q": pd.Series([1.5, None, 3.0], dtype="Float64")}),
}
AS_JSON: dict[str, Any] = {
    "nested": [{"who": "Ada", "more": [1.5, None, {"deep": True}]}, {}, {"who": None}],
    "lists of several lengths": [[1.5, None], [], ["a", {"b": 1}]],
    "values of several types": [1, "1", None],
    "booleans and numbers": [True, 2, 2.5],
    "texts that look like JSON": ["1", "null", "{}"],
    "large whole numbers and None": [(1 << 60) + 1, None, 1 << 70],
    "dates and numbers": [date(2024, 2, 29), 1, None],
    "a matrix of objects": np.array([["a", 1], [None, 2.5], [True, []]], dtype=object),
    "a frame of lists": pd.DataFrame({"a": [[1], [1, 2], []], "b": ["x", 1, None]}),
}
ANSWERS |= AS_JSON
LISTED = ("a list of arrays", "a tuple of one array")


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_written_as_mlflow_s_server_writes_pyfunc_s(name: str) -> None:
    answer = ANSWERS[name]
    model = object.__new__(Model)
    vars(model).update(_outputs=[], _document=False, _listed=name in LISTED)
    parts = model._parts(answer, 3)
    made = Outputs(json=parts.values if name in AS_JSON else ())
    arrays = {each: made.tensor(each, value, 3) for each, value in parts.values.items()}
    form = AnswerForm.told(_form(parts, arrays, made))
    assert form
    carried = {each: array.reshape(len(array), -1) if array.ndim == 1 else array for each, array in arrays.items()}
    chunks = [
        {each: array[:1] for each, array in carried.items()},
        {each: array[1:] for each, array in carried.items()},
    ]
    theirs = io.StringIO()
    predictions_to_json(answer, theirs)
    assert body_of(form, chunks).decode() == theirs.getvalue()
    assert json.loads(body_of(form, chunks, wrapped=False)) == json.loads(theirs.getvalue())["predictions"]
    again = io.StringIO()
    predictions_to_json(value_of(form, chunks), again)  # the same answer as a value for programs
    if "None" not in name:  # it has NaN among numbers, as arrays have
        assert again.getvalue() == theirs.getvalue()


def test_columns_of_one_matrix_are_records_again() -> None:
    part = {"name": "a", "tensor": "y", "rank": 1, "column": 1}
    form = AnswerForm.model_validate({"kind": "records", "parts": [part, {**part, "name": "b", "column": 0}]})
    body = json.loads(body_of(form, [{"y": np.array([[1.0, 2.0], [3.0, 4.0]])}]))
    assert body == {"predictions": [{"a": 2.0, "b": 1.0}, {"a": 4.0, "b": 3.0}]}


def test_without_pyfunc_s_answer_the_logged_outputs_give_the_form() -> None:
    outputs = tuple(TensorSpec(name=name, datatype="FP32", shape=(-1, 1)) for name in ("label", "score"))
    columns = [{"type": "string", "name": "label"}, {"type": "double", "name": "score"}]
    tensors = [{"type": "tensor", "name": each["name"]} for each in columns]
    for logged, kind, parts in ((columns, "records", 2), (tensors, "mapping", 2), ([], "array", 1)):
        form = form_of(of_columns({"a": "double"}, outputs=outputs, logged=logged))
        assert (form.kind, len(form.parts)) == (kind, parts)


def test_a_form_that_names_other_tensors_is_not_used() -> None:
    told = AnswerForm.told({"kind": "array", "parts": [{"tensor": "gone", "rank": 1}]})
    assert form_of(of_columns({"a": "double"}, answer=told)).parts[0].tensor == "y"
    assert AnswerForm.told({"kind": "array", "parts": []}) is None
