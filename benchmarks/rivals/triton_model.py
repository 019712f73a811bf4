"""The `model.py` one writes by hand after reading the Python backend's README: a session, a loop over requests."""

import os
import sys

sys.path[:0] = [path for path in os.environ.get("SHIPLIFT_SERVER_SITE", "").split(os.pathsep) if path]

import onnxruntime as ort  # noqa: E402
import triton_python_backend_utils as pb_utils  # noqa: E402


class TritonPythonModel:
    """One session with ONNX Runtime's defaults."""

    def initialize(self, args):
        """Loads the model that lies beside this file."""
        file = f"{args['model_repository']}/{args['model_version']}/model.onnx"
        self.session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name
        self.output = self.session.get_outputs()[0].name

    def execute(self, requests):
        """Answers each request by itself."""
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, self.input).as_numpy()
            answer = self.session.run([self.output], {self.input: given})[0]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(self.output, answer)]))
        return responses
