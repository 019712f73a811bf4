"""Asks a package on a bench some rows of its questions again: alone, in one request, or from many clients."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.file import from_file, sets_in
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.requests import send
from shiplift.runtime.proof.served import JudgedForm, lost, padded, unsteady
from shiplift.runtime.proof.settings import Ask, alone, together
from shiplift.runtime.records.proof import Counterexample

_ROUNDS, _SECONDS = 16, 10.0  # of each client, and for all of them


@dataclass(frozen=True, kw_only=True)
class Again:
    """What a form answers to a row now: alone, and among others; None: there were none. `difference` is the first."""

    alone: Answers
    among: Answers | None
    difference: str


def found_rows(arrays: Arrays, rows: Sequence[int]) -> tuple[Questions, Answers]:
    """Rows of a file of questions with the original's answers. They are numbered from 0, through all of its sets.

    Raises:
        UsageError: there is no such row, or the rows are of several sets, which no request has together.
    """
    sets = [from_file(arrays, name) for name in sets_in(arrays)]
    starts = np.cumsum([0, *(len(questions.origins) for questions, _ in sets)])
    if unknown := [row for row in rows if not 0 <= row < starts[-1]]:
        raise UsageError(
            f"there is no row {unknown[0]}: the release asked {starts[-1]} rows, from 0 on", do="Choose one of these."
        )
    indices = np.searchsorted(starts, rows, side="right") - 1
    if len(set(indices.tolist())) > 1:
        first = int(starts[indices.max()])
        raise UsageError(
            f"rows below and from {first} are of different sets, which one request can't have",
            do="Ask them one at a time.",
        )
    questions, right = sets[int(indices[0])]
    own = [row - int(starts[indices[0]]) for row in rows]
    return questions.take(own), right.take(own)


def ask_form(
    ask: Ask, questions: Questions, right: Answers, form: JudgedForm, clients: int, most: int
) -> Iterator[Again]:
    """Asks rows: each alone, and then from several `clients` at once, or in one request of at most `most`."""
    own, count = alone(ask, questions.inputs), len(questions.origins)
    among: list[tuple[int, Answers]] = []
    if clients > 1:
        among = _crowd(ask, questions, right, clients)
    elif 1 < count <= most:
        together_ = together(ask, questions.inputs)
        among = [(row, together_.take([row])) for row in range(count)]
    for row in range(count):
        mine, first = own.take([row]), right.take([row])
        judge = _found if form.lossy is None else _lost
        found = judge(first, mine, questions.origins[row], "alone")
        others, judged = [answers for at, answers in among if at == row], mine if form.lossy is not None else first
        told = [(answers, _judged(judged, answers, questions.origins[row], form)) for answers in others]
        shown = next((each for each in told if each[1]), told[-1] if told else (None, None))
        yield Again(alone=mine, among=shown[0], difference=str(found or shown[1] or ""))


def _judged(right: Answers, answers: Answers, origin: str, form: JudgedForm) -> Counterexample | None:
    if form.lossy is None:
        return _found(right, answers, origin, "among others")
    return unsteady(right, padded(answers, right), [origin], form.lossy, "among others")


def _found(right: Answers, answers: Answers, origin: str, setting: str) -> Counterexample | None:
    return compare(right, padded(answers, right), [origin], setting=setting).first


def _lost(right: Answers, answers: Answers, origin: str, setting: str) -> Counterexample | None:
    return lost(right, padded(answers, right), [origin], setting)


def _crowd(ask: Ask, questions: Questions, right: Answers, clients: int) -> list[tuple[int, Answers]]:
    """The answers to many requests at once, by row."""
    count = len(questions.origins)
    requests = [(0, [at % count]) for at in range(clients * _ROUNDS)]
    seen = send(ask, [(questions, right)], requests, clients, time.monotonic() + _SECONDS, time.monotonic)
    return [(row, answers) for _, (row,), answers in seen.answered]
