"""Inputs generated from an author's example, for parity checks, golden requests and load tests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import TensorSpec

BATCHES = (1, 2, 7)


def input_sets(example: Arrays, specs: tuple[TensorSpec, ...], *, seed: int) -> dict[str, Arrays]:
    """The example as logged, and one random set per batch size in `BATCHES`, by name."""
    rng = np.random.default_rng(seed)
    return {"example": example, **{f"random-{size}": _like(example, specs, size, rng) for size in BATCHES}}


def random_like(example: Arrays, specs: tuple[TensorSpec, ...], count: int, *, seed: int) -> Arrays:
    """`count` random samples with the example's shapes, dtypes and ranges; reproducible by `seed`."""
    return _like(example, specs, count, np.random.default_rng(seed))


def _like(example: Arrays, specs: tuple[TensorSpec, ...], count: int, rng: np.random.Generator) -> Arrays:
    return {spec.name: _random(example[spec.name], count, rng) for spec in specs}


def _random(like: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Values between the example's smallest and largest, and so within the domain that the author showed.

    As large a share of them is missing (NaN) as of the example's.
    """
    shape = (count, *like.shape[1:])
    if like.dtype.kind in "OSU":
        return rng.choice(np.unique(like.astype(str)), size=shape).astype(object)
    if like.dtype.kind == "b":
        return rng.integers(0, 2, size=shape).astype(np.bool_)
    known = like[~np.isnan(like)] if like.dtype.kind == "f" else like
    if not known.size:
        return np.full(shape, np.nan, dtype=like.dtype)
    low, high = known.min(), known.max()
    if like.dtype.kind in "iu":
        return rng.integers(low, high, size=shape, endpoint=True, dtype=like.dtype)
    if low == high:
        low, high = low - 1, high + 1
    share = rng.random(shape)  # not rng.uniform: high - low may overflow
    values = np.asarray(np.clip(low * (1 - share) + high * share, low, high), dtype=like.dtype)
    if known.size < like.size:
        values[rng.random(shape) < 1 - known.size / like.size] = np.nan
    return values
