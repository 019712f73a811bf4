"""Runs a model that was written for Triton's Python backend in a process of its own, without Triton.

`hosted_model.py` sends it the requests. `triton_python_backend_utils` exists only inside Triton: this file has the
parts of it that a model needs by itself. Calls of other models and answers in pieces raise.

Process: the model's own process, as `python_host/served.py`; the model is `inner.py` in a folder with `packing.py`.
Python: the server's
Packages: numpy
"""

import importlib
import json
import logging
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

_START, _END = 1, 2  # TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, _END
_STOPPED = "shiplift_stopped_executions_total"


class TritonModelException(Exception):
    pass


class TritonError:
    def __init__(self, message: str, code: Any = None) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> Any:
        return self._code


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        return True


class InferenceRequest:
    def __init__(self, arrays: Mapping[str, Any] | None = None, **_: Any) -> None:
        if arrays is None:
            raise TritonModelException("it can't call other models: make it a step of a pipeline")
        self._about = json.loads(arrays[""][0])
        self._inputs = [Tensor(name, array) for name, array in arrays.items() if name]

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def correlation_id(self) -> int | str:
        known: int | str = self._about["id"]
        return known

    def flags(self) -> int:
        return int(self._about["flags"])

    def requested_output_names(self) -> list[str]:
        return list(self._about["outputs"])

    def request_id(self) -> str:
        return ""

    def parameters(self) -> str:
        return "{}"

    def is_cancelled(self) -> bool:
        return False

    def get_response_sender(self) -> NoReturn:
        raise TritonModelException("it answers each request once")


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def arrays(self) -> dict[str, Any]:
        """The response in the form that travels."""
        if self._error is not None:
            return {"": np.array([str(self._error.message())], dtype=object)}
        return {tensor.name(): tensor.as_numpy() for tensor in self._outputs}


class Metric:
    """Counts for the process that has the real metric."""

    counted = 0.0  # of stopped executions, until they are told

    def __init__(self, name: str) -> None:
        self._name = name

    def increment(self, value: float) -> None:
        if self._name == _STOPPED:
            Metric.counted += value

    def set(self, value: float) -> None:
        """Does nothing: the only metric that is set shows an execution that does not stop, which ends this process."""


class MetricFamily:
    COUNTER, GAUGE = "COUNTER", "GAUGE"

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        self._name = name

    def Metric(self, labels: Mapping[str, str]) -> Metric:  # noqa: N802 - as in Triton
        return Metric(self._name)


class Logger:
    log_info, log_warn, log_error, log_verbose = (
        staticmethod(getattr(logging.getLogger("model"), level)) for level in ("info", "warning", "error", "debug")
    )


_TYPES: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
    **{
        f"TYPE_{kind.upper()}{bits}": getattr(np, f"{kind}{bits}")
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
}


def _named(tensors: Sequence[Tensor], name: str) -> Tensor | None:
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def _entry(config: str | Mapping[str, Any], kind: str, name: str) -> dict[str, Any] | None:
    properties = json.loads(config) if isinstance(config, str) else config
    return next((entry for entry in properties[kind] if entry["name"] == name), None)


def _utils() -> types.ModuleType:
    module = types.ModuleType("triton_python_backend_utils")
    for each in (TritonModelException, TritonError, Tensor, InferenceRequest, InferenceResponse, MetricFamily, Logger):
        setattr(module, each.__name__, each)
    module.__dict__.update(
        Metric=Metric,
        get_input_tensor_by_name=lambda request, name: _named(request.inputs(), name),
        get_output_tensor_by_name=lambda response, name: _named(response.output_tensors(), name),
        get_input_config_by_name=lambda config, name: _entry(config, "input", name),
        get_output_config_by_name=lambda config, name: _entry(config, "output", name),
        triton_string_to_numpy=_TYPES.__getitem__,
        using_decoupled_model_transaction_policy=lambda _: False,
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_START=_START,
        TRITONSERVER_REQUEST_FLAG_SEQUENCE_END=_END,
    )
    return module


def load(settings: dict[str, Any]) -> "Model":
    """The model that the settings name."""
    return Model(settings)


class Model:
    """The loaded model. Of the settings, `model` is its folder, and `args` are what Triton gives `initialize`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        sys.path.insert(0, settings["model"])
        sys.modules["triton_python_backend_utils"] = _utils()
        self._packing = importlib.import_module("packing")
        self._model = importlib.import_module("inner").TritonPythonModel()
        self._model.initialize(settings["args"])

    def answer(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """The responses to the requests of a batch; `stopped` counts executions that were stopped at their limit."""
        requests = [InferenceRequest(each) for each in self._packing.unpack_each(arrays)]
        responses = [response.arrays() for response in self._model.execute(requests)]
        counted, Metric.counted = Metric.counted, 0.0
        return {**self._packing.pack_each(responses), "stopped": np.array([counted])}
