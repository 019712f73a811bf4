"""Decodes JPEG and PNG files to pixels of one size, as the parameter `image` of its configuration says.

Process: Triton's Python backend, as `model.py` beside `front.py` and `encoded.py`, which are in `fronts/`.
Python: the server's
Packages: numpy, PIL
"""

from __future__ import annotations  # so that annotations are not evaluated: Triton's module lacks names of its types

import json
import os
import sys
from collections.abc import Mapping, Sequence

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import triton_python_backend_utils as pb_utils
from front import Refused, decoded, normalized


class TritonPythonModel:
    """An instance, which decodes one file at a time."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self.settings = json.loads(json.loads(args["model_config"])["parameters"]["image"]["string_value"])

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._response(request) for request in requests]

    def _response(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        file = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        try:
            pixels = normalized(decoded(file.tobytes(), self.settings), self.settings)
        except Refused as error:
            return pb_utils.InferenceResponse([], pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse([pb_utils.Tensor("pixels", pixels[None])])
