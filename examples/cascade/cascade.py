"""A cascade: trains a small and a large model, releases both and the pipeline of the two, and measures it.

    python examples/cascade/cascade.py

It starts the stack if none runs, and prints accuracy and throughput of the cascade and of the large model alone,
and how many requests needed the large one.
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import mlflow
import numpy as np
import torch
from mlflow.models import infer_signature
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from tritonclient import grpc

import shiplift

HERE = Path(__file__).resolve().parent
SHIPLIFT = str(Path(sys.executable).with_name("shiplift"))
CLIENTS, ROUNDS, SECONDS = 8, 3, 3.0


def small() -> nn.Module:
    """A linear model: float32 (batch, 1, 8, 8) in, probabilities (batch, 10) out."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(dim=1))


def large() -> nn.Module:
    """A CNN on the enlarged image: the same tensors, and some thousand times the work."""
    layers: list[nn.Module] = [nn.Upsample(scale_factor=4), nn.Conv2d(1, 96, 3, padding=1), nn.ReLU()]
    for _ in range(5):
        layers += [nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(4), nn.Flatten(), nn.Linear(96 * 16, 10), nn.Softmax(dim=1))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    """Trains with Adam on batches of 64, in bf16 where the processor gains from it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                scores = model(images[batch])
            nn.functional.nll_loss(torch.log(scores.float() + 1e-9), labels[batch]).backward()
            optimizer.step()


def release(name: str, model: nn.Module, images: Any, labels: Any) -> None:
    """Logs and registers a model, and follows its release to the end."""
    model.eval()
    with torch.no_grad():
        example, scores = images[:8], model(torch.tensor(images[:8])).numpy()
    with mlflow.start_run(), TemporaryDirectory() as folder:
        np.savez(Path(folder) / "validation.npz", image=images, label=labels)
        mlflow.log_artifact(str(Path(folder) / "validation.npz"), "shiplift")
        mlflow.log_artifact(str(HERE / "shiplift.yaml"), "shiplift")
        logged = mlflow.pytorch.log_model(
            model,
            name="model",
            input_example=example,
            signature=infer_signature(example, scores),
            registered_model_name=name,
        )
    subprocess.run([SHIPLIFT, "release", f"{name}/{logged.registered_model_version}"], check=True)


def release_pipeline(images: Any, labels: Any) -> None:
    """Registers the pipeline with requests and validation data, and follows its release to the end."""
    with TemporaryDirectory() as folder:
        requests, labelled = Path(folder) / "requests.npz", Path(folder) / "labelled.npz"
        np.savez(requests, image=images[:64])
        np.savez(labelled, image=images, label=labels)
        words = ["pipeline", "release", str(HERE / "pipeline.yaml"), "--example", str(requests)]
        subprocess.run([SHIPLIFT, *words, "--validation", str(labelled)], check=True)


class Asked:
    """A served model as one client sees it: images in, class probabilities out."""

    def __init__(self, name: str) -> None:
        served = shiplift.discover(name)
        self.name, self.signature = served.name, served.signature
        self.client = grpc.InferenceServerClient(served.grpc)

    def __call__(self, image: Any) -> Any:
        """The probabilities for an image (1, 8, 8)."""
        tensor = grpc.InferInput(self.signature.inputs[0].name, [1, *image.shape], "FP32")
        tensor.set_data_from_numpy(image[None])
        wanted = self.signature.outputs[0].name
        outputs = [grpc.InferRequestedOutput(wanted)]
        return self.client.infer(self.name, [tensor], outputs=outputs).as_numpy(wanted)

    def asked(self, model: str) -> int:
        """How many requests a model of the server has answered so far."""
        stats = self.client.get_inference_statistics(model).model_stats
        return sum(int(each.inference_stats.success.count) for each in stats)


def measure(names: list[str], images: Any) -> dict[str, float]:
    """Requests per second of each model, medians of alternated rounds."""
    rates: dict[str, list[float]] = {name: [] for name in names}

    def ask(name: str, first: int, ends: float) -> int:
        asked, count = Asked(name), 0
        while time.monotonic() < ends:
            asked(images[(first + count) % len(images)])
            count += 1
        return count

    for _ in range(ROUNDS):
        for name in names:
            ends = time.monotonic() + SECONDS
            with ThreadPoolExecutor(CLIENTS) as pool:
                futures = [pool.submit(ask, name, number * 61, ends) for number in range(CLIENTS)]
            rates[name].append(sum(future.result() for future in futures) / SECONDS)
    return {name: median(values) for name, values in rates.items()}


def accuracy(name: str, images: Any, labels: Any) -> float:
    """The share of images that a served model classifies rightly."""
    asked = Asked(name)
    scores = np.concatenate([asked(image) for image in images])
    return float(np.mean(scores.argmax(axis=1) == labels))


def main() -> None:
    """Trains, releases and measures."""
    subprocess.run([SHIPLIFT, "up"], check=True)
    mlflow.set_tracking_uri(shiplift.tracking_uri())
    torch.manual_seed(0)
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    train_x, valid_x, train_y, valid_y = train_test_split(images, digits.target, test_size=500, random_state=0)
    models = {"digits-small": (small(), 300), "digits-large": (large(), 12)}
    for name, (model, epochs) in models.items():
        train(model, torch.tensor(train_x), torch.tensor(train_y), epochs)
        release(name, model, valid_x, valid_y)
    release_pipeline(valid_x, valid_y)
    names = ["digits-large", "digits-cascade"]
    print("measuring both in turn")
    rates = measure(names, valid_x)
    large_model = next(name for name in members("digits-cascade") if name.startswith("digits-large"))
    before = Asked("digits-cascade").asked(large_model)
    right = {name: accuracy(name, valid_x, valid_y) for name in names}
    needed = (Asked("digits-cascade").asked(large_model) - before) / len(valid_x)
    for name in names:
        print(f"{name}: accuracy {right[name]:.3f}, {rates[name]:.0f} requests/s at {CLIENTS} clients")
    print(f"{needed:.0%} of the requests needed the large model")


def members(pipeline: str) -> list[str]:
    """The names of all models in the server that a pipeline's are among."""
    client = grpc.InferenceServerClient(shiplift.discover(pipeline).grpc)
    statistics = client.get_inference_statistics().model_stats  # the list of models itself asks for the owner's key
    return sorted({str(model.name) for model in statistics if "--" in model.name})


if __name__ == "__main__":
    main()
