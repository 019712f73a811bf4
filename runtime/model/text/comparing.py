"""The difference between two arrays of texts: texts agree or not, and numbers in JSON may differ by a little.

Corners of a `box` are numbers that were cut to whole pixels: even the smallest difference may have made them one apart.
"""

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import text_of

_BOX = "box"


def text_difference(left: NDArray[Any], right: NDArray[Any]) -> float:
    """The largest difference between numbers in texts that are JSON; 0 for equal texts, infinity for different ones."""
    if left.size != right.size:
        return math.inf
    pairs = zip(left.reshape(-1), right.reshape(-1), strict=True)
    return max((_difference(_lossless(a), _lossless(b)) for a, b in pairs), default=0.0)


def _lossless(item: Any) -> str:
    """Decodes an item without loss: a server may answer with any bytes, and different bytes stay different."""
    return text_of(item, errors="surrogateescape")


def _difference(left: str, right: str) -> float:
    if left == right:
        return 0.0
    if left[:1] not in ("[", "{") or left[:1] != right[:1]:
        return math.inf
    try:
        return _of_values(json.loads(left), json.loads(right))
    except (ValueError, RecursionError):
        return math.inf


def _of_values(left: Any, right: Any, *, pixels: bool = False) -> float:
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return max((_of_values(left[key], right[key], pixels=pixels or key == _BOX) for key in left), default=0.0)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return max((_of_values(a, b) for a, b in zip(left, right, strict=True)), default=0.0)
    if isinstance(left, float) and isinstance(right, float):
        distance = float(np.abs(left - right))
        return math.inf if math.isnan(distance) else distance
    if pixels and type(left) is type(right) is int and abs(left - right) <= 1:
        return 0.0
    return 0.0 if type(left) is type(right) and left == right else math.inf
