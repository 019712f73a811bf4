"""Asks an author's model and what is served the same fresh rows, and compares the answers by the proof's own rules."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.proof.case import Case, Logged
from benchmarks.zoo.cases.data import columns
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.settings import Ask, alone, joined, rows_of, together

_CHECKED = 32  # rows that the original is asked in batches and alone
_LARGEST = 16  # rows of a batch of served answers
_ROW = "row"
MORE = frozenset({"probabilities"})  # outputs that a graph has beside what pyfunc answers


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What fresh rows showed: how many were asked, and how many were answered wrongly in any way of asking.

    `unrefused` of them have an answer where the original raises. `first` tells of the first wrong one.
    """

    rows: int
    wrong: int
    unrefused: int
    first: str = ""


def taken(question: Any, at: NDArray[np.intp]) -> Any:
    """These rows of a question, in its own type."""
    if isinstance(question, Mapping):
        return {name: value[at] for name, value in question.items()}
    if hasattr(question, "iloc"):
        return question.iloc[at].reset_index(drop=True)
    return [question[row] for row in at] if isinstance(question, list) else question[at]


def size(question: Any) -> int:
    """How many rows a question has."""
    return len(next(iter(question.values()))) if isinstance(question, Mapping) else len(question)


def tensors(question: Any) -> Arrays:
    """A question as production takes it, by input name; a single array fits whatever the input is called."""
    if isinstance(question, Mapping):
        return {name: np.asarray(value) for name, value in question.items()}
    if hasattr(question, "columns"):
        return columns(question)
    if isinstance(question, list):
        if isinstance(question[0], Mapping):
            return {name: _texts([row[name] for row in question]) for name in question[0]}
        return {"input": _texts(question)}
    return {"input": question}


def _texts(values: list[str]) -> NDArray[Any]:
    return np.array(values, dtype=object).reshape(-1, 1)


def truth(case: Case, logged: Logged, model: Any, question: Any) -> Answers:
    """What the author's model answers to each row: alone if its rows mix, otherwise in batches, which is checked.

    Raises:
        ValueError: it answers rows differently in a batch, and the case does not say so.
    """

    def ask(inputs: Arrays) -> Arrays:
        asked = taken(question, inputs[_ROW])
        answers = logged.original(asked) if logged.original else logged.answer(model.predict(asked))
        return answers | (logged.more(model.get_raw_model(), asked) if logged.more else {})

    every: Arrays = {_ROW: np.arange(size(question))}
    if case.alone:
        return alone(ask, every)
    answers, few = answers_to(ask, every, batches=True), range(min(_CHECKED, size(question)))
    if not answers.answered.all():
        return alone(ask, every)
    if found := compare(answers.take(few), alone(ask, rows_of(every, few)), [case.name] * len(few)).first:
        raise ValueError(f"the original mixes rows, but the case doesn't say so: {found}")
    return answers


def judged(right: Answers, ask: Ask, inputs: Arrays, first: str, *, batches: bool, seed: int) -> Judged:
    """Asks what is served each row alone, and in mixed batches if it takes these; `first` is its first output."""
    right = renamed(right, first)
    ways: list[tuple[str, Answers]] = [("alone", alone(ask, inputs))]
    if batches:
        ways.append(("in mixed batches", mixed(ask, inputs, seed)))
    return compared(right, ways)


def compared(right: Answers, ways: list[tuple[str, Answers]]) -> Judged:
    """Counts the rows that are wrong in one of these ways of asking; a form need not serve what is `MORE`."""
    count = len(right.errors)
    served_names = {name for _, served in ways for name in served.outputs}
    unserved = {name for name in right.outputs if name in MORE and name not in served_names}
    right = replace(right, outputs={name: each for name, each in right.outputs.items() if name not in unserved})
    wrong, unrefused, first = np.zeros(count, np.bool_), np.zeros(count, np.bool_), ""
    for setting, served in ways:
        kept = Answers(
            outputs={name: array for name, array in served.outputs.items() if name in right.outputs},
            errors=served.errors,
        )
        found = compare(right, kept, [str(row) for row in range(count)], setting=setting)
        for each in found.wrong:
            wrong[int(each.origin)] = True
        unrefused |= ~right.answered & served.answered
        if found.first and not first:
            first = str(found.first)
    return Judged(rows=count, wrong=int((wrong & ~unrefused).sum()), unrefused=int(unrefused.sum()), first=first)


def renamed(right: Answers, first: str) -> Answers:
    """The answers with the unnamed output under the name of what is served first."""
    outputs = {name or first: array for name, array in right.outputs.items()}
    return Answers(outputs=outputs, errors=right.errors)


def mixed(ask: Ask, inputs: Arrays, seed: int) -> Answers:
    """The rows in another order, in batches of 1 to 16; a batch that raises is asked row by row."""
    rng, count = np.random.default_rng(seed), len(next(iter(inputs.values())))
    order, parts, at = rng.permutation(count), [], 0
    while at < count:
        rows = rows_of(inputs, order[at : at + int(rng.integers(1, _LARGEST + 1))])
        part = together(ask, rows)
        part = part if part.answered.all() else alone(ask, rows)
        parts += [part.take([row]) for row in range(len(part.errors))]
        at += len(part.errors)
    return joined(parts).take(np.argsort(order))
