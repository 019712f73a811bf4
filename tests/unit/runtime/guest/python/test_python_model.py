"""How requests become calls of `predict`. `tests/integration/test_python_models.py` runs it in the real server."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shiplift.runtime.guest import python
from shiplift.runtime.guest.python import host, hosted, keeper, values

FORM = {"kind": "array", "parts": [{"name": "", "tensor": "y", "rank": 1, "column": -1}]}


class Request:
    """A request of one column, with parameters as Triton gives them."""

    def __init__(self, *values: float, **parameters: Any) -> None:
        self.x, self.given = np.array(values).reshape(-1, 1), parameters

    def parameters(self) -> str:
        return json.dumps(self.given)


class Hosted:
    """Stands in for the model's process, and notes what it was asked. `form` is that of its last answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[float], Any]] = []
        self.form: Any = FORM

    def ask(self, inputs: Any, _limit_s: float, params: Any) -> Any:
        self.asked.append((inputs["x"].ravel().tolist(), params))
        self.form = FORM | {"kind": "records"} if (params or {}).get("frame") else FORM
        return {"y": inputs["x"].ravel() * (params or {}).get("k", 1)}


def utils() -> ModuleType:
    """The parts of Triton's module that are used here."""
    module = ModuleType("triton_python_backend_utils")
    module.__dict__.update(
        get_input_tensor_by_name=lambda request, _: SimpleNamespace(as_numpy=lambda: request.x),
        Tensor=lambda _, array: array.ravel().tolist(),
        TritonError=str,
        InferenceResponse=lambda tensors, error=None: error or tensors[0],
    )
    return module


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An instance, without Triton and the model's process."""
    beside = {
        "triton_python_backend_utils": utils(),
        "python_host": ModuleType("python_host"),
        "python_host.host": host,
        "python_host.hosted": hosted,
        "python_host.values": values,
    }
    for name, module in beside.items():
        monkeypatch.setitem(sys.modules, name, module)
    spec = importlib.util.spec_from_file_location("model", Path(python.__file__).with_name("python_model.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    process = object.__new__(hosted.HostedModel)
    vars(process).update(host=Hosted(), keeper=keeper.Keeper("m", 1))
    made = object.__new__(module.TritonPythonModel)
    vars(made).update(
        inputs=[("x", 2, False)],
        outputs=[("y", "<f8")],
        params=frozenset(["k", "frame"]),
        form=module._shape(FORM),
        limit_s=1,
        hosted=process,
    )
    return made


def test_requests_with_parameters_of_their_own_are_never_mixed_with_others(model: Any) -> None:
    requests = [
        Request(1),
        Request(2, k=2),
        Request(3, 4),
        Request(5, params='{"k": 3}'),
        Request(6, k=2),
        Request(7, triton_enable_empty_final_response=False),
    ]
    assert model.execute(requests) == [[1], [4], [3, 4], [15], [12], [7]]
    assert model.hosted.host.asked == [([1, 3, 4, 7], None), ([2], {"k": 2}), ([5], {"k": 3}), ([6], {"k": 2})]


def test_a_request_with_wrong_parameters_fails_alone(model: Any) -> None:
    wrong = {
        "not a JSON object": [Request(1, params="{"), Request(1, params="[1]"), Request(1, params="[" * 60_000)],
        "the limit is": [Request(1, params=json.dumps({"k": "x" * (64 << 10)}))],
        "another form": [Request(1, frame=True)],
    }
    for said, requests in wrong.items():
        *refused, answered, beside = model.execute([*requests, Request(2, k=2), Request(3)])
        assert all(said in error for error in refused), refused
        assert (answered, beside) == ([4], [3])


def test_a_model_without_parameters_ignores_those_of_requests_as_mlflow_does(model: Any) -> None:
    model.params = frozenset()
    assert model.execute([Request(1, k=2), Request(2, params="{")]) == [[1], [2]]


def test_a_first_request_whose_answer_is_missing_is_served_as_any_other(model: Any) -> None:
    """A fresh process has seen no other rows, so it can't know what is missing: the proof does."""
    missing, answers = np.array([np.nan]), model._response
    model.outputs = [("y", "BYTES")]
    assert answers({"y": missing}) == [values.MISSING.encode()]
    with pytest.raises(host.Raised, match="of type float64, not text"):
        answers({"y": np.array([1.5])})
    model.outputs = [("y", "<i8")]
    with pytest.raises(host.Raised, match="of type float64, not <i8"):
        answers({"y": missing})
    model.outputs = [("y", "<f8")]
    assert answers({"y": np.array([True])}) == [1.0]
    with pytest.raises(host.Raised, match="of type int64, not <f8"):
        answers({"y": np.array([2**53 + 1])})  # it would be another number
