"""Everything in one Python process: Flask under waitress, whose threads decode, ask ONNX Runtime and vote.

python -m benchmarks.composing.one_process MODEL PORT THREADS
"""

import sys

import numpy as np
import onnxruntime
from flask import Flask, request
from waitress import serve

from benchmarks.composing.steps import decode, vote


def app_of(model: str) -> Flask:
    """The service; each request computes with one thread, as the members in Triton do."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    app = Flask(__name__)

    @app.post("/predict")
    def predict() -> bytes:
        pixels = decode(np.frombuffer(request.get_data(), np.uint8)[None])["pixels"]
        scores = session.run(None, {"pixels": pixels})[0]
        best: bytes = vote(scores)["best"].tobytes()
        return best

    return app


if __name__ == "__main__":
    file, port, threads = sys.argv[1:]
    serve(app_of(file), host="127.0.0.1", port=int(port), threads=int(threads))
