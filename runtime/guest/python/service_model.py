"""A Triton Python model as `mlflow.pyfunc` loads it: the author's `service.py` runs in a process of its own.

`shiplift push` registers a service with this file as its model. `triton_python_backend_utils` exists only inside
Triton; this file has the parts of it that a model needs by itself. Parts that it can't provide (calls of other models,
decoupled answers) raise.

Process: the model's own process, as `service_model.py` in the folder that MLflow logs.
Python: the model's
Packages: mlflow, numpy
"""

import importlib.util
import inspect
import json
import logging
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import mlflow
import numpy as np
from numpy.typing import NDArray

_HERE = Path(__file__).parent
_SERVICE, _CONFIG = _HERE / "service.py", _HERE / "config.json"
_TYPES: dict[str, type[Any]] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}


class TritonError:
    def __init__(self, message: Any, code: Any = None) -> None:
        self._message, self._code = message, code

    def message(self) -> Any:
        return self._message

    def code(self) -> Any:
        return self._code


class TritonModelException(Exception):
    pass


class Tensor:
    def __init__(self, name: str, tensor: Any) -> None:
        self._name, self._tensor = name, np.asarray(tensor)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._tensor

    def shape(self) -> list[int]:
        return list(self._tensor.shape)

    def is_cpu(self) -> bool:
        return True


class InferenceRequest:
    def __init__(self, inputs: Sequence[Tensor] = (), requested_output_names: Sequence[str] = (), **_: Any) -> None:
        self._inputs, self._wanted = list(inputs), list(requested_output_names)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._wanted

    def request_id(self) -> str:
        return ""

    def correlation_id(self) -> int:
        return 0

    def parameters(self) -> str:
        return "{}"

    def is_cancelled(self) -> bool:
        return False

    def get_response_sender(self) -> NoReturn:
        raise TritonModelException("a service answers each request once")

    def exec(self, *_: Any, **__: Any) -> NoReturn:
        raise TritonModelException("a service can't call other models: make it a step of a pipeline")


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Logger:
    log_info, log_warn, log_error, log_verbose = (
        staticmethod(getattr(logging.getLogger("service"), level)) for level in ("info", "warning", "error", "debug")
    )


def _named(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def _entry(config: str | Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    properties = json.loads(config) if isinstance(config, str) else config
    return next((entry for entry in properties[kind] if entry["name"] == name), None)


def _utils() -> types.ModuleType:
    """The parts of `triton_python_backend_utils` that make sense here."""
    module = types.ModuleType("triton_python_backend_utils")
    for each in (TritonError, TritonModelException, Tensor, InferenceRequest, InferenceResponse, Logger):
        setattr(module, each.__name__, each)
    module.__dict__.update(
        get_input_tensor_by_name=lambda request, name: _named(request.inputs(), name),
        get_output_tensor_by_name=lambda response, name: _named(response.output_tensors(), name),
        get_input_config_by_name=lambda config, name: _entry(config, "input", name),
        get_output_config_by_name=lambda config, name: _entry(config, "output", name),
        triton_string_to_numpy=_TYPES.__getitem__,
        using_decoupled_model_transaction_policy=lambda _: False,
    )
    return module


class Service(mlflow.pyfunc.PythonModel):  # type: ignore[misc] # mlflow has no types here
    """Wraps the author's model as one of MLflow's."""

    def load_context(self, context: Any) -> None:
        self.config = json.loads(_CONFIG.read_text())
        sys.modules["triton_python_backend_utils"] = _utils()
        sys.path.insert(0, str(_HERE))  # for the modules beside it
        spec = importlib.util.spec_from_file_location("service", _SERVICE)
        if spec is None or spec.loader is None:
            raise ImportError("service.py is not a Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules["service"] = module
        spec.loader.exec_module(module)
        if not hasattr(module, "TritonPythonModel"):
            raise TritonModelException("service.py has no class TritonPythonModel")
        self.model = module.TritonPythonModel()
        if inspect.iscoroutinefunction(self.model.execute):
            raise TritonModelException("`execute` is a coroutine: services answer at once")
        if hasattr(self.model, "initialize"):
            self.model.initialize(
                {
                    "model_config": json.dumps(self.config),
                    "model_name": self.config["name"],
                    "model_instance_name": f"{self.config['name']}_0",
                    "model_instance_kind": "CPU",
                    "model_instance_device_id": "0",
                    "model_repository": str(_HERE.parent),
                    "model_version": _HERE.name,  # joined, the two are this folder
                }
            )

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # MLflow would check by types
        tensors = [Tensor(entry["name"], _taken(entry, model_input[entry["name"]])) for entry in self.config["input"]]
        request = InferenceRequest(tensors, [entry["name"] for entry in self.config["output"]])
        responses = self.model.execute([request])
        if not isinstance(responses, (list, tuple)) or len(responses) != 1 or responses[0] is None:
            raise TritonModelException("`execute` has to return one response to one request")
        if responses[0].has_error():
            raise TritonModelException(str(responses[0].error().message()))
        answers = {tensor.name(): _given(tensor.as_numpy()) for tensor in responses[0].output_tensors()}
        missing = [entry["name"] for entry in self.config["output"] if entry["name"] not in answers]
        if missing:
            raise TritonModelException(f"`execute` answered no {missing[0]!r}, which config.pbtxt promises")
        return answers


def _taken(entry: Mapping[str, Any], array: Any) -> NDArray[Any]:
    """An input in the form that Triton hands over: texts are bytes."""
    if entry["data_type"] != "TYPE_STRING":
        return np.asarray(array, _TYPES[entry["data_type"]])
    array = np.asarray(array, object)
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel()]
    return np.array(texts, dtype=object).reshape(array.shape)


def _given(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "OSU":
        return array
    texts = [item.decode(errors="replace") if isinstance(item, bytes) else str(item) for item in array.ravel()]
    return np.array(texts, dtype=object).reshape(array.shape)


if _SERVICE.is_file():
    mlflow.models.set_model(Service())
