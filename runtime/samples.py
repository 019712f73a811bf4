"""Inputs made from an author's example: for parity, for golden requests and for load tests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.records import TensorSpec
from runtime.tensors import Arrays, batch_of

BATCHES = (1, 2, 7)


def input_sets(example: Arrays, specs: tuple[TensorSpec, ...], *, seed: int) -> dict[str, Arrays]:
    """The example as logged, and one random set per batch size of `BATCHES`, by name."""
    rng = np.random.default_rng(seed)
    return {"example": example, **{f"random-{size}": _like(example, specs, size, rng) for size in BATCHES}}


def random_like(example: Arrays, specs: tuple[TensorSpec, ...], count: int, *, seed: int) -> Arrays:
    """`count` random samples with the example's shapes, dtypes and ranges; the same ones for the same seed."""
    return _like(example, specs, count, np.random.default_rng(seed))


def _like(example: Arrays, specs: tuple[TensorSpec, ...], count: int, rng: np.random.Generator) -> Arrays:
    like = batch_of(example, count)
    return {spec.name: _random(like[spec.name], rng) for spec in specs}


def _random(like: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Values between the example's smallest and largest: inside the domain the author showed."""
    if like.dtype.kind in "OSU":
        return rng.choice(np.unique(like.astype(str)), size=like.shape).astype(object)
    if like.dtype.kind == "b":
        return rng.integers(0, 2, size=like.shape).astype(np.bool_)
    low, high = like.min(), like.max()
    if like.dtype.kind in "iu":
        return rng.integers(low, high, size=like.shape, endpoint=True).astype(like.dtype)
    spread = (low, high) if high > low else (low - 1, high + 1)
    return rng.uniform(*spread, size=like.shape).astype(like.dtype)
