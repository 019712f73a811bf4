"""Nine models on one camera frame: releases them and the pipeline that decodes the frame once for all, and measures.

    python examples/frame/frame.py

It starts the stack if none runs. The models are small networks of random weights: what they see does not matter here,
but what it costs to ask them. A client sends a JPEG of 720p and gets nine answers: from the pipeline by one request; or
by nine, for each of which it decodes the frame, as nine programs would; or by nine after it has decoded the frame once.
"""

import io
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import numpy as np
import torch
import yaml
from looking import SIDE, decode
from mlflow.models import infer_signature
from PIL import Image
from torch import nn
from tritonclient import grpc

import shiplift

HERE = Path(__file__).resolve().parent
SHIPLIFT = str(Path(sys.executable).with_name("shiplift"))
SEES = {
    "lanes": 4, "signs": 43, "lights": 4, "weather": 6, "road": 5, "vehicles": 12, "people": 3, "distance": 1,
    "dirt": 2,
}  # fmt: skip
CLIENTS, ROUNDS, SECONDS = 4, 3, 4.0


class Network(nn.Module):
    """A small CNN: uint8 (batch, 224, 224, 3) in, scores (batch, outputs) out."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        sizes, layers = (3, 16, 32, 64, 96, 128), []
        for before, after in pairwise(sizes):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes[-1], outputs))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """The scores of frames."""
        scores: torch.Tensor = self.layers(pixels.permute(0, 3, 1, 2).float() / 255)
        return scores


def camera(seed: int) -> bytes:
    """A JPEG of 1280x720: smooth shapes with some noise, so that it compresses as a photograph does."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (18, 32, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((1280, 720), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(smooth + rng.normal(0, 4, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=85)
    return file.getvalue()


def pixels_of(jpeg: bytes) -> Any:
    """A frame as the models take it."""
    return decode(np.array([[jpeg]], dtype=np.object_))["pixels"]


def release(name: str, outputs: int) -> None:
    """Logs and registers a model, and follows its release to the end."""
    model = Network(outputs).eval()
    example = np.concatenate([pixels_of(camera(seed)) for seed in range(4)])
    with torch.no_grad():
        scores = model(torch.tensor(example)).numpy()
    with mlflow.start_run():
        mlflow.log_artifact(str(HERE / "shiplift.yaml"), "shiplift")
        version = mlflow.pytorch.log_model(
            model, name="model", input_example=example, signature=infer_signature(example, scores),
            registered_model_name=name,
        ).registered_model_version  # fmt: skip
    subprocess.run([SHIPLIFT, "release", f"{name}/{version}"], check=True)


def pipeline() -> dict[str, Any]:
    """`pipeline.yaml`: a step that decodes, and nine that look."""
    return {
        "name": "frame",
        "admission": {"python": "sandbox"},
        "inputs": {"jpeg": {"datatype": "BYTES", "shape": [1, 1]}},
        "outputs": {sees: {"datatype": "FP32", "shape": [1, outputs]} for sees, outputs in SEES.items()},
        "members": {sees: {"model": f"frame-{sees}"} for sees in SEES},
        "steps": {
            "decode": {
                "python": "looking.py", "function": "decode", "inputs": {"jpeg": "jpeg"},
                "outputs": {"pixels": {"datatype": "UINT8", "shape": [1, SIDE, SIDE, 3]}},
            },
            **{
                f"see-{sees}": {"member": sees, "inputs": {"input": "pixels"}, "outputs": {"output": sees}}
                for sees in SEES
            },
        },
    }  # fmt: skip


