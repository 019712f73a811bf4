"""What is asked of a model: known rows, and rows that are made from what is known of its inputs."""

from collections.abc import Iterator, Sequence

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.questions import groups, sharing
from shiplift.runtime.proof.questions import known as rows_known
from shiplift.runtime.proof.questions.boxes import of_boxes
from shiplift.runtime.proof.questions.column import Column
from shiplift.runtime.proof.questions.far import far
from shiplift.runtime.proof.questions.groups import Known, QuestionGroup
from shiplift.runtime.proof.questions.kinds import kind_of
from shiplift.runtime.proof.questions.lengths import of_lengths
from shiplift.runtime.proof.questions.numbers import takes_missing
from shiplift.runtime.proof.questions.question import Budget, KnownRows, Questions, QuestionSet
from shiplift.runtime.records.facts import ModelFacts

_BYTES = 64 << 20  # of all questions
_LOOKED_AT, _FAR_FROM = 64, 4  # known rows, and those of which rows far away are made


def questions(facts: ModelFacts, known: KnownRows, budget: Budget, seed: int, *, coarse: bool = False) -> QuestionSet:
    """Rows to ask, sized by the budget; the same for the same arguments.

    `known.example` has at least one row. Rows of one shape are together, with the example's first. `coarse`: values
    beside a threshold are its neighbours in FP32, also in columns of FP64.
    """
    rng = np.random.default_rng(seed)
    bases = rows_known.bases(known, facts.inputs, rng)
    columns = [_told(column, rng) for column in rows_known.columns(facts, bases, coarse=coarse)]
    wanted = [group for group in _groups(facts, known, columns, bases, rng) if group.available]
    rows, why = _affordable(budget, bases)
    counts = sharing.shares([group.available for group in wanted], [group.weight for group in wanted], rows)
    made = [part for group, count in zip(wanted, counts, strict=True) if count for part in group.make(count)]
    left = [*_unasked(wanted, counts, why), *_unsent([each.column for each in columns]), *facts.notes]
    return QuestionSet(questions=tuple(_joined(made)), left_out=tuple(left), far=far(facts, _finite(bases)))


def _finite(bases: Arrays) -> Arrays:
    """The first known rows without NaN and infinities."""
    first = {name: array[:_LOOKED_AT] for name, array in bases.items()}
    floats = [np.isfinite(each).reshape(len(each), -1).all(axis=1) for each in first.values() if each.dtype.kind == "f"]
    at = np.flatnonzero(np.logical_and.reduce(floats)) if floats else np.arange(rows_known.count(first))
    return {name: array[at[:_FAR_FROM]] for name, array in first.items()}


def _told(column: Column, rng: np.random.Generator) -> Known:
    kind = kind_of(column)
    return Known(column=column, kind=kind, special=kind.candidates(column, rng))


def _groups(
    facts: ModelFacts, known: KnownRows, columns: Sequence[Known], bases: Arrays, rng: np.random.Generator
) -> list[QuestionGroup]:
    """The groups, in the order in which they get rows when there are too few for all."""
    sources = {"example": known.example, "validation": known.validation, "recorded": known.recorded}
    return [
        *(groups.of_source(origin, rows, facts.inputs, rng) for origin, rows in sources.items()),
        groups.of_range(columns, bases, rng),
        *groups.of_special_values(columns, bases, rng),
        of_boxes(facts, columns, bases, rng),
        groups.of_ties(columns, bases, rng),
        groups.of_several(columns, bases, rng),
        of_lengths(facts.inputs, bases, rng),
    ]


def _joined(parts: Sequence[Questions]) -> Iterator[Questions]:
    """The parts, with those of one shape as one."""
    shapes: dict[tuple[tuple[str, tuple[int, ...]], ...], list[Questions]] = {}
    for part in parts:
        shape = tuple((name, array.shape[1:]) for name, array in part.inputs.items())
        shapes.setdefault(shape, []).append(part)
    for alike in shapes.values():
        inputs = {name: np.concatenate([part.inputs[name] for part in alike]) for name in alike[0].inputs}
        yield Questions(inputs=inputs, origins=tuple(origin for part in alike for origin in part.origins))


def _affordable(budget: Budget, bases: Arrays) -> tuple[int, str]:
    """How many rows may be asked, and why no more."""
    size = rows_known.row_bytes(bases)
    fitting = max(1, _BYTES // size)
    if fitting < budget.affordable:
        return fitting, f"{fitting} rows of {size} bytes are as much as is held at a time"
    if budget.affordable < budget.rows:
        slow = f"each takes about {budget.seconds_per_row:g} s"
        return budget.affordable, f"{slow}, and there are {budget.seconds:g} s for all"
    return budget.affordable, f"at most {budget.rows} rows are asked"


def _unasked(wanted: Sequence[QuestionGroup], counts: Sequence[int], why: str) -> Iterator[str]:
    for group, count in zip(wanted, counts, strict=True):
        if count < group.available:
            yield f"{group.available - count} of {group.available} {group.label} were not asked: {why}."


def _unsent(columns: Sequence[Column]) -> Iterator[str]:
    """What is asked of no column, because the model refuses it, or nobody knows whether it does."""
    floats = [column for column in columns if column.dtype.kind == "f"]
    missing = {column.name: column.facts.missing for column in floats if not takes_missing(column)}
    infinite = {column.name: column.facts.infinite for column in floats if not column.facts.infinite}
    for what, told in (("Missing values", missing), ("Infinities", infinite)):
        if refused := [name for name, taken in told.items() if taken is False]:
            yield f"{what} were not asked in {_named(refused)}: the model does not take them."
        if unknown := [name for name, taken in told.items() if taken is None]:
            yield f"{what} were not asked in {_named(unknown)}: whether the model takes them is unknown."


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more columns" if len(names) > 3 else "")
