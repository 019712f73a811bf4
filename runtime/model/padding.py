"""The proof that padding changes no answer: compares a model's answers to padded requests with those to unpadded ones.

Floating-point sums depend on how many numbers an engine adds at a time, so "no change" has the same meaning as for
golden requests: within a tolerance. A graph that looks at its padding fails by far more: one without a mask, one that
scales activations by all of a tensor (dynamic quantization), or one whose positions end before the bucket does.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.samples import random_like
from shiplift.runtime.model.tensors import Arrays, datatype
from shiplift.runtime.records.serving import Padding
from shiplift.runtime.records.tensor import TensorSpec


class _Changed(Exception):
    """Padding to a bucket changes an answer. `str()` says how."""


def prove(
    running: Any, example: Arrays, pad: Mapping[str, float], buckets: Sequence[int], tolerance: float, *, every: bool
) -> Padding:
    """To which of the rising `buckets` a session's model may be padded, and which of its outputs are then cut back.

    `example` has inputs by name, of shape (samples, length, ...) where `pad` has a value for them. Each bucket is
    tested with the example and with random inputs like it, of several lengths. Unless `every` bucket must hold, those
    before the first failure are kept.
    """
    proven: list[int] = []
    cut: dict[str, bool] = {}
    refused = "" if buckets else "the model takes fewer tokens than the smallest bucket has"
    for at, bucket in enumerate(buckets):
        lengths = _lengths(buckets[at - 1] if at else 0, bucket)
        try:
            _check(running, list(_samples(example, pad, lengths)), pad, bucket, tolerance, cut)
        except _Changed as changed:
            refused = str(changed)
            break
        proven.append(bucket)
    if not proven or (refused and every):
        return Padding(pad=dict(pad), refused=refused)
    return Padding(pad=dict(pad), cut=tuple(name for name, is_cut in cut.items() if is_cut), buckets=tuple(proven))


def padded(sample: Arrays, pad: Mapping[str, float], bucket: int) -> Arrays:
    """A sample of shape (1, length, ...) with the inputs in `pad` filled up to a length of `bucket`."""
    return {name: _filled(array, pad[name], bucket) if name in pad else array for name, array in sample.items()}


def _filled(array: Any, value: float, bucket: int) -> Any:
    widths = [(0, bucket - size if axis == 1 else 0) for axis, size in enumerate(array.shape)]
    return np.pad(array, widths, constant_values=np.asarray(value).astype(array.dtype))


def _lengths(previous: int, bucket: int) -> list[int]:
    """The lengths to test: the extremes, the first that falls into the bucket, and one in between."""
    return sorted({1, min(previous + 1, bucket), max(1, bucket // 2), max(1, bucket - 1), bucket})


def _samples(example: Arrays, pad: Mapping[str, float], lengths: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
    """For each length a sample of the example, and a random one like it."""
    random = random_like(example, _specs(example), len(lengths), seed=0)
    count = len(next(iter(example.values())))
    for at, length in enumerate(lengths):
        for arrays, row in ((example, at % count), (random, at)):
            yield (
                length,
                {
                    name: _resized(array[row : row + 1], length) if name in pad else array[row : row + 1]
                    for name, array in arrays.items()
                },
            )


def _specs(arrays: Arrays) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, datatype=datatype(array.dtype) or "BYTES", shape=(-1, *array.shape[1:]))
        for name, array in arrays.items()
    )


def _resized(array: Any, length: int) -> Any:
    """The array with its second dimension cut or repeated to a length."""
    return np.take(array, np.arange(length) % max(1, array.shape[1]), axis=1)


def _check(
    running: Any,
    samples: Sequence[tuple[int, Arrays]],
    pad: Mapping[str, float],
    bucket: int,
    tolerance: float,
    cut: dict[str, bool],
) -> None:
    """Compares each sample's answer with the one in a padded batch of all samples; adds its findings to `cut`."""
    batch = [padded(sample, pad, bucket) for _, sample in samples]
    together = _answer(running, {name: np.concatenate([entry[name] for entry in batch]) for name in batch[0]}, bucket)
    for row, (length, sample) in enumerate(samples):
        alone = _answer(running, sample, length)
        for name, expected in alone.items():
            got = np.asarray(together[name])[row : row + 1]
            _compare(name, np.asarray(expected), got, (length, bucket), tolerance, cut)


def _answer(running: Any, inputs: Arrays, length: int) -> Arrays:
    try:
        return onnx_models.answer(running, inputs)
    except Exception as error:  # each engine raises its own errors
        raise _Changed(f"the model fails at length {length}: {' '.join(str(error).split())[:200]}") from error


def _compare(
    name: str, expected: Any, got: Any, lengths: tuple[int, int], tolerance: float, cut: dict[str, bool]
) -> None:
    length, bucket = lengths
    if length < bucket:
        is_cut = expected.ndim > 1 and (expected.shape[1], *got.shape[1:2]) == (length, bucket)
        if cut.setdefault(name, is_cut) != is_cut:
            raise _Changed(f"output {name!r} has the request's length only sometimes")
        got = got[:, :length] if is_cut else got
    if expected.shape != got.shape:
        raise _Changed(
            f"output {name!r} has shape {expected.shape} for a request of length {length}, and {got.shape} once it is "
            f"padded to {bucket}"
        )
    absolute, relative = onnx_models.differences(expected, got)
    difference = relative if math.isfinite(relative) else absolute  # the expected answer may be all zeros
    if not difference <= tolerance:
        raise _Changed(
            f"padding changes the answer: output {name!r} to a request of length {length} is off by {difference:.2g} "
            f"once it is padded to {bucket}, more than {tolerance:g}"
        )
