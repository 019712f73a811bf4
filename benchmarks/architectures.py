"""The architectures that benchmarks measure, in plain torch: a digits CNN, ResNet-50, a transformer encoder.

ResNet-50 is that of He et al. (2015) with the stride in the 3x3 convolution (v1.5). Weights are random, except for the
digits CNN, which trains in seconds. Only torch is needed, since a GPU machine may have nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1x1, 3x3 and 1x1 convolutions with a shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        resized = stride != 1 or inputs != outputs
        self.shortcut: nn.Module = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if resized
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        """FP32 (batch, inputs, height, width) to (batch, 4 * width, height / stride, width / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50(classes: int = 1000) -> nn.Module:
    """FP32 (batch, 3, 224, 224) to (batch, classes)."""
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for index in range(count):
            blocks.append(Bottleneck(inputs, width, 2 if stage and not index else 1))
            inputs = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    return nn.Sequential(*stem, *blocks, *head)


class Encoder(nn.Module):  # type: ignore[misc]
    """Token ids to a vector of scores: 12 pre-norm layers of width 384 with 6 heads, mean-pooled."""

    def __init__(self, tokens: int = 8192, width: int = 384, layers: int = 12, classes: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.randn(1, 512, width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(width, 6) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Any) -> Any:
        """INT64 (batch, length) to (batch, classes)."""
        x = self.embedding(tokens) + self.position[:, : tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1))


class EncoderLayer(nn.Module):  # type: ignore[misc]
    """Self-attention and a feed-forward network, each with a LayerNorm before it and a shortcut around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        """(batch, length, width) to the same shape."""
        batch, length, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.feed_norm(x))


def digits_cnn() -> nn.Module:
    """FP32 (batch, 1, 8, 8) to (batch, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


@dataclass(frozen=True)
class Digits:
    """scikit-learn's digits: FP32 (1797, 1, 8, 8) from 0 to 1, their classes, and a CNN trained on the first 1200."""

    images: Any
    labels: Any
    model: nn.Module


def trained_digits() -> Digits:
    """Trains the digits CNN, in seconds, to the same weights every time."""
    from sklearn.datasets import load_digits  # a GPU machine may have only torch

    data = load_digits()
    images, labels = (data.images / 16).astype("float32")[:, None], data.target
    torch.manual_seed(0)
    model = digits_cnn()
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    x, y = torch.from_numpy(images[:1200]), torch.from_numpy(labels[:1200])
    for _ in range(12):
        for batch in torch.randperm(1200).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    return Digits(images, labels, model.eval())


@dataclass(frozen=True)
class Architecture:
    """A model, and how to generate inputs for a batch."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Any]


def _images(batch: int) -> Any:
    return torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(batch))


def _tokens(batch: int) -> Any:
    return torch.randint(0, 8192, (batch, 128), generator=torch.Generator().manual_seed(batch))


LARGE = (
    Architecture("resnet50", resnet50, _images),
    Architecture("encoder-12x384", Encoder, _tokens),
)


SERVED: dict[str, Callable[[], nn.Module]] = {
    "digits-cnn": digits_cnn,
    "resnet50": resnet50,
    "encoder": lambda: Encoder(layers=6),
}


def served(name: str) -> nn.Module:
    """An architecture of `make bench`, with untrained weights."""
    return SERVED[name]()


def seeded(architecture: Architecture, seed: int = 0) -> nn.Module:
    """The architecture in eval mode, with random weights from a seed and plausible batch-norm statistics."""
    torch.manual_seed(seed)
    model = architecture.build().train()
    with torch.no_grad():
        for round_ in range(3):
            model(architecture.inputs(8 + round_))
    return model.eval()
