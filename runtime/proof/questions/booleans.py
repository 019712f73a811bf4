"""Columns of booleans."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.proof.questions.column import Candidates, Column


class Booleans:
    """Booleans: both."""

    def recognises(self, column: Column) -> bool:
        """Whether it holds booleans, one to a row."""
        return column.dtype.kind == "b" and column.shape == ()

    def candidates(self, column: Column, rng: np.random.Generator) -> Candidates:
        """Both values."""
        return {"boolean": np.array([False, True])}

    def sample(self, column: Column, count: int, rng: np.random.Generator) -> NDArray[Any]:
        """Both values, as often."""
        return rng.integers(0, 2, count).astype(np.bool_)
