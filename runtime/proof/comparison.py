"""Whether two sets of answers to the same rows are the same: by output, by row and by column. Pure.

Labels, texts, booleans and integers are equal row by row. Floats have a tolerance of their own in each column. An error
is an answer, too: where the original raises, what is served must not answer.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.parts import ComparedPart, parts
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, RowsAsked

_SHOWN = 300  # characters of a row


@dataclass(frozen=True, kw_only=True)
class AnswerComparison:
    """The first difference (None: there is none), the worst column, and how many rows of each origin are wrong."""

    first: Counterexample | None
    worst: ColumnDifference | None
    wrong: tuple[RowsAsked, ...]

    @property
    def same(self) -> bool:
        """Whether all answers are the same."""
        return self.first is None


def compare(original: Answers, served: Answers, origins: Sequence[str], *, setting: str = "") -> AnswerComparison:
    """Compares the answers to rows that come from these `origins`, asked as `setting` says."""
    found = list(parts(original, served))
    wrong = np.flatnonzero(np.logical_or.reduce([part.wrong for part in found])).tolist()
    return AnswerComparison(
        first=_told(found, wrong[0], origins, setting) if wrong else None,
        worst=worst_of([part.worst for part in found]),
        wrong=counted([origins[row] for row in wrong]),
    )


def with_row(found: Counterexample | None, inputs: Arrays) -> Counterexample | None:
    """The counterexample with the row itself, out of the inputs that it numbers, so that anybody can ask it again."""
    if found is None:
        return None
    row = {name: _plain(array[found.row]) for name, array in inputs.items()}
    text = json.dumps(row, ensure_ascii=False)
    return found.model_copy(update={"inputs": text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."})


def _plain(value: Any) -> Any:
    """A row's value in JSON: a column's without its axis of size 1."""
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        texts = [text_of(item, errors="replace") for item in array.ravel()]
        array = np.array(texts, object).reshape(array.shape)
    return array.item() if array.size == 1 else array.tolist()


def worst_of(columns: Sequence[ColumnDifference | None]) -> ColumnDifference | None:
    """The column that comes closest to its tolerance, or exceeds it most."""

    def excess(column: ColumnDifference) -> float:
        return column.difference / column.tolerance if column.tolerance else np.inf

    return max((column for column in columns if column), key=excess, default=None)


def counted(origins: Sequence[str]) -> tuple[RowsAsked, ...]:
    """How many rows there are of each origin, in the order of the first ones."""
    return tuple(RowsAsked(origin=each, rows=list(origins).count(each)) for each in dict.fromkeys(origins))


def _told(found: Sequence[ComparedPart], row: int, origins: Sequence[str], setting: str) -> Counterexample:
    part = next(part for part in found if part.wrong[row])
    return Counterexample(row=row, origin=origins[row], setting=setting, **part.tell(row))
