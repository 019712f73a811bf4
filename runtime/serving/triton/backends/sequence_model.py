"""Runs an ONNX model that remembers inside Triton's Python backend: `onnx_model`, and each sequence's states.

Copied into the bundled package as `model.py`, beside `onnx_model.py`. Triton's sequence batcher sends all requests of a
sequence to one instance, in order and never two in one batch, so states need no lock and no other place to lie.
"""

import json
from collections import OrderedDict
from itertools import accumulate, chain

from onnx_model import TritonPythonModel as OnnxModel  # isort: skip - first: it says where numpy is to be found

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel(OnnxModel):
    def initialize(self, args):
        super().initialize(args)
        config = json.loads(args["model_config"])
        next_of = json.loads(config["parameters"]["sequence_states"]["string_value"])
        nodes = {node.name: node for node in self.session.get_inputs()}
        zeros = {name: np.zeros((1, *nodes[name].shape[1:]), _TYPES[nodes[name].type]) for name in next_of}
        self.states = [(name, self.outputs.index(given), zeros[name]) for name, given in next_of.items()]
        self.asked = [(at, name) for at, name in enumerate(self.outputs) if name not in next_of.values()]
        self.inputs = [entry for entry in self.inputs if entry[0] not in next_of]
        self.only = None
        self.most = int(config["sequence_batching"]["oldest"]["max_candidate_sequences"])
        self.kept = OrderedDict()  # least recently used first: what Triton has given up goes before what it has not

    def execute(self, requests):
        lost = [self._lost(request) for request in requests]
        known = [request for request, error in zip(requests, lost) if error is None]
        answers = iter(self._answers(known) if known else ())
        return [next(answers) if error is None else error for error in lost]

    def _lost(self, request):
        """The answer to a request whose sequence began elsewhere; None where it did not."""
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START or request.correlation_id() in self.kept:
            return None
        said = f"the state of sequence {request.correlation_id()} is not here: start it again"
        return pb_utils.InferenceResponse([], pb_utils.TritonError(said))

    def _answers(self, requests):
        given = self._given(requests)
        sizes = list(map(len, given[0]))
        before = [self._before(request, size) for request, size in zip(requests, sizes)]
        feed = {entry[0]: np.concatenate(arrays) for entry, arrays in zip(self.inputs, given)}
        feed |= {name: np.concatenate(arrays) for (name, _, _), arrays in zip(self.states, zip(*before))}
        outputs = self.session.run(self.outputs, feed)
        ends = list(accumulate(sizes))
        parts = [[array[start:end] for array in outputs] for start, end in zip(chain((0,), ends), ends)]
        return [self._answer(request, part) for request, part in zip(requests, parts)]

    def _before(self, request, size):
        """The states that a request begins with: zeros, where it begins its sequence."""
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            return [np.repeat(zeros, size, axis=0) for _, _, zeros in self.states]
        return self.kept[request.correlation_id()]

    def _answer(self, request, arrays):
        self.kept.pop(request.correlation_id(), None)
        if not request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            self.kept[request.correlation_id()] = [arrays[at].copy() for _, at, _ in self.states]
            if len(self.kept) > self.most:
                self.kept.popitem(last=False)
        asked = [pb_utils.Tensor(name, self._output(name, arrays[at])) for at, name in self.asked]
        return pb_utils.InferenceResponse(asked)


_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}
