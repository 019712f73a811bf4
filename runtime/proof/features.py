"""The tolerance of answers to texts and images: of numbers in JSON, and of features, which are alike in every token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.tolerances import NOISE_FACTOR, PROBABLE, usual_magnitude


def usual_of_features(sets: Sequence[Arrays]) -> Arrays:
    """The usual magnitudes of floats on their last axis, (features,) by output, in several sets of answers."""
    kept: dict[str, list[NDArray[np.float64]]] = {}
    for outputs in sets:
        for name, array in outputs.items():
            if array.dtype.kind == "f" and array.size:
                kept.setdefault(name, []).append(array.reshape(-1, _features(array)).astype(np.float64))
    return {name: usual_magnitude(np.concatenate(each)) for name, each in kept.items()}


def of_features(outputs: Arrays, usual: Arrays) -> Answers:
    """Answers whose tolerance is relative to those magnitudes; numbers in JSON may be off as much as a probability."""
    counts = {name: (len(outputs[name]), outputs[name][0].size // array.size) for name, array in usual.items()}
    each = {name: np.tile(array, counts[name]) for name, array in usual.items()}
    texts = {name: np.array([PROBABLE / NOISE_FACTOR]) for name, array in outputs.items() if array.dtype.kind in "OSU"}
    return Answers(outputs=outputs, errors=("",) * len(next(iter(outputs.values()))), noise=texts, usual=each)


def _features(array: NDArray[Any]) -> int:
    return int(array.shape[-1]) if array.ndim > 1 else 1
