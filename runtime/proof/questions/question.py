"""The words of this room: what is known, what it may cost to ask, and what is asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays


@dataclass(frozen=True, kw_only=True)
class KnownRows:
    """Rows that the author or clients gave, by input name with the rows on the first axis; a source may be empty."""

    example: Arrays
    validation: Arrays = field(default_factory=dict)
    recorded: Arrays = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How many rows may be asked, and for how long when each takes `seconds_per_row`."""

    rows: int = 3_000
    seconds: float = 5.0
    seconds_per_row: float = 0.0

    @property
    def affordable(self) -> int:
        """The number of rows that may be asked; one always may."""
        if self.seconds_per_row <= 0:
            return max(1, self.rows)
        return max(1, min(self.rows, int(self.seconds / self.seconds_per_row)))


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Rows of one shape to ask: every array has the rows on its first axis. `origins` say where each row is from.

    They are "example", "validation", "recorded"; for special values in a known row "zero", "sentinel", "missing",
    "infinite", "range", "threshold:COLUMN", "category", "text", "id", "boolean", "tensor", or "several" of them; "tie"
    for a threshold in every column, "leaf" for a corner of a leaf, "range" for all columns drawn, "length", "jump" for
    one of two neighbouring values with answers that are far apart, and "far" for numbers far from all that are known.
    """

    inputs: Arrays
    origins: tuple[str, ...]

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> "Questions":
        """These rows, in this order."""
        at = np.asarray(rows, dtype=np.intp)
        inputs = {name: array[at] for name, array in self.inputs.items()}
        return Questions(inputs=inputs, origins=tuple(self.origins[row] for row in at.tolist()))


NONE = Questions(inputs={}, origins=())


@dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """All questions, an entry for each shape of rows, and in plain sentences what was left out and why.

    `far` are beside them, since a form may be limited to what it answers rightly of these.
    """

    questions: tuple[Questions, ...]
    left_out: tuple[str, ...] = ()
    far: Questions = NONE
