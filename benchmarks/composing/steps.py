"""The author's Python: a photograph decoded and scaled before the model, and its scores put in order after it.

Decoding releases Python's lock for most of its time, putting in order holds it, as most hand-written steps do.
"""

import io
from typing import Any

import numpy as np
from PIL import Image

SIDE = 224  # pixels
BEST = 5


def decode(jpeg: Any) -> dict[str, Any]:
    """A file's bytes, uint8 (1, size), to `pixels`, float32 (1, 3, 224, 224) from 0 to 1."""
    image = Image.open(io.BytesIO(jpeg.tobytes())).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1)[None] / 255
    return {"pixels": np.ascontiguousarray(pixels)}


def vote(scores: Any) -> dict[str, Any]:
    """Scores, float32 (1, labels), to `best`, float32 (1, 5): the largest scores of five groups of labels."""
    return _voted(scores, passes=4)


def vote_long(scores: Any) -> dict[str, Any]:
    """The same, and for so long that Python's lock is what a process has to wait for."""
    return _voted(scores, passes=100)


def _voted(scores: Any, *, passes: int) -> dict[str, Any]:
    groups: dict[int, float] = {}
    for _ in range(passes):
        for label, score in enumerate(scores[0].tolist()):
            group = label * 7919 % BEST
            groups[group] = max(groups.get(group, score), score)
    return {"best": np.array([[groups[group] for group in sorted(groups)]], dtype=np.float32)}
