"""Runs an ONNX model inside Triton's Python backend: one process per instance, one ONNX Runtime session per process.

It serves what the C backend does not support: text tensors, and states (`sequence_model`). It is copied into those
packages as `model.py`, so it can't import anything from Shiplift. Inputs are views of Triton's shared memory and are
not copied for a single request; a batch costs one concatenation per input.
"""

import gc
import json
import os
import sys
from itertools import accumulate, chain

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

_GRAPH = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        values = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        if "numa_node" in values:  # first, so that memory is allocated there
            with open(f"/sys/devices/system/node/node{values['numa_node']}/cpulist") as cores:
                os.sched_setaffinity(0, _cores(cores.read().strip()))
        if "cpu_cores" in values:
            os.sched_setaffinity(0, _cores(values["cpu_cores"]))
        options = ort.SessionOptions()
        options.intra_op_num_threads = int(values.get("intra_op_threads", "1"))
        options.inter_op_num_threads = 1
        options.graph_optimization_level = _GRAPH[values.get("graph_optimization", "all")]
        # Idle instances must not spin on cores that the others need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        folder = os.path.join(args["model_repository"], args["model_version"])
        self.session = ort.InferenceSession(
            os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        self.inputs = [(node.name, len(node.shape), node.type == "tensor(string)") for node in inputs]
        self.outputs = [node.name for node in outputs]
        self.text = {node.name for node in outputs if node.type == "tensor(string)"}
        self.flat = {node.name for node in outputs if len(node.shape) == 1}
        # The only input, if it needs no conversion: then reading a request takes one expression.
        self.only = self.inputs[0][0] if len(inputs) == 1 and self.inputs[0][1] != 1 and not self.inputs[0][2] else None
        self.plain = not self.text and not self.flat
        # Everything alive now stays alive, so the collector need not scan it in the middle of a request.
        gc.collect()
        gc.freeze()

    def execute(self, requests):
        inputs = self._read(requests)
        if len(requests) == 1:
            return [self._response(self._run([arrays[0] for arrays in inputs]))]
        outputs = self._run([np.concatenate(arrays) for arrays in inputs])
        ends = list(accumulate(map(len, inputs[0])))
        return [self._response([array[start:end] for array in outputs]) for start, end in zip(chain((0,), ends), ends)]

    def _read(self, requests):
        """The arrays of each input, one per request."""
        if self.only is not None:
            return [[request.inputs()[0].as_numpy() for request in requests]]
        return [[self._input(request, *entry) for request in requests] for entry in self.inputs]

    def _input(self, request, name, rank, text):
        array = pb_utils.get_input_tensor_by_name(request, name).as_numpy()
        if text:
            array = np.array([item.decode() for item in array.ravel()], dtype=object).reshape(array.shape)
        return array.reshape(-1) if rank == 1 else array

    def _run(self, arrays):
        return self.session.run(self.outputs, {entry[0]: array for entry, array in zip(self.inputs, arrays)})

    def _response(self, arrays):
        if not self.plain:
            arrays = map(self._output, self.outputs, arrays)
        return pb_utils.InferenceResponse(list(map(pb_utils.Tensor, self.outputs, arrays)))

    def _output(self, name, array):
        if name in self.text:
            array = np.array([str(item).encode() for item in array.ravel()], dtype=object).reshape(array.shape)
        return array.reshape(-1, 1) if name in self.flat else array


def _cores(text):
    cores = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores & os.sched_getaffinity(0) or os.sched_getaffinity(0)
