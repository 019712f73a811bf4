"""Services as versions: what a folder must have, and a Triton Python model that answers as it would inside Triton."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.model.contracts import read_model
from shiplift.runtime.records.model import PYTHON
from shiplift.runtime.serving.triton.service import as_version

CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }, { name: "unit" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "total" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "said" data_type: TYPE_STRING dims: [ 1 ] } ]
parameters { key: "factor" value { string_value: "2" } }
"""
SERVICE = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from helper import FACTOR


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.factor = FACTOR * float(self.config["parameters"]["factor"]["string_value"])
        total = pb_utils.get_output_config_by_name(self.config, "total")
        self.kind = pb_utils.triton_string_to_numpy(total["data_type"])
        with open(os.path.join(args["model_repository"], args["model_version"], "words.txt")) as file:
            self.word = file.read().strip()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        unit = pb_utils.get_input_tensor_by_name(request, "unit").as_numpy()
        if (x > 1000).any():
            return pb_utils.InferenceResponse([], pb_utils.TritonError("x is too large"))
        total = (x.sum(axis=1, keepdims=True) * self.factor).astype(self.kind)
        said = np.array([[self.word.encode() + b" " + text] for text in unit[:, 0]], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("total", total), pb_utils.Tensor("said", said)])
"""
FOLDER = {
    "service.py": SERVICE.encode(),
    "config.pbtxt": CONFIG.encode(),
    "requirements.txt": b"numpy==2.4.6\n",
    "helper.py": b"FACTOR = 3.0\n",
    "words.txt": b"in\n",
    "example.json": b'{"x": [[1, 2, 3]], "unit": [["cm"]]}',
    "shiplift.yaml": b"admission: {python: sandbox}\n",
}


def test_a_folder_becomes_a_model_that_mlflow_loads_from_code() -> None:
    files = as_version("adder", FOLDER)
    assert set(files) == {
        "MLmodel",
        "service_model.py",
        "config.json",
        "service.py",
        "requirements.txt",
        "helper.py",
        "words.txt",
        "input_example.json",
        "shiplift/shiplift.yaml",
    }
    meta = yaml.safe_load(files["MLmodel"])
    flavor = meta["flavors"]["python_function"]
    assert flavor["loader_module"] == "mlflow.pyfunc.loaders.code_model"
    assert flavor["model_code_path"] == "service_model.py"
    inputs = json.loads(meta["signature"]["inputs"])
    assert [(each["name"], each["tensor-spec"]) for each in inputs] == [
        ("x", {"dtype": "float32", "shape": [-1, 3]}),
        ("unit", {"dtype": "object", "shape": [-1, 1]}),
    ]


def test_its_example_is_the_version_s(tmp_path: Path) -> None:
    files = as_version("adder", FOLDER)
    for path in ("MLmodel", "requirements.txt", "input_example.json"):
        (tmp_path / path).write_bytes(files[path])
    logged = read_model(tmp_path, python=True)
    assert logged.flavor == PYTHON
    assert logged.example is not None
    assert logged.example["x"].tolist() == [[1.0, 2.0, 3.0]]
    assert logged.example["unit"].tolist() == [["cm"]]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The service as `mlflow.pyfunc` has it, without MLflow's process."""
    for path, body in as_version("adder", FOLDER).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(body)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("service", "helper", "triton_python_backend_utils"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that it is taken back afterwards
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location("service_model", tmp_path / "service_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Service()
    made.load_context(None)
    return made


def test_it_answers_a_batch_as_its_author_wrote_it(service: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    answer = service.predict(None, {"x": x, "unit": np.array([["é"], ["cm"]], object)})
    assert answer["total"].tolist() == [[18.0], [72.0]]
    assert answer["total"].dtype == np.float32
    assert answer["said"].tolist() == [["in é"], ["in cm"]]


def test_its_errors_are_errors(service: Any) -> None:
    inputs = {"x": np.full((1, 3), 2000, np.float32), "unit": np.array([["cm"]], object)}
    with pytest.raises(Exception, match="x is too large"):
        service.predict(None, inputs)
    service.model.execute = lambda requests: []
    with pytest.raises(Exception, match="one response to one request"):
        service.predict(None, inputs)
    service.model.execute = lambda requests: [sys.modules["triton_python_backend_utils"].InferenceResponse([])]
    with pytest.raises(Exception, match=r"answered no 'total', which config\.pbtxt promises"):
        service.predict(None, inputs)
    service.model.execute = lambda requests: requests[0].exec()
    with pytest.raises(Exception, match="can't call other models"):
        service.predict(None, inputs)


@pytest.mark.parametrize("missing", ["service.py", "config.pbtxt", "requirements.txt"])
def test_a_folder_without_what_it_needs_is_refused_by_its_name(missing: str) -> None:
    with pytest.raises(NotAdmitted, match=f"the service adder has no {missing}"):
        as_version("adder", {path: body for path, body in FOLDER.items() if path != missing})


def test_a_service_of_texts_has_an_example_of_them() -> None:
    with pytest.raises(NotAdmitted, match="takes texts as 'unit', but gives no examples"):
        as_version("adder", {path: body for path, body in FOLDER.items() if path != "example.json"})


@pytest.mark.parametrize("path", ["MLmodel", "service_model.py", "config.json"])
def test_a_folder_can_not_contain_files_that_shiplift_writes(path: str) -> None:
    with pytest.raises(NotAdmitted, match=f"has a file {path}"):
        as_version("adder", {**FOLDER, path: b""})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (b"\xff", "can't be read"),
        (b"nonsense: 1", "can't be read"),
        (CONFIG.replace("max_batch_size: 8", "").encode(), "has max_batch_size 0"),
        (CONFIG.replace('"python"', '"onnxruntime"').encode(), "has the backend 'onnxruntime'"),
        (f"{CONFIG}model_transaction_policy {{ decoupled: true }}".encode(), "sets model_transaction_policy"),
        (f"{CONFIG}sequence_batching {{ }}".encode(), "sets sequence_batching"),
        (b'max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]', "no inputs or no outputs"),
        (
            CONFIG.replace("TYPE_FP32 dims: [ 3 ]", "TYPE_FP32 dims: [ 3 ] optional: true").encode(),
            "makes 'x' optional",
        ),
        (CONFIG.replace("TYPE_FP32 dims: [ 3 ]", "TYPE_BF16 dims: [ 3 ]").encode(), "gives 'x' no type"),
        (CONFIG.replace("dims: [ 3 ]", "dims: [ 3 ] reshape { shape: [ ] }").encode(), "reshapes 'x'"),
    ],
)
def test_a_configuration_that_no_service_can_have_is_refused(config: bytes, reason: str) -> None:
    with pytest.raises(NotAdmitted, match=reason):
        as_version("adder", {**FOLDER, "config.pbtxt": config})
