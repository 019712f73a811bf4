"""Answers to questions: outputs with a row for each, and errors where there is no answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What was answered to some rows: `outputs` by name, with a row for each, and `errors`, empty where there is none.

    A row with an error has anything in the outputs. If no row was answered, there are no outputs. `noise` is how far
    off the answers themselves are in each column, (columns,) by output, where that is known: FP32's against FP64's. Of
    texts it is how far off numbers in them are, (1,), if they are JSON.
    `usual` are the magnitudes that a tolerance is relative to, (rows, columns) by output: see `proof.ordinary`. Without
    them it is relative to the magnitude of these answers.
    """

    outputs: Arrays
    errors: tuple[str, ...]
    noise: Arrays = field(default_factory=dict)
    usual: Arrays = field(default_factory=dict)

    @classmethod
    def of(cls, outputs: Arrays) -> "Answers":
        """Outputs without an error."""
        return cls(outputs=outputs, errors=("",) * len(next(iter(outputs.values()))))

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """Which rows have an answer."""
        return np.array([not error for error in self.errors], dtype=np.bool_)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> "Answers":
        """These rows, in this order."""
        at = np.asarray(rows, dtype=np.intp)
        outputs = {name: array[at] for name, array in self.outputs.items()}
        usual = {name: array[at] for name, array in self.usual.items()}
        return replace(self, outputs=outputs, errors=tuple(self.errors[row] for row in at), usual=usual)
