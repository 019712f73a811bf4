"""Nine models on one camera frame: releases them and pipelines that prepare the frame once for all, and measures.

    python examples/frame/frame.py

It starts the stack if none runs. The models are small networks of random weights: what they see does not matter here,
but what it costs to ask them. A frame of 720p gets nine answers: by one request with the JPEG, or with the raw pixels;
or by nine requests with scaled pixels, for which the client decodes the JPEG once, or as often as nine programs would.
"""

import io
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import numpy as np
import psutil
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
    "lanes": 4,
    "signs": 43,
    "lights": 4,
    "weather": 6,
    "road": 5,
    "vehicles": 12,
    "people": 3,
    "distance": 1,
    "dirt": 2,
}
CLIENTS, ROUNDS, SECONDS = 4, 3, 4.0


class Network(nn.Module):  # type: ignore[misc]
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
    return decode(np.frombuffer(jpeg, dtype=np.uint8))["pixels"]


def release(name: str, outputs: int) -> None:
    """Logs and registers a model, and follows its release to the end."""
    model = Network(outputs).eval()
    example = np.concatenate([pixels_of(camera(seed)) for seed in range(4)])
    with torch.no_grad():
        scores = model(torch.tensor(example)).numpy()
    with mlflow.start_run():
        mlflow.log_artifact(str(HERE / "shiplift.yaml"), "shiplift")
        version = mlflow.pytorch.log_model(
            model,
            name="model",
            input_example=example,
            signature=infer_signature(example, scores),
            registered_model_name=name,
        ).registered_model_version
    subprocess.run([SHIPLIFT, "release", f"{name}/{version}"], check=True)


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A pipeline: what a client sends, and what makes pixels of it: a decoder, or a Python step."""

    name: str
    tensor: str
    shape: tuple[int, ...]
    members: dict[str, Any]
    step: dict[str, Any]

    def request(self, jpeg: bytes) -> Any:
        """What is sent for a frame."""
        if self.tensor == "jpeg":
            return np.frombuffer(jpeg, dtype=np.uint8)[None]
        return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))[None]

    def spec(self) -> dict[str, Any]:
        """`pipeline.yaml`: a step that prepares, and nine that look."""
        see = {
            f"see-{sees}": {"member": sees, "inputs": {"input": "pixels"}, "outputs": {"output": sees}} for sees in SEES
        }
        return {
            "name": self.name,
            **({} if self.members else {"admission": {"python": "sandbox"}}),
            "inputs": {self.tensor: {"datatype": "UINT8", "shape": list(self.shape)}},
            "outputs": {sees: {"datatype": "FP32", "shape": [1, outputs]} for sees, outputs in SEES.items()},
            "members": {**self.members, **{sees: {"model": f"frame-{sees}"} for sees in SEES}},
            "steps": {"prepare": self.step, **see},
        }


JPEG = Variant(
    name="frame",
    tensor="jpeg",
    shape=(1, -1),
    members={"decoder": {"image": {"resize": [SIDE, SIDE], "draft": True}}},
    step={"member": "decoder", "inputs": {"image": "jpeg"}, "outputs": {"pixels": "pixels"}},
)
RAW = Variant(
    name="frame-raw",
    tensor="frame",
    shape=(1, 720, 1280, 3),
    members={},
    step={
        "python": "looking.py",
        "function": "scale",
        "inputs": {"frame": "frame"},
        "outputs": {"pixels": {"datatype": "UINT8", "shape": [1, SIDE, SIDE, 3]}},
    },
)


def release_pipeline(variant: Variant) -> None:
    """Registers a pipeline, and follows its release to the end."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "pipeline.yaml").write_text(yaml.safe_dump(variant.spec(), sort_keys=False))
        for file in ("looking.py", "shiplift.yaml"):
            (place / file).write_bytes((HERE / file).read_bytes())
        request: dict[str, Any] = {variant.tensor: variant.request(camera(0))}
        np.savez(place / "requests.npz", **request)
        words = [str(place / "pipeline.yaml"), "--example", str(place / "requests.npz")]
        subprocess.run([SHIPLIFT, "pipeline", "release", *words], check=True)


# --- measuring ------------------------------------------------------------------------------------------------------


