"""PyTorch models: torchvision's architectures with random weights as pt2, small ones, and ones that must be refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged
from benchmarks.zoo.cases.packages import torchvision
from shiplift.runtime.model.tensors import Arrays

_PIXELS = 96


def _answers(model: Any, *inputs: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(*map(torch.from_numpy, inputs)).numpy()


def _logged(model: Any, x: Any, **options: Any) -> Logged:
    """A module of one tensor, as MLflow logs it by default: pt2, with a signature and an example of two samples."""
    import mlflow
    from mlflow.models import infer_signature

    signature = infer_signature(x[:2], _answers(model, x[:2]))
    return Logged(
        log=lambda **more: mlflow.pytorch.log_model(
            model, signature=signature, input_example=x[:2], pip_requirements=[], **options, **more
        ),
        question=x,
        inputs={"input": x},
    )


def _images(count: int) -> Any:
    return np.random.default_rng(count).normal(size=(count, 3, _PIXELS, _PIXELS)).astype(np.float32)


def _vision(architecture: str, _: Path) -> Logged:
    from benchmarks.architectures import Architecture, seeded

    def inputs(batch: int) -> Any:
        import torch

        return torch.from_numpy(_images(batch))

    with torchvision() as models:
        build = getattr(models, architecture)
        model = seeded(Architecture(architecture, lambda: build(weights=None), inputs))
        return _logged(model, _images(8))


def _encoder(_: Path) -> Logged:
    import torch

    from benchmarks.architectures import Encoder

    torch.manual_seed(0)
    return _logged(Encoder(layers=2).eval(), np.random.default_rng(0).integers(0, 8192, (8, 64)))


def _digits(_: Path) -> Logged:
    from benchmarks.architectures import trained_digits

    trained = trained_digits()
    return _logged(trained.model, trained.images[1200:1232])


def _scorer() -> Any:
    """Token ids and a mask to scores."""
    import torch

    class Scorer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 3)

        def forward(self, ids: Any, mask: Any) -> Any:
            weights = mask.unsqueeze(-1).to(torch.float32)
            return self.head((self.embedding(ids) * weights).sum(1) / weights.sum(1).clamp(min=1))

    torch.manual_seed(0)
    return Scorer().eval()


def _two_tensors(_: Path) -> Logged:
    """MLflow's pyfunc takes one tensor only, so the module's own answers are right."""
    import mlflow
    import torch
    from mlflow.models import infer_signature

    model, rng = _scorer(), np.random.default_rng(0)
    x: Arrays = {"ids": rng.integers(0, 50, (8, 12)), "mask": np.ones((8, 12), np.int64)}
    answers = _answers(model, *x.values())
    signature = infer_signature(x, {"scores": answers})
    example = tuple(torch.from_numpy(array[:3]) for array in x.values())
    return Logged(
        log=lambda **options: mlflow.pytorch.log_model(
            model, signature=signature, input_example=example, pip_requirements=[], **options
        ),
        inputs=x,
        original={"scores": answers},
    )


def _pickled(_: Path) -> Logged:
    import torch

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    x = np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32)
    return _logged(model, x, serialization_format="pickle")


def _nan(_: Path) -> Logged:
    import torch

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    return _logged(model, np.random.default_rng(0).normal(size=(8, 8, 8)).astype(np.float32))


def _torchvision_case(architecture: str) -> Case:
    build: Callable[[Path], Logged] = partial(_vision, architecture)
    name = f"torch-{architecture.replace('_', '-')}"
    return Case(name=name, flavor="pytorch", about=f"torchvision's {architecture}, random weights", build=build)


TORCH = (
    Case(name="torch-digits", flavor="pytorch", about="CNN trained on digits", build=_digits),
    Case(name="torch-encoder", flavor="pytorch", about="transformer encoder on token ids", build=_encoder),
    Case(name="torch-two-tensors", flavor="pytorch", about="ids and a mask, pt2", build=_two_tensors),
    *map(
        _torchvision_case,
        (
            "resnet18",
            "mobilenet_v3_small",
            "efficientnet_b0",
            "densenet121",
            "shufflenet_v2_x1_0",
            "squeezenet1_1",
            "regnet_y_400mf",
            "convnext_tiny",
        ),
    ),
    Case(
        name="torch-pickle",
        flavor="pytorch",
        about="a pickled module",
        build=_pickled,
        right="refused",
        reason="it is a pickle",
        why="a pickle can run code",
    ),
    Case(
        name="torch-nan",
        flavor="pytorch",
        about="a weight that is not a number",
        build=_nan,
        right="refused",
        reason="NaN",
        why="answers that are not numbers",
    ),
)
