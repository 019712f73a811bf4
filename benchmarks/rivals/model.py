"""The model of a rival server: its weights in a folder, and the shape and dtype of a sample.

Request bodies are raw little-endian tensors, because `np.frombuffer` is the fastest input for Flask and FastAPI, faster
than JSON or NPY.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(os.environ["BENCH_MODEL"])
THREADS = int(os.environ.get("BENCH_THREADS", "1"))
SPEC = json.loads((FOLDER / "spec.json").read_text())
Predict = Callable[[NDArray[Any]], NDArray[Any]]


def array_of(body: bytes) -> NDArray[Any]:
    """The samples in a request's body: (batch, *shape), of the model's dtype."""
    return np.frombuffer(body, dtype=SPEC["dtype"]).reshape(-1, *SPEC["shape"])


def native() -> Predict:
    """Eager torch, or LightGBM's own library for the boosting model."""
    return _lightgbm() if SPEC["kind"] == "lightgbm" else _torch()


def onnx() -> Predict:
    """ONNX Runtime on the exported fp32 model."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(FOLDER / "model.onnx", options, providers=["CPUExecutionProvider"])
    name, outputs = session.get_inputs()[0].name, [session.get_outputs()[0].name]
    return lambda batch: session.run(outputs, {name: batch})[0]


def _torch() -> Predict:
    import torch

    from benchmarks.architectures import served

    torch.set_num_threads(THREADS)
    model = served(SPEC["name"])
    model.load_state_dict(torch.load(FOLDER / "weights.pt", weights_only=True))
    model.eval()

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            return model(torch.from_numpy(batch)).numpy()  # type: ignore[no-any-return]

    return predict


def _lightgbm() -> Predict:
    import lightgbm

    booster = lightgbm.Booster(model_file=FOLDER / "booster.txt")
    return lambda batch: np.asarray(booster.predict(batch, num_threads=THREADS), np.float32).reshape(-1, 1)
