"""Runs an ONNX model that the backends in C do not support: with text tensors, or states (`sequence_model`).

It is written for Triton's Python backend, and runs in a process of its own (`hosted_graph.py`): one for each instance,
with one ONNX Runtime session. A batch costs one concatenation per input.

Process: Triton's Python backend, as `inner.py` beside `guards.py`; its part is played by `hosted_graph.py`.
Python: the server's
Packages: numpy, onnxruntime
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import contextlib
import gc
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Array = NDArray[Any]
_GRAPH = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Stopped(Exception):
    """An execution took longer than its limit."""


class TimeLimit:
    """Ends executions that exceed their limit of time, or of CPU time in seconds (None: there is none).

    ONNX Runtime stops between two nodes, also inside loops. If it doesn't, this process's host ends it a moment later.
    """

    LOOK_S = 0.1
    _STOPPED = "shiplift_stopped_executions_total"  # the same name as in the other backends

    def __init__(self, model: str, limit_s: float, cpu_s: float | None) -> None:
        self._model, self._limit_s, self._cpu_s = model, limit_s, cpu_s
        self._current: tuple[ort.RunOptions, float, float] | None = None
        self._told = ""
        family = pb_utils.MetricFamily(
            name=self._STOPPED, description="Executions stopped at their limit", kind=pb_utils.MetricFamily.COUNTER
        )
        self._metric = family.Metric(labels={"model": model})
        threading.Thread(target=self._watch, daemon=True).start()

    def run(self, session: Any, outputs: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
        """The outputs of a session (ONNX Runtime's, or one with the same methods).

        Raises:
            Stopped: the execution took too long.
        """
        with self.watched() as options:
            try:
                return list(session.run(outputs, feed, options))
            except Exception:
                if not options.terminate:
                    raise
                raise Stopped(f"the request was stopped after {self._told}") from None

    @contextlib.contextmanager
    def watched(self) -> Iterator[Any]:
        """A context for work under the limit, which stops when the options say so."""
        options = ort.RunOptions()
        spent_s = time.process_time() + self._cpu_s if self._cpu_s else math.inf
        self._current = options, time.monotonic() + self._limit_s, spent_s
        try:
            yield options
        finally:
            self._current = None

    def _watch(self) -> None:
        while True:
            time.sleep(self.LOOK_S)
            current = self._current
            if current is None or current[0].terminate:
                continue
            if time.monotonic() > current[1]:
                told = f"{self._limit_s:g} s, its limit (serving.request_timeout_s in the model's spec)"
                self._stop(current[0], told)
            elif time.process_time() > current[2]:
                told = f"{self._cpu_s:g} s of CPU time, its limit (serving.limits.cpu_s in the model's spec)"
                self._stop(current[0], told)

    def _stop(self, options: Any, told: str) -> None:
        self._told = told
        options.terminate = True
        print(f"shiplift: {self._model}: an execution is stopped after {told}", file=sys.stderr, flush=True)
        self._metric.increment(1)


class TritonPythonModel:
    """An instance: a session, and the time limit of its executions."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        self.session = self.load(os.path.join(args["model_repository"], args["model_version"], "model.onnx"), values)
        self.guards = _guards(os.path.join(args["model_repository"], args["model_version"], "guards.json"))
        limit_s = int(values.get("request_timeout_ms", "30000")) / 1000
        self.limit = TimeLimit(args["model_name"], limit_s, _cpu_s(values))
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        self.inputs: list[tuple[str, int, bool]] = [
            (node.name, len(node.shape), node.type == "tensor(string)") for node in inputs
        ]
        self.outputs: list[str] = [node.name for node in outputs]
        self.text = {node.name for node in outputs if node.type == "tensor(string)"}
        self.flat = {node.name for node in outputs if len(node.shape) == 1}
        # The only input, if it needs no conversion: reading a request is then one expression.
        self.only = self.inputs[0][0] if len(inputs) == 1 and self.inputs[0][1] != 1 and not self.inputs[0][2] else None
        self.plain = not self.text and not self.flat
        # Everything alive now stays alive, so the garbage collector need not scan it in the middle of a request.
        gc.collect()
        gc.freeze()

    def load(self, file: str, values: Mapping[str, str]) -> Any:
        """A session of the model file, configured by the configuration's parameters."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(values.get("intra_op_threads", "1"))
        options.inter_op_num_threads = 1
        options.graph_optimization_level = _GRAPH[values.get("graph_optimization", "all")]
        # Idle instances must not spin on cores that others need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        if self.guards is None:
            return self._in_time(requests)
        refused = [self._guarded(request) for request in requests]
        answers = iter(self._in_time([each for each, why in zip(requests, refused) if not why]))
        return [_error(why) if why else next(answers) for why in refused]

    def _guarded(self, request: pb_utils.InferenceRequest) -> str:
        """Why a request must not join a batch; empty if it may."""
        why: str = self.guards.reason({entry[0]: self._input(request, *entry) for entry in self.inputs})
        return why

    def _in_time(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        if not requests:
            return []
        try:
            return self._answers(requests)
        except Stopped as error:
            return [_error(str(error)) for _ in requests]

    def _answers(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        inputs = self._read(requests)
        if len(requests) == 1:
            return [self._response(self._run([arrays[0] for arrays in inputs]))]
        outputs = self._run([np.concatenate(arrays) for arrays in inputs])
        ends = list(accumulate(map(len, inputs[0])))
        return [self._response([array[start:end] for array in outputs]) for start, end in zip(chain((0,), ends), ends)]

    def _read(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[list[Array]]:
        """The arrays of each input, one per request."""
        if self.only is not None:
            return [[request.inputs()[0].as_numpy() for request in requests]]
        return [[self._input(request, *entry) for request in requests] for entry in self.inputs]

    def _input(self, request: pb_utils.InferenceRequest, name: str, rank: int, text: bool) -> Array:
        array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        if text:
            array = np.array([item.decode() for item in array.ravel()], dtype=object).reshape(array.shape)
        return array.reshape(-1) if rank == 1 else array

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        feed = {entry[0]: array for entry, array in zip(self.inputs, arrays)}
        return self.limit.run(self.session, self.outputs, feed)

    def _response(self, arrays: Iterable[Array]) -> pb_utils.InferenceResponse:
        if not self.plain:
            arrays = map(self._output, self.outputs, arrays)
        return pb_utils.InferenceResponse(list(map(pb_utils.Tensor, self.outputs, arrays)))

    def _output(self, name: str, array: Array) -> Array:
        if name in self.text:
            array = np.array([str(item).encode() for item in array.ravel()], dtype=object).reshape(array.shape)
        return array.reshape(-1, 1) if name in self.flat else array


def _guards(file: str) -> Any:
    """The guards of a model; None if it has none."""
    if not os.path.isfile(file):
        return None
    from guards import Guards  # noqa: PLC0415 - only packages with guards have it

    return Guards.read(file)


def _error(why: str) -> pb_utils.InferenceResponse:
    return pb_utils.InferenceResponse([], pb_utils.TritonError(why))


def _cpu_s(values: Mapping[str, str]) -> float | None:
    return int(values["cpu_time_ms"]) / 1000 if "cpu_time_ms" in values else None
