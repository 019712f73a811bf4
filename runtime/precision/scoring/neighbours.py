"""How well embeddings keep their neighbours: a cosine of 0.99 can still change a quarter of the nearest ones."""

import numpy as np
from numpy.typing import NDArray

_NEIGHBOURS = 10
_BLOCK = 512  # samples whose neighbours are looked for at once


def recall(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each sample's share of nearest neighbours kept, from 0 to 1; (samples,)."""
    count = min(_NEIGHBOURS, len(actual) - 1)
    if count < 1:
        return np.full(len(actual), float("nan"))
    kept = []
    for start in range(0, len(actual), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(actual)))
        got, wanted = _neighbours(actual, rows, count), _neighbours(expected, rows, count)
        kept += [len(np.intersect1d(a, b)) / count for a, b in zip(got, wanted, strict=True)]
    return np.array(kept)


def _neighbours(vectors: NDArray[np.float64], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms == 0, 1, norms)
    similarity = unit[rows] @ unit.T
    similarity[np.arange(len(rows)), rows] = -np.inf  # not its own neighbour
    return np.argpartition(-similarity, count - 1, axis=1)[:, :count]
