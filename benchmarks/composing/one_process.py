"""Everything in one Python process: Flask under gunicorn, whose threads decode, ask ONNX Runtime and vote.

BENCH_MODEL=cnn.onnx BENCH_VOTE=vote gunicorn --workers 1 --threads 4 benchmarks.composing.one_process:app
"""

import os

import numpy as np
import onnxruntime
from flask import Flask, request

from benchmarks.composing import steps


def app_of(model: str, vote: str) -> Flask:
    """The service; each request computes with one thread, as the members in Triton do."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    service = Flask(__name__)

    @service.post("/predict")
    def predict() -> bytes:
        pixels = steps.decode(np.frombuffer(request.get_data(), np.uint8)[None])["pixels"]
        scores = session.run(None, {"pixels": pixels})[0]
        best: bytes = getattr(steps, vote)(scores)["best"].tobytes()
        return best

    return service


app = app_of(os.environ["BENCH_MODEL"], os.environ["BENCH_VOTE"])
