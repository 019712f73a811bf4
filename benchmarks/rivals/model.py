"""The model of a rival server: its weights in a folder, the shape and dtype of a sample, and the server's settings.

Request bodies are raw little-endian tensors, because `np.frombuffer` is the fastest input for Python servers, faster
than JSON or NPY. It imports only what every rival's environment has.
"""

import base64
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(os.environ["BENCH_MODEL"])
PORT = int(os.environ.get("BENCH_PORT", "0"))
SETTINGS: dict[str, Any] = json.loads(os.environ.get("BENCH_SETTINGS", "{}"))
SPEC = json.loads((FOLDER / "spec.json").read_text())
THREADS = int(SETTINGS.get("model_threads", 1))
Predict = Callable[[NDArray[Any]], NDArray[Any]]


def array_of(body: bytes) -> NDArray[Any]:
    """The samples in a request's body: (batch, *shape), of the model's dtype."""
    return np.frombuffer(body, dtype=SPEC["dtype"]).reshape(-1, *SPEC["shape"])


def batch_of(bodies: Sequence[bytes]) -> NDArray[Any]:
    """The samples of several requests' bodies, as one batch."""
    return array_of(b"".join(bodies))


def batch_of_text(texts: Sequence[str]) -> NDArray[Any]:
    """The samples of several requests in base64, as one batch."""
    return batch_of([base64.b64decode(text) for text in texts])


def texts_of(scores: NDArray[Any]) -> list[str]:
    """The scores of a batch in base64, a text per sample."""
    return [base64.b64encode(row.tobytes()).decode() for row in scores]


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


def bf16(*, compiled: bool, batches: Sequence[int]) -> Predict:
    """Torch under bf16 autocast, optionally compiled, and warmed up with the given batch sizes.

    Batches differ in size, so the compiled model is dynamic. Frozen weights are what torch's guide to CPU inference
    recommends.
    """
    import torch

    model = _torch_model()
    if compiled:
        import torch._inductor.config

        torch._inductor.config.freezing = True
        model = torch.compile(model, dynamic=True)

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return model(torch.from_numpy(batch)).float().numpy()  # type: ignore[no-any-return]

    for size in batches:
        predict(np.zeros((size, *SPEC["shape"]), SPEC["dtype"]))
    return predict


def _torch() -> Predict:
    import torch

    model = _torch_model()

    def predict(batch: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            return model(torch.from_numpy(batch)).numpy()  # type: ignore[no-any-return]

    return predict


def _torch_model() -> Any:
    import torch

    from benchmarks.architectures import served

    torch.set_num_threads(THREADS)
    model = served(SPEC["name"])
    model.load_state_dict(torch.load(FOLDER / "weights.pt", weights_only=True))
    return model.eval()


def _lightgbm() -> Predict:
    import lightgbm

    booster = lightgbm.Booster(model_file=FOLDER / "booster.txt")
    return lambda batch: np.asarray(booster.predict(batch, num_threads=THREADS), np.float32).reshape(-1, 1)
