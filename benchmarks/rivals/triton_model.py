"""A typical hand-written `model.py`, after the Python backend's README: a session and a loop over requests."""

import os
import sys

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import onnxruntime as ort  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402


class TritonPythonModel:
    """A model with a session that has ONNX Runtime's defaults."""

    def initialize(self, args):
        """Loads the model beside this file."""
        file = f"{args['model_repository']}/{args['model_version']}/model.onnx"
        self.session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name

    def execute(self, requests):
        """Answers each request separately."""
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, self.input).as_numpy()
            answer = self.session.run([self.output], {self.input: array})[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(self.output, answer)]))
        return responses
