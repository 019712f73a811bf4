"""The kinds of columns, in the order in which they are tried."""

from collections.abc import Sequence

from shiplift.runtime.proof.questions.booleans import Booleans
from shiplift.runtime.proof.questions.categories import Categories
from shiplift.runtime.proof.questions.column import Column, ColumnKind
from shiplift.runtime.proof.questions.integers import Flags, Integers
from shiplift.runtime.proof.questions.numbers import Numbers
from shiplift.runtime.proof.questions.texts import Texts
from shiplift.runtime.proof.questions.whole import Masks, Whole

_OF_ELEMENTS: tuple[ColumnKind, ...] = (Booleans(), Categories(), Integers(), Numbers(), Texts())
KINDS: tuple[ColumnKind, ...] = (Flags(), Masks(), *_OF_ELEMENTS, *(Whole(kind) for kind in _OF_ELEMENTS))


def kind_of(column: Column, kinds: Sequence[ColumnKind] = KINDS) -> ColumnKind:
    """The first kind that recognises the column; one of them always does."""
    return next(kind for kind in kinds if kind.recognises(column))
