import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.guest.python.values import MISSING
from shiplift.runtime.model.contracts import METADATA, LoggedModel, likely_flavor, read_model
from shiplift.runtime.model.tensors import Arrays
from tests.unit.examples import tensor

IMAGES = {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2, 2]}}
LOGITS = {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}


class Logged:
    """A logged model's folder, made of what MLflow writes; `read` reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = {
            "flavors": {"python_function": {}, "pytorch": {"model_data": "data"}},
            "signature": {"inputs": json.dumps([IMAGES]), "outputs": json.dumps([LOGITS])},
            "saved_input_example_info": {"artifact_path": "input_example.json", "type": "ndarray"},
        }
        self.example: Any = {"inputs": np.arange(8).reshape(2, 2, 2).tolist()}
        self.text: str | None = None

    def inputs(self, *entries: Any) -> None:
        self.meta["signature"]["inputs"] = json.dumps(entries)

    def read(self) -> LoggedModel:
        text = self.text if self.text is not None else yaml.safe_dump(self.meta)
        (self.folder / "MLmodel").write_text(text)
        (self.folder / "input_example.json").write_text(json.dumps(self.example))
        return read_model(self.folder)

    def read_example(self) -> Arrays:
        example = self.read().example
        assert example is not None
        return example

    def refused(self) -> str:
        with pytest.raises(NotAdmitted) as error:
            self.read()
        return error.value.what


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(tmp_path)


def test_a_model_s_promise_is_its_flavor_its_tensors_and_its_example(logged: Logged) -> None:
    promise = logged.read()
    assert (promise.flavor, promise.tabular) == ("pytorch", False)
    assert promise.signature.inputs == (tensor("input", -1, 2, 2),)
    assert promise.signature.outputs == (tensor("output", -1, 3),)
    assert promise.example is not None
    assert (promise.example["input"].dtype, promise.example["input"].shape) == (np.dtype(np.float32), (2, 2, 2))


@pytest.mark.parametrize(
    "example",
    [
        np.zeros((2, 2, 2)).tolist(),
        {"inputs": np.zeros((2, 2, 2)).tolist()},
        {"inputs": {"input": np.zeros((2, 2, 2)).tolist()}},
        {"input": np.zeros((2, 2, 2)).tolist()},
    ],
)
def test_an_example_may_be_written_in_each_of_mlflow_s_forms(logged: Logged, example: Any) -> None:
    logged.example = example
    assert logged.read_example()["input"].shape == (2, 2, 2)


def test_an_example_with_parameters_is_read_without_them(logged: Logged) -> None:
    logged.meta["saved_input_example_info"]["example_params_path"] = "params.json"
    assert logged.read_example()["input"].shape == (2, 2, 2)


def test_several_inputs_are_taken_by_name(logged: Logged) -> None:
    ids = {"name": "ids", "type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [-1, 4]}}
    mask = {"name": "mask", "type": "tensor", "tensor-spec": {"dtype": "bool", "shape": [-1, 4]}}
    logged.inputs(ids, mask)
    logged.example = {"inputs": {"mask": [[True] * 4] * 2, "ids": [[1, 2, 3, 4]] * 2}}
    promise = logged.read()
    assert promise.signature.inputs == (tensor("ids", -1, 4, datatype="INT64"), tensor("mask", -1, 4, datatype="BOOL"))
    assert list(logged.read_example()) == ["ids", "mask"]


def test_outputs_without_names_are_numbered(logged: Logged) -> None:
    logged.meta["signature"]["outputs"] = json.dumps([LOGITS, LOGITS])
    assert [spec.name for spec in logged.read().signature.outputs] == ["output_0", "output_1"]


@pytest.mark.parametrize(
    ("flavors", "flavor"), [(["pytorch", "onnx"], "onnx"), (["sklearn", "python_function"], "sklearn")]
)
def test_the_flavor_that_needs_the_least_trust_is_taken(logged: Logged, flavors: list[str], flavor: str) -> None:
    logged.meta["flavors"] = {name: {} for name in flavors}
    assert logged.read().flavor == flavor


def table(logged: Logged) -> None:
    logged.inputs(
        {"name": "age", "type": "long"},
        {"name": "height", "type": "double"},
        {"name": "city", "type": "string"},
        {"name": "member", "type": "boolean"},
    )
    logged.meta["saved_input_example_info"]["type"] = "dataframe"
    logged.example = {
        "columns": ["age", "height", "city", "member"],
        "data": [[31, 1.8, "Bonn", True], [45, 2, "Jena", False]],
    }


def test_the_columns_of_a_data_frame_are_inputs_of_one_number_a_sample(logged: Logged) -> None:
    table(logged)
    promise = logged.read()
    assert promise.tabular
    assert promise.signature.inputs == (
        tensor("age", -1, 1, datatype="INT64"),
        tensor("height", -1, 1, datatype="FP64"),
        tensor("city", -1, 1, datatype="BYTES"),
        tensor("member", -1, 1, datatype="BOOL"),
    )
    assert {name: array.tolist() for name, array in logged.read_example().items()} == {
        "age": [[31], [45]],
        "height": [[1.8], [2.0]],
        "city": [["Bonn"], ["Jena"]],
        "member": [[True], [False]],
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[31, 1.8, "Bonn"]], "does not match the signature"),
        ([["old", 1.8, "Bonn", True]], "does not match the signature"),
        ([[None, 1.8, "Bonn", True]], "row 0 of the input example has no value in the column 'age'"),
        ([[31, float("inf"), "Bonn", True]], "'height' holds infinity"),
        ([], "no samples"),
    ],
)
def test_rows_that_do_not_fit_their_columns_are_refused(logged: Logged, data: Any, message: str) -> None:
    table(logged)
    logged.example["data"] = data
    assert message in logged.refused()


def test_what_an_example_lacks_is_not_a_number(logged: Logged) -> None:
    table(logged)
    logged.example["data"] = [[31, None, "Bonn", True], [45, float("nan"), "Jena", False]]
    assert np.isnan(logged.read_example()["height"]).all()


def test_columns_without_names_are_numbered(logged: Logged) -> None:
    table(logged)
    columns = [{"type": "double", "name": 0}, {"type": "double", "name": 1}]
    logged.meta["signature"]["inputs"] = json.dumps(columns)
    logged.example = {"data": [[1.5, 2.5]]}
    assert {name: array.tolist() for name, array in logged.read_example().items()} == {"0": [[1.5]], "1": [[2.5]]}


def test_two_columns_of_one_name_are_refused(logged: Logged) -> None:
    table(logged)
    logged.meta["signature"]["inputs"] = json.dumps([{"type": "double", "name": "age"}] * 2)
    assert logged.refused() == "two inputs are called 'age'"


def test_a_column_with_an_empty_name_is_refused(logged: Logged) -> None:
    table(logged)
    columns = [{"type": "double", "name": ""}, {"type": "double", "name": "b"}]
    logged.meta["signature"]["inputs"] = json.dumps(columns)
    assert logged.refused() == "an input has an empty name"


def test_a_sparse_example_is_what_clients_send(logged: Logged) -> None:
    logged.meta["signature"]["inputs"] = json.dumps([IMAGES | {"tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}])
    logged.meta["saved_input_example_info"]["type"] = "sparse_matrix_csr"
    logged.example = {"data": [5.0, 7.0], "indices": [1, 0], "indptr": [0, 1, 2], "shape": [2, 3]}
    assert logged.read_example()["input"].tolist() == [[0, 5, 0], [7, 0, 0]]
    logged.example["shape"] = [2, 1 << 40]
    assert "too large for an example" in logged.refused()


def test_a_column_that_holds_no_number_travels_as_text(logged: Logged) -> None:
    cases: list[tuple[Any, Any, str]] = [
        ({"type": "datetime"}, "2024-02-29T12:30:00.5", "2024-02-29T12:30:00.5"),
        ({"type": "binary"}, "AP8=", "AP8="),
        ({"type": "array", "items": {"type": "long"}}, [1, 2], "[1, 2]"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": "ü"}, '{"a": "\\u00fc"}'),
        ({"type": "map", "values": {"type": "double"}}, {"b": 1.5}, '{"b": 1.5}'),
        ({"type": "string", "required": False}, None, MISSING),
    ]
    table(logged)
    for entry, value, text in cases:
        logged.inputs({"name": "held", **entry})
        logged.example = {"columns": ["held"], "data": [[value]]}
        assert logged.read().signature.inputs[0].datatype == "BYTES"
        assert logged.read_example()["held"].tolist() == [[text]]


def test_a_boolean_that_may_be_missing_is_a_number(logged: Logged) -> None:
    table(logged)
    logged.inputs({"name": "held", "type": "boolean", "required": False})
    logged.example = {"columns": ["held"], "data": [[True], [None], [False]]}
    np.testing.assert_array_equal(logged.read_example()["held"], np.array([[1], [np.nan], [0]], np.float32))


def test_an_optional_column_that_the_example_lacks_is_not_served(logged: Logged) -> None:
    table(logged)
    logged.inputs({"name": "age", "type": "long"}, {"name": "years", "type": "long", "required": False})
    logged.example = {"columns": ["age"], "data": [[31]]}
    read = logged.read()
    assert [spec.name for spec in read.signature.inputs] == ["age"]
    assert "years" in read.notes[0]
    logged.example = {"columns": ["age", "years"], "data": [[31, 2]]}
    assert [spec.optional for spec in logged.read().signature.inputs] == [False, True]


def test_an_example_need_not_be_a_data_frame_for_columns(logged: Logged) -> None:
    text, record = {"type": "string"}, {"type": "object", "properties": {"a": {"type": "long"}}}
    named = {"name": "q", **text}
    cases: list[tuple[list[Any], Any, dict[str, list[list[str]]]]] = [
        ([text], ["a", "b"], {"input": [["a"], ["b"]]}),
        ([text], "a", {"input": [["a"]]}),
        ([record], [{"a": 1}, {"a": 2}], {"input": [['{"a": 1}'], ['{"a": 2}']]}),
        ([record], {"a": 1}, {"input": [['{"a": 1}']]}),
        ([named], {"q": "a"}, {"q": [["a"]]}),
        ([named], {"q": ["a", "b"]}, {"q": [["a"], ["b"]]}),
        ([named], [{"q": "a"}, {"q": "b"}], {"q": [["a"], ["b"]]}),
        ([{"name": "q", "type": "array", "items": text}], {"q": ["a", "b"]}, {"q": [['["a", "b"]']]}),
    ]
    logged.meta["saved_input_example_info"]["type"] = "json_object"
    for entries, example, right in cases:
        logged.inputs(*entries)
        logged.example = example
        assert {name: array.tolist() for name, array in logged.read_example().items()} == right


def test_a_data_frame_without_a_named_schema_is_taken_by_position(logged: Logged) -> None:
    table(logged)
    logged.inputs({"type": "double"}, {"type": "string"})
    logged.example = {"columns": [0, 1], "data": [[1.5, "a"]]}
    assert {name: array.tolist() for name, array in logged.read_example().items()} == {
        "input_0": [[1.5]],
        "input_1": [["a"]],
    }


def test_a_column_that_the_example_lacks_is_named(logged: Logged) -> None:
    table(logged)
    logged.example["columns"][0] = "years"
    assert "'age'" in logged.refused()


def test_a_folder_without_an_mlmodel_file_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotAdmitted, match="it has no MLmodel file") as error:
        read_model(tmp_path)
    assert "log_model(" in error.value.do


@pytest.mark.parametrize(
    "text",
    ["[", "{a: 2024-13-45}", "[" * 1000, "a: \x00", "a: " + "9" * 5000],
    ids=["syntax", "date", "deep", "nul", "long"],
)
def test_an_mlmodel_file_that_is_no_yaml_is_refused(logged: Logged, text: str) -> None:
    logged.text = text
    assert "the MLmodel file can't be read" in logged.refused()


@pytest.mark.parametrize("text", ["", "5", "[a]"])
def test_an_mlmodel_file_that_says_nothing_is_refused(logged: Logged, text: str) -> None:
    logged.text = text
    assert "not a mapping" in logged.refused()


def test_an_mlmodel_file_that_is_no_text_is_refused(logged: Logged, tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NotAdmitted, match="can't be read"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("flavors", "message"), [({"prophet": {}, "spark": {}}, "prophet, spark"), ({}, "none"), (None, "none")]
)
def test_an_unknown_flavor_is_told_with_the_known_ones(logged: Logged, flavors: Any, message: str) -> None:
    logged.meta["flavors"] = flavors
    known = (
        "onnx, pytorch, sklearn, lightgbm, xgboost, catboost, tensorflow, keras, transformers, sentence_transformers, "
        "python_function"
    )
    assert logged.refused() == f"the version's flavors are {message}; known ones are {known}"


@pytest.mark.parametrize("signature", [None, {}])
def test_a_model_without_a_signature_is_refused_with_how_to_log_one(logged: Logged, signature: Any) -> None:
    logged.meta["signature"] = signature
    with pytest.raises(NotAdmitted, match="the version has no signature") as error:
        logged.read()
    assert "mlflow.pytorch.log_model(model, name='model', signature=infer_signature(x.numpy(), " in error.value.do


@pytest.mark.parametrize("missing", ["inputs", "outputs"])
@pytest.mark.parametrize("empty", [None, "", "[]"])
def test_a_signature_names_inputs_and_outputs(logged: Logged, missing: str, empty: Any) -> None:
    logged.meta["signature"][missing] = empty
    assert "does not name both inputs and outputs" in logged.refused()


@pytest.mark.parametrize(
    "inputs",
    [
        "{",
        "5",
        '"text"',
        "[5]",
        "{}",
        '[{"type": "tensor"}]',
        '[{"type": "tensor", "tensor-spec": {}}]',
        '[{"type": "tensor", "tensor-spec": {"dtype": "float33", "shape": [-1]}}]',
        '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": "all"}}]',
        '[{"type": "tensor", "name": 5, "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]',
        "[" * 100_000,
    ],
)
def test_a_signature_that_cannot_be_read_is_refused(logged: Logged, inputs: str) -> None:
    logged.meta["signature"]["inputs"] = inputs
    assert "signature" in logged.refused()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("signature", "text"),
        ("signature", [1]),
        ("flavors", 5),
        ("flavors", {1: {}}),
        ("saved_input_example_info", "x"),
        ("saved_input_example_info", {"artifact_path": 5, "type": "ndarray"}),
    ],
)
def test_an_mlmodel_file_of_another_shape_is_refused_and_no_crash(logged: Logged, key: str, value: Any) -> None:
    logged.meta[key] = value
    assert logged.refused()


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "tensor", "name": "when", "tensor-spec": {"dtype": "datetime64[s]", "shape": [-1, 1]}},
        {"type": "tensor", "name": "wave", "tensor-spec": {"dtype": "complex64", "shape": [-1, 1]}},
    ],
)
def test_a_type_that_triton_cannot_carry_is_named(logged: Logged, entry: dict[str, Any]) -> None:
    logged.inputs(entry)
    assert logged.refused().startswith(f"input {entry['name']!r} has type")
    assert "Triton can't carry" in logged.refused()


@pytest.mark.parametrize("info", [None, {}])
def test_a_model_without_an_input_example_has_none(logged: Logged, info: Any) -> None:
    logged.meta["saved_input_example_info"] = info
    assert logged.read().example is None


def test_an_example_that_is_missing_is_refused(logged: Logged) -> None:
    logged.meta["saved_input_example_info"] = {"artifact_path": "gone.json", "type": "ndarray"}
    assert logged.refused() == "the version has no input example where its MLmodel file says"


@pytest.mark.parametrize("path", ["../secret.json", "/etc/hostname", "sub/example.json", "."])
def test_an_example_outside_the_model_is_not_read(logged: Logged, tmp_path: Path, path: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for file in (tmp_path / "secret.json", folder / "sub" / "example.json"):
        file.write_text(json.dumps(logged.example))
    logged.folder = folder
    logged.meta["saved_input_example_info"]["artifact_path"] = path
    assert logged.refused() == "the version has no input example where its MLmodel file says"


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (np.zeros((2, 3, 2)).tolist(), "'input' has shape (2, 3, 2), the signature says (-1, 2, 2)"),
        (np.zeros((2, 2)).tolist(), "'input' has shape (2, 2)"),
        (5, "'input' has shape (1,)"),
        ([[[1, 2], [3]]], "does not match the signature"),
        ({"other": [1]}, "does not match the signature"),
        ([[["a", "b"], ["c", "d"]]], "does not match the signature"),
        (None, "'input' has shape (1,)"),
        ([[[1, 2], [3, float("inf")]]], "holds infinity"),
        (np.zeros((0, 2, 2)).tolist(), "'input' has shape (0,)"),
    ],
)
def test_an_example_that_does_not_fit_is_told_why(logged: Logged, example: Any, message: str) -> None:
    logged.example = example
    assert message in logged.refused()


def test_a_number_too_large_for_its_type_is_refused(logged: Logged) -> None:
    logged.inputs({"type": "tensor", "tensor-spec": {"dtype": "int8", "shape": [-1, 1]}})
    logged.example = [[300]]
    assert "does not match the signature" in logged.refused()


def test_examples_of_different_batch_sizes_are_refused(logged: Logged) -> None:
    logged.inputs(*({"name": name, **LOGITS} for name in "ab"))
    logged.example = {"inputs": {"a": [[1, 2, 3]], "b": [[1, 2, 3]] * 2}}
    assert "different batch sizes" in logged.refused()


def test_a_fixed_batch_is_refused_with_how_to_free_it(logged: Logged) -> None:
    logged.inputs({"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [2, 2, 2]}})
    with pytest.raises(NotAdmitted, match=r"has the fixed shape \(2, 2, 2\)") as error:
        logged.read()
    assert "-1" in error.value.do


def test_an_example_that_is_no_json_is_refused(logged: Logged, tmp_path: Path) -> None:
    logged.read()
    for body in (b"{", b"\xff", b"[" * 100_000):
        (tmp_path / "input_example.json").write_bytes(body)
        with pytest.raises(NotAdmitted, match="does not match the signature"):
            read_model(tmp_path)


def test_an_example_of_a_column_major_frame_without_columns_is_refused(logged: Logged) -> None:
    table(logged)
    logged.example = {"index": [0], "data": [[1]]}
    assert "does not match the signature" in logged.refused()


@pytest.mark.parametrize(
    ("text", "flavor"),
    [
        ("flavors:\n  python_function:\n    loader_module: mlflow.sklearn\n  sklearn:\n    code: null\n", "sklearn"),
        ("flavors:\n  onnx:\n    data: model.onnx\n  python_function:\n", "onnx"),
        ("flavors:\n  python_function:\n", "python_function"),
        ("xgboost:\n", ""),
        (None, ""),
    ],
)
def test_the_likely_flavor_is_read_off_the_text(tmp_path: Path, text: str | None, flavor: str) -> None:
    if text is not None:
        (tmp_path / METADATA).write_text(text)
    assert likely_flavor(tmp_path) == flavor


def test_an_mlmodel_file_that_is_a_pipe_or_a_link_has_no_likely_flavor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / METADATA)
    assert likely_flavor(tmp_path) == ""
    (tmp_path / METADATA).unlink()
    (tmp_path / METADATA).symlink_to("/dev/zero")
    assert likely_flavor(tmp_path) == ""


# --- Python models -------------------------------------------------------------------------------------------------


@pytest.fixture
def in_python(logged: Logged) -> Logged:
    """A Python model, pickled, with what it needs."""
    logged.meta["flavors"] = {
        "python_function": {
            "loader_module": "mlflow.pyfunc.model",
            "python_model": "python_model.pkl",
            "cloudpickle_version": "3.1.2",
            "python_version": platform.python_version(),
        }
    }
    logged.meta["mlflow_version"] = "3.17.2"
    (logged.folder / "requirements.txt").write_text("numpy==2.1.0\n")
    return logged


def test_a_python_model_is_refused_unless_the_spec_says_otherwise(in_python: Logged) -> None:
    assert "the spec says `python: refuse`" in in_python.refused()
    model = read_model(in_python.folder, python=True)
    assert model.flavor == "python_function"
    assert model.requirements == ("cloudpickle==3.1.2", "mlflow==3.17.2", "numpy==2.1.0")


def test_a_python_model_s_outputs_may_be_left_to_its_answers(in_python: Logged) -> None:
    in_python.meta["signature"]["outputs"] = None
    in_python.refused()
    assert read_model(in_python.folder, python=True).signature.outputs == ()


def test_whatever_has_the_flavor_python_function_is_a_python_model(in_python: Logged) -> None:
    for loader in ("mlflow.statsmodels", "mlflow.pyfunc.loaders.chat_model", "a_flavor_of_our_own"):
        in_python.meta["flavors"]["python_function"]["loader_module"] = loader
        in_python.meta["flavors"]["a_flavor_of_our_own"] = {}
        assert "the spec says `python: refuse`" in in_python.refused()
        assert read_model(in_python.folder, python=True).flavor == "python_function"


def test_a_model_of_another_flavor_can_be_read_as_a_python_model(in_python: Logged) -> None:
    in_python.meta["flavors"]["sklearn"] = {}
    assert in_python.read().flavor == "sklearn"
    assert read_model(in_python.folder, python=True, as_python=True).flavor == "python_function"


def test_a_python_model_of_another_version_of_python_is_refused(in_python: Logged) -> None:
    in_python.meta["flavors"]["python_function"]["python_version"] = "3.1.4"
    in_python.refused()
    with pytest.raises(NotAdmitted, match=r"was logged with Python 3\.1\.4"):
        read_model(in_python.folder, python=True)
