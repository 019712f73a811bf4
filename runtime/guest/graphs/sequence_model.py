"""Runs a stateful ONNX model: `onnx_model` plus the states of each sequence.

Triton's sequence batcher sends all requests of a sequence to one instance, in order and never two in one batch. So the
instance can hold the states without a lock.

Process: Triton's Python backend, as `inner.py` beside `onnx_model.py`; its part is played by `hosted_graph.py`.
Python: the server's
Packages: numpy, onnxruntime
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

from onnx_model import TritonPythonModel as OnnxModel  # isort: skip - first, because it adds numpy's folder to the path

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Array = NDArray[Any]


class TritonPythonModel(OnnxModel):
    """An instance, and the states of the sequences that it answers."""

    def initialize(self, args: Mapping[str, str]) -> None:
        super().initialize(args)
        config = json.loads(args["model_config"])
        next_of = json.loads(config["parameters"]["sequence_states"]["string_value"])
        nodes = {node.name: node for node in self.session.get_inputs()}
        zeros = {name: np.zeros((1, *nodes[name].shape[1:]), _TYPES[nodes[name].type]) for name in next_of}
        self.states: list[tuple[str, int, Array]] = [
            (name, self.outputs.index(output), zeros[name]) for name, output in next_of.items()
        ]
        self.visible = [(at, name) for at, name in enumerate(self.outputs) if name not in next_of.values()]
        self.inputs = [entry for entry in self.inputs if entry[0] not in next_of]
        self.only = None
        self.max_sequences = int(config["sequence_batching"]["oldest"]["max_candidate_sequences"])
        # The least recently used comes first, so a sequence that Triton gave up is evicted before a live one.
        self.states_of: OrderedDict[int | str, list[Array]] = OrderedDict()

    def _answers(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        errors = [self._error(request) for request in requests]
        known = [request for request, error in zip(requests, errors) if error is None]
        answers = iter(self._next(known) if known else ())
        return [next(answers) if error is None else error for error in errors]

    def _error(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse | None:
        """The answer to a request whose sequence has no state here; None if it has one, or starts now."""
        sequence = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START or sequence in self.states_of:
            return None
        message = f"the state of sequence {sequence} is not here: start it again"
        return pb_utils.InferenceResponse([], pb_utils.TritonError(message))

    def _next(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        inputs = self._read(requests)
        sizes = list(map(len, inputs[0]))
        before = [self._before(request, size) for request, size in zip(requests, sizes)]
        feed = {entry[0]: np.concatenate(arrays) for entry, arrays in zip(self.inputs, inputs)}
        feed |= {name: np.concatenate(arrays) for (name, _, _), arrays in zip(self.states, zip(*before))}
        outputs = self.limit.run(self.session, self.outputs, feed)
        ends = list(accumulate(sizes))
        parts = [[array[start:end] for array in outputs] for start, end in zip(chain((0,), ends), ends)]
        return [self._answer(request, part) for request, part in zip(requests, parts)]

    def _before(self, request: pb_utils.InferenceRequest, size: int) -> list[Array]:
        """The states from which a request starts: zeros for the first request of a sequence."""
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            return [np.repeat(zeros, size, axis=0) for _, _, zeros in self.states]
        return self.states_of[request.correlation_id()]

    def _answer(self, request: pb_utils.InferenceRequest, arrays: Sequence[Array]) -> pb_utils.InferenceResponse:
        self.states_of.pop(request.correlation_id(), None)
        if not request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            self.states_of[request.correlation_id()] = [arrays[at].copy() for _, at, _ in self.states]
            if len(self.states_of) > self.max_sequences:
                self.states_of.popitem(last=False)
        outputs = [pb_utils.Tensor(name, self._output(name, arrays[at])) for at, name in self.visible]
        return pb_utils.InferenceResponse(outputs)


_TYPES: dict[str, type[Any]] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
