"""The original's answers to rows far from all that are known, with how far from each a right answer may be."""

import time
from collections.abc import Callable

import numpy as np

from shiplift.runtime.model.tensors import Arrays, concatenate
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.edges import edges
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.ordinary import with_usual_far
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.rounding import rounding
from shiplift.runtime.proof.settings import Ask, count_of, joined, rows_of

_SECONDS = 1.0  # for the rows, for those beside their edges, and for their rounding


def far_answers(
    ask: Ask, precisely: Ask | None, far: Questions, known: tuple[Arrays, Answers]
) -> tuple[Questions, Answers] | None:
    """The rows that the original answers, each alone, and those beside its edges: as many as it does in time.

    `precisely` answers in FP64; None: nobody does, or rows of a batch mix. `known` are other rows with their answers.
    Returns None if it answers no row.
    """
    right = _timed(ask)(far.inputs)
    parts = [rows_of(far.inputs, range(len(right.errors)))]
    in_time = _timed(ask)
    beside = edges(in_time, parts[0], right, known[0])
    if beside.origins:
        more = in_time(beside.inputs)
        parts.append(rows_of(beside.inputs, range(len(more.errors))))
        right = joined([right, more])
    at = np.flatnonzero(right.answered)
    if not len(at):
        return None
    inputs, right = rows_of(concatenate(parts), at), right.take(at)
    rounded: Arrays = {}
    if precisely:
        rounded = rounding(_timed(ask, batches=True), _timed(precisely, batches=True), inputs, right)
        told = range(min((len(each) for each in rounded.values()), default=len(at)))
        inputs, right = rows_of(inputs, told), right.take(told)  # the others might seem wrong, and limit the form
    asked = Questions(inputs=inputs, origins=far.origins[:1] * count_of(inputs))
    return asked, with_usual_far(right, known[1], rounded)


def _timed(ask: Ask, *, batches: bool = False) -> Callable[[Arrays], Answers]:
    """Asks each row alone, or in batches, until the time for all calls is up; at least the first one of each."""
    end = time.monotonic() + _SECONDS

    def timed(inputs: Arrays) -> Answers:
        return answers_to(ask, inputs, batches=batches, seconds=max(0.0, end - time.monotonic()))

    return timed