def release_pipeline() -> None:
    """Registers the pipeline, and follows its release to the end."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "pipeline.yaml").write_text(yaml.safe_dump(pipeline(), sort_keys=False))
        for file in ("looking.py", "shiplift.yaml"):
            (place / file).write_bytes((HERE / file).read_bytes())
        np.savez(place / "requests.npz", jpeg=np.array([[camera(seed)] for seed in range(8)], dtype="S"))
        words = [str(place / "pipeline.yaml"), "--example", str(place / "requests.npz")]
        subprocess.run([SHIPLIFT, "pipeline", "register", *words], check=True)


# --- measuring ------------------------------------------------------------------------------------------------------


class Vehicle:
    """One client, with connections and threads of its own."""

    def __init__(self) -> None:
        self.served = {sees: shiplift.discover(f"frame-{sees}") for sees in SEES}
        self.whole = shiplift.discover("frame")
        self.client = grpc.InferenceServerClient(self.whole.grpc)
        self.pool = ThreadPoolExecutor(len(SEES))

    def one_request(self, jpeg: bytes) -> dict[str, Any]:
        """All nine answers from the pipeline."""
        tensor = grpc.InferInput("jpeg", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[jpeg]], dtype=np.object_))
        answer = self.client.infer(self.whole.name, [tensor])
        return {sees: answer.as_numpy(sees) for sees in SEES}

    def nine_decoded_each(self, jpeg: bytes) -> dict[str, Any]:
        """As nine programs that know nothing of each other."""
        return self._nine(lambda: pixels_of(jpeg))

    def nine_decoded_once(self, jpeg: bytes) -> dict[str, Any]:
        """As a client that does the pipeline's work itself."""
        pixels = pixels_of(jpeg)
        return self._nine(lambda: pixels)

    def _nine(self, pixels: Callable[[], Any]) -> dict[str, Any]:
        def ask(sees: str) -> Any:
            served, frame = self.served[sees], pixels()
            tensor = grpc.InferInput("input", list(frame.shape), "UINT8")
            tensor.set_data_from_numpy(frame)
            return self.client.infer(served.name, [tensor]).as_numpy("output")

        return dict(zip(SEES, self.pool.map(ask, SEES), strict=True))


WAYS = {
    "one request": Vehicle.one_request,
    "nine requests, decoded each": Vehicle.nine_decoded_each,
    "nine requests, decoded once": Vehicle.nine_decoded_once,
}


def measured(way: Callable[[Vehicle, bytes], dict[str, Any]], frames: list[bytes]) -> list[float]:
    """How long each frame took (s), with all clients at once."""
    ends = time.monotonic() + SECONDS

    def drive(number: int) -> list[float]:
        vehicle, seconds = Vehicle(), []
        while time.monotonic() < ends:
            began = time.monotonic()
            way(vehicle, frames[(number * 7 + len(seconds)) % len(frames)])
            seconds.append(time.monotonic() - began)
        return seconds

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [each for part in pool.map(drive, range(CLIENTS)) for each in part]


def sent(name: str, jpeg: bytes) -> int:
    """The bytes of a frame's requests."""
    return len(jpeg) if name == "one request" else len(SEES) * pixels_of(jpeg).nbytes


def main() -> None:
    """Releases and measures."""
    subprocess.run([SHIPLIFT, "up"], check=True)
    mlflow.set_tracking_uri(shiplift.tracking_uri())
    torch.manual_seed(0)
    for sees, outputs in SEES.items():
        release(f"frame-{sees}", outputs)
    release_pipeline()
    frames = [camera(seed) for seed in range(100, 116)]
    answers = [way(Vehicle(), frames[0]) for way in WAYS.values()]
    apart = max(float(np.abs(answers[0][sees] - other[sees]).max()) for other in answers[1:] for sees in SEES)
    print(f"measuring in turn, {CLIENTS} clients; answers differ by {apart:.1e} at most")
    rounds: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            rounds[name].append(measured(way, frames))
    for name in WAYS:
        rate = median(len(each) / SECONDS for each in rounds[name])
        slow = float(np.percentile([second for each in rounds[name] for second in each], 99))
        size = sent(name, frames[0]) / 1000
        print(f"{name}: {rate:.1f} frames/s, p99 {slow * 1000:.0f} ms, {size:.0f} kB a frame")


if __name__ == "__main__":
    main()
