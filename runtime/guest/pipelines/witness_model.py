"""Passes on the results of an ensemble's steps, and adds the digest of the bundle: an ensemble has no constants.

Process: Triton's Python backend, as `model.py`.
Python: the server's
Packages: numpy
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import json
import os
import sys
from collections.abc import Mapping, Sequence

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import numpy as np
import triton_python_backend_utils as pb_utils

BUNDLE = "bundle"


class TritonPythonModel:
    """An instance, which keeps the digest of its bundle as a tensor."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        digest = config["parameters"][BUNDLE]["string_value"]
        self.bundle = pb_utils.Tensor(BUNDLE, np.array([digest.encode()], dtype=object))
        self.inputs = {output["name"]: f"step/{output['name']}" for output in config["output"]}

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._response(request) for request in requests]

    def _response(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        tensors = [self._tensor(request, name) for name in request.requested_output_names()]
        return pb_utils.InferenceResponse(tensors)

    def _tensor(self, request: pb_utils.InferenceRequest, name: str) -> pb_utils.Tensor:
        if name == BUNDLE:
            return self.bundle
        return pb_utils.Tensor(name, pb_utils.get_input_tensor_by_name(request, self.inputs[name]).as_numpy())