class Vehicle:
    """One client, with connections and threads of its own."""

    def __init__(self) -> None:
        self.served = {sees: shiplift.discover(f"frame-{sees}") for sees in SEES}
        self.names = {variant.name: shiplift.discover(variant.name).name for variant in (JPEG, RAW)}
        self.client = grpc.InferenceServerClient(self.served["lanes"].grpc)
        self.pool = ThreadPoolExecutor(len(SEES))

    def jpeg(self, frame: bytes) -> dict[str, Any]:
        """All nine answers from the pipeline that decodes."""
        return self._whole(JPEG, frame)

    def raw(self, frame: bytes) -> dict[str, Any]:
        """All nine answers from the pipeline that only scales; the client decodes."""
        return self._whole(RAW, frame)

    def decoded_each(self, frame: bytes) -> dict[str, Any]:
        """As nine programs that know nothing of each other."""
        return self._nine(lambda: pixels_of(frame))

    def decoded_once(self, frame: bytes) -> dict[str, Any]:
        """As a client that does the pipeline's work itself."""
        pixels = pixels_of(frame)
        return self._nine(lambda: pixels)

    def _whole(self, variant: Variant, frame: bytes) -> dict[str, Any]:
        request = variant.request(frame)
        tensor = grpc.InferInput(variant.tensor, list(request.shape), "UINT8")
        tensor.set_data_from_numpy(request)
        answer = self.client.infer(self.names[variant.name], [tensor])
        return {sees: answer.as_numpy(sees) for sees in SEES}

    def _nine(self, pixels: Callable[[], Any]) -> dict[str, Any]:
        def ask(sees: str) -> Any:
            frame = pixels()
            tensor = grpc.InferInput("input", list(frame.shape), "UINT8")
            tensor.set_data_from_numpy(frame)
            return self.client.infer(self.served[sees].name, [tensor]).as_numpy("output")

        return dict(zip(SEES, self.pool.map(ask, SEES), strict=True))


WAYS = {
    "one request, JPEG": Vehicle.jpeg,
    "one request, raw pixels": Vehicle.raw,
    "nine requests, decoded once": Vehicle.decoded_once,
    "nine requests, decoded each": Vehicle.decoded_each,
}


@dataclass(frozen=True, kw_only=True)
class Round:
    """How long each frame took (s), and the CPU time of the server (s) meanwhile."""

    seconds: list[float]
    cpu: float


def server_cpu() -> float:
    """The CPU time (s) of the server, and of its processes for Python."""
    port = int(shiplift.discover("frame").grpc.rpartition(":")[2])
    (pid,) = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid
    }
    server = psutil.Process(pid)
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def measured(way: Callable[[Vehicle, bytes], dict[str, Any]], frames: list[bytes]) -> Round:
    """One round of all clients."""
    vehicles = [Vehicle() for _ in range(CLIENTS)]
    before, ends = server_cpu(), time.monotonic() + SECONDS

    def drive(number: int) -> list[float]:
        seconds: list[float] = []
        while time.monotonic() < ends:
            began = time.monotonic()
            way(vehicles[number], frames[(number * 7 + len(seconds)) % len(frames)])
            seconds.append(time.monotonic() - began)
        return seconds

    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = [each for part in pool.map(drive, range(CLIENTS)) for each in part]
    return Round(seconds=seconds, cpu=server_cpu() - before)


def sent(name: str, frame: bytes) -> int:
    """The bytes of a frame's requests."""
    if name.startswith("nine"):
        return int(len(SEES) * pixels_of(frame).nbytes)
    return len(frame) if "JPEG" in name else int(RAW.request(frame).nbytes)


def main() -> None:
    """Releases and measures."""
    subprocess.run([SHIPLIFT, "up"], check=True)
    mlflow.set_tracking_uri(shiplift.tracking_uri())
    torch.manual_seed(0)
    for sees, outputs in SEES.items():
        release(f"frame-{sees}", outputs)
    for variant in (JPEG, RAW):
        release_pipeline(variant)
    frames = [camera(seed) for seed in range(100, 116)]
    vehicle = Vehicle()
    nine, alike = vehicle.decoded_once(frames[0]), (vehicle.jpeg(frames[0]), vehicle.decoded_each(frames[0]))
    apart = max(float(np.abs(nine[sees] - other[sees]).max()) for other in alike for sees in SEES)
    print(f"measuring in turn, {CLIENTS} clients; answers to the JPEG differ by {apart:.1e} at most")
    rounds: dict[str, list[Round]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            rounds[name].append(measured(way, frames))
    for name, each in rounds.items():
        rate = median(len(part.seconds) / SECONDS for part in each)
        slow = 1000 * float(np.percentile([second for part in each for second in part.seconds], 99))
        cpu = 1000 * median(part.cpu / len(part.seconds) for part in each)
        size = sent(name, frames[0]) / 1000
        print(f"{name}: {rate:.0f} frames/s, p99 {slow:.0f} ms, server CPU {cpu:.1f} ms, {size:.0f} kB a frame")


if __name__ == "__main__":
    main()
