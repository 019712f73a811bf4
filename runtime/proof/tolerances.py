"""How far from the original's a float may be: for each value, in each column, never by the tensor's largest. Pure."""

import numpy as np
from numpy.typing import NDArray

USUAL = 1e-4  # of a value and of its column: FP32 in another order of additions
NOISE_FACTOR = 8  # how many times the original's own noise an answer may be off
_ROUNDED = 2  # units in the last place of the coarser type
_USUAL_PERCENT = 90  # of a column's magnitudes are at most the usual one
PROBABLE = 5e-4  # of a probability: its label is compared by itself
OF_ZEROS = 1e-2  # of the output's usual magnitude, in a column that holds nothing but zeros

Floats = NDArray[np.float64]


def tolerances(
    values: Floats,
    answered: NDArray[np.bool_],
    resolution: float,
    noise: Floats | None,
    usual: Floats | None = None,
) -> Floats:
    """How far from each of `values`, (rows, columns), an answer may be, in the unit of its column.

    `usual`, (rows, columns), are the magnitudes that are usual for these rows, if known; otherwise those of the
    rows that were `answered`, (rows,). `resolution` is the step between 1 and the next number in the coarser of both
    types. `noise`, (columns,), is how far off the original itself is, if known.
    """
    usual = usual_magnitude(values[answered]) if usual is None else usual
    sizes = np.where(np.isfinite(values), np.abs(values), 0.0) + usual
    allowed = sizes * (USUAL + _ROUNDED * resolution)
    if noise is not None and noise.size == values.shape[1]:
        allowed = allowed + NOISE_FACTOR * noise.reshape(1, -1)
    return np.maximum(allowed, PROBABLE) if _probable(values[answered]) else allowed


def resolution_of(*arrays: NDArray[np.floating]) -> float:
    """The step between 1 and the next number in the coarsest type of these arrays."""
    return max(float(np.finfo(array.dtype).eps) for array in arrays)


def smallest_of(*arrays: NDArray[np.floating]) -> float:
    """The smallest number that all of these types hold in full; engines may take smaller ones for zero."""
    return max(float(np.finfo(array.dtype).tiny) for array in arrays)


def usual_magnitude(values: Floats) -> Floats:
    """The magnitude in each column, (columns,), that few of `values`, (rows, columns), exceed, of what is not zero."""
    sizes = np.where(np.isfinite(values) & (values != 0), np.abs(values), np.nan)
    filled = ~np.isnan(sizes).all(axis=0)
    usual = np.zeros(sizes.shape[1])
    if filled.any():
        usual[filled] = np.nanpercentile(sizes[:, filled], _USUAL_PERCENT, axis=0)
        usual[~filled] = OF_ZEROS * float(np.median(usual[filled]))
    return usual


def largest_in_rows(array: NDArray[np.generic]) -> NDArray[np.float64]:
    """The largest finite magnitude in each row, (rows,)."""
    sizes = np.abs(np.where(np.isfinite(array), array, 0).astype(np.float64))
    return np.asarray(sizes.reshape(len(sizes), -1).max(axis=1, initial=0.0))


def _probable(values: Floats) -> bool:
    """Whether each row has the probabilities of several classes, where one is what the others leave."""
    if values.shape[1] < 2 or not len(values) or not ((values >= 0) & (values <= 1)).all():
        return False
    return bool(np.allclose(values.sum(axis=1), 1, atol=PROBABLE))
