"""Whether two sets of answers to the same rows are the same: by output, by row and by column. Pure.

Labels, texts, booleans and integers are equal row by row. Floats have a tolerance of their own in each column. An error
is an answer, too: where the original raises, what is served must not answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.parts import Part, parts
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, RowsAsked


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The first difference (None: there is none), the worst column, and how many rows of each origin are wrong."""

    first: Counterexample | None
    worst: ColumnDifference | None
    wrong: tuple[RowsAsked, ...]

    @property
    def same(self) -> bool:
        """Whether all answers are the same."""
        return self.first is None


def compare(original: Answers, served: Answers, origins: Sequence[str], *, setting: str = "") -> Comparison:
    """Compares the answers to rows that come from these `origins`, asked as `setting` says."""
    found = list(parts(original, served))
    wrong = np.flatnonzero(np.logical_or.reduce([part.wrong for part in found])).tolist()
    return Comparison(
        first=_told(found, wrong[0], origins, setting) if wrong else None,
        worst=worst_of([part.worst for part in found]),
        wrong=counted([origins[row] for row in wrong]),
    )


def worst_of(columns: Sequence[ColumnDifference | None]) -> ColumnDifference | None:
    """The column that comes closest to its tolerance, or exceeds it most."""

    def excess(column: ColumnDifference) -> float:
        return column.difference / column.tolerance if column.tolerance else np.inf

    return max((column for column in columns if column), key=excess, default=None)


def counted(origins: Sequence[str]) -> tuple[RowsAsked, ...]:
    """How many rows there are of each origin, in the order of the first ones."""
    return tuple(RowsAsked(origin=each, rows=list(origins).count(each)) for each in dict.fromkeys(origins))


def _told(found: Sequence[Part], row: int, origins: Sequence[str], setting: str) -> Counterexample:
    part = next(part for part in found if part.wrong[row])
    return Counterexample(row=row, origin=origins[row], setting=setting, **part.tell(row))
