"""Runs an ONNX model inside Triton's Python backend: one process per instance, one ONNX Runtime session per process.

It serves models that the C backend does not support: text tensors, and states (`sequence_model`). Inputs are views of
Triton's shared memory and are not copied for a single request; a batch costs one concatenation per input.

Process: Triton's Python backend, as `model.py` beside `guards.py`.
Python: the server's
Packages: numpy, onnxruntime
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import contextlib
import gc
import json
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
    """Ends executions that exceed their time limit, so that the instance is free again.

    ONNX Runtime stops between two nodes, also inside loops. If it has not stopped after a grace period, this process
    ends, and a metric makes the watchdog load the model again. The metrics are those of the C backend.
    """

    LOOK_S, GRACE_S = 0.1, 2
    _STOPPED, _STUCK = "shiplift_stopped_executions_total", "shiplift_stuck_executions"
    _METRICS = (
        (_STOPPED, "Executions stopped at their time limit", "COUNTER"),
        (_STUCK, "Executions that did not stop at their time limit", "GAUGE"),
    )

    def __init__(self, model: str, limit_s: float) -> None:
        self._model, self._limit_s = model, limit_s
        self._current: tuple[ort.RunOptions, float] | None = None
        self._metrics = {name: self._metric(name, *rest) for name, *rest in self._METRICS}
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
                setting = "serving.request_timeout_s in the model's spec"
                raise Stopped(f"the request was stopped after {self._limit_s:g} s, its limit ({setting})") from None

    @contextlib.contextmanager
    def watched(self) -> Iterator[Any]:
        """A context for work under the limit. If work does not stop when the options say so, this process ends."""
        options = ort.RunOptions()
        self._current = options, time.monotonic() + self._limit_s
        try:
            yield options
        finally:
            self._current = None

    def _watch(self) -> None:
        while True:
            time.sleep(self.LOOK_S)
            current = self._current
            if current is None or time.monotonic() < current[1]:
                continue
            if not current[0].terminate:
                current[0].terminate = True
                self._report(self._STOPPED, "it is stopped")
            elif time.monotonic() > current[1] + self.GRACE_S:
                self._report(self._STUCK, "it does not stop, so its process ends")
                os._exit(1)

    def _metric(self, name: str, description: str, kind: str) -> tuple[pb_utils.MetricFamily, pb_utils.Metric] | None:
        """The metric and its family, which must live as long; None if the server was started without metrics."""
        families = pb_utils.MetricFamily
        try:
            family = families(name=name, description=description, kind=getattr(families, kind))
            metric = family.Metric(labels={"model": self._model})
            if kind == "GAUGE":
                metric.set(0)  # the metric outlives a process, so clear the last one's value
        except pb_utils.TritonModelException:
            return None
        return family, metric

    def _report(self, name: str, what: str) -> None:
        text = f"shiplift: {self._model} ran for over {self._limit_s:g} s, the limit of a request: {what}"
        print(text, file=sys.stderr, flush=True)
        if metric := self._metrics[name]:
            with contextlib.suppress(pb_utils.TritonModelException):
                metric[1].increment(1)


class TritonPythonModel:
    """An instance: a session, and the time limit of its executions."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        if "numa_node" in values:  # first, so that memory is allocated on that node
            with open(f"/sys/devices/system/node/node{values['numa_node']}/cpulist") as cores:
                os.sched_setaffinity(0, _cores(cores.read().strip()))
        if "cpu_cores" in values:
            os.sched_setaffinity(0, _cores(values["cpu_cores"]))
        self.session = self.load(os.path.join(args["model_repository"], args["model_version"], "model.onnx"), values)
        self.guards = _guards(os.path.join(args["model_repository"], args["model_version"], "guards.json"))
        self.limit = TimeLimit(args["model_name"], int(values.get("request_timeout_ms", "30000")) / 1000)
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


def _cores(text: str) -> set[int]:
    cores: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores & os.sched_getaffinity(0) or os.sched_getaffinity(0)
