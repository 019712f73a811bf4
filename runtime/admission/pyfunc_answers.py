"""Whether the loaded model answers what `mlflow.pyfunc` answers, which alone is what its author's clients know.

A flavor's own loader knows more: all outputs of a classifier, several of a network. So it is what the graph is compared
with, and a few rows show that what `predict` of pyfunc gives is among its outputs.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.admission.known_rows import GIVEN
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.guest.python.outputs import Unservable
from shiplift.runtime.guest.python.pyfunc import Model
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask, alone, count_of, joined
from shiplift.runtime.records.tensor import TensorSpec

_ROWS = 24  # of a set
_SECONDS = 1.5
_UNSERVABLE = f"{Unservable.__name__}: "
_LARGEST_BYTES = 1 << 30  # a second copy of a larger model may not fit in the sandbox


@dataclass(frozen=True, kw_only=True)
class PyfuncOutput:
    """The output that pyfunc answers, empty if it answers several or was not asked; `left_out` says why it was not.

    `form` is the form of its answer in the original's outputs, as `records.scoring.AnswerForm` in JSON.
    """

    answered: str = ""
    form: dict[str, Any] | None = None
    left_out: tuple[str, ...] = ()


def judge(
    folder: Path, original: Original, specs: tuple[TensorSpec, ...], asked: Mapping[str, Questions]
) -> PyfuncOutput:
    """Asks pyfunc some rows of each set, each by itself, and the original, too.

    Raises:
        ExportFailed: pyfunc answers something that is not among the original's outputs.
    """
    progress("asking the original as mlflow.pyfunc")
    if sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > _LARGEST_BYTES:
        return _not_asked("the model is large")
    try:
        model = Model({"model": str(folder), "outputs": []})
    except Exception as error:
        return _not_asked(_reason(error))
    names = as_logged(model.names, specs)

    def ask(inputs: Arrays) -> Arrays:
        answers: Arrays = model.answer({name: inputs[own] for name, own in names.items()})
        return answers

    answers = list(_answers(ask, original, asked))
    _require_servable(answers)
    compared = [each for each in answers if each.both or (each.right.answered.all() and each.origin in GIVEN)]
    if not compared:
        errors = (error for each in answers for error in (*each.right.errors, *each.given.errors) if error)
        return _not_asked(next(errors))
    right, given = joined([each.right for each in compared]), joined([each.given for each in compared])
    return _matched(right, given, [each.origin for each in compared], model.form)


def as_logged(names: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, str]:
    """An input's own name by that in the signature: the same, in any order, or else the one at its place."""
    own = [spec.name for spec in specs]
    if not names or set(names) == set(own):
        return {name: name for name in names or own}
    return dict(zip(names, own, strict=True))


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A row's origin, and what pyfunc and the original answer to it. Pyfunc checks a schema, too."""

    origin: str
    right: Answers
    given: Answers

    @property
    def both(self) -> bool:
        return bool(self.right.answered.all() and self.given.answered.all())


def _require_servable(answers: Sequence[_Row]) -> None:
    """Checks that pyfunc's answers to the author's rows are none that only another output can stand in for.

    Raises:
        ExportFailed: one can't be served, and the loaded model answers something else instead.
    """
    own = [each for each in answers if each.origin in GIVEN and each.given.answered.all()]
    if error := next((error for each in own for error in each.right.errors if error.startswith(_UNSERVABLE)), ""):
        raise ExportFailed(
            f"no graph answers what mlflow.pyfunc does: {error.removeprefix(_UNSERVABLE)}",
            do="Let the model's own library serve it (`export: {fallback: auto}`), or let pyfunc answer one array "
            "with a row per sample: log the model with another `pyfunc_predict_fn`, such as `predict`.",
        )


def _answers(ask: Ask, original: Original, asked: Mapping[str, Questions]) -> Iterator[_Row]:
    """Some rows, until the time is up; at least one."""
    end = time.monotonic() + _SECONDS
    for number, rows in enumerate(_few(asked)):
        if number and time.monotonic() >= end:
            return
        yield _Row(origin=rows.origins[0], right=alone(ask, rows.inputs), given=alone(original.answer, rows.inputs))


def _few(asked: Mapping[str, Questions]) -> Iterator[Questions]:
    """Single rows: the first one of each set, and then others from all over it."""
    for rows in asked.values():
        yield rows.take([0])
    for rows in asked.values():
        for at in np.unique(np.linspace(0, count_of(rows.inputs) - 1, _ROWS).astype(int))[1:].tolist():
            yield rows.take([at])


def _matched(right: Answers, given: Answers, origins: Sequence[str], form: dict[str, Any]) -> PyfuncOutput:
    """Which of the original's outputs pyfunc answers."""
    several = len(right.outputs) > 1
    pairs = [("", _paired(right, given))] if several else [(name, _of(right, given, name)) for name in given.outputs]
    found = [(name, compare(*pair, origins).first) for name, pair in pairs]
    same = [name for name, difference in found if difference is None]
    if same:
        tensors = _tensors(right, given) if several else dict.fromkeys(right.outputs, (same[0], -1))
        return PyfuncOutput(answered=same[0], form=_form(form, tensors))
    first = found[0][1] if found else None
    how = str(first) if first else f"it has no outputs ({given.errors[0]})"
    raise ExportFailed(
        f"the loaded model does not answer what mlflow.pyfunc answers: {how}".replace("the served form", "the model"),
        do="Let the model's own library serve it (`export: {fallback: auto}`).",
    )


def _of(right: Answers, given: Answers, name: str) -> tuple[Answers, Answers]:
    """Pyfunc's only output and one of the original's, under one name."""
    (answer,) = right.outputs.values()
    return replace(right, outputs={name: answer}), replace(given, outputs={name: given.outputs[name]})


def _paired(right: Answers, given: Answers) -> tuple[Answers, Answers]:
    """Pyfunc's outputs and the original's of the same names, or else places; columns may be those of one matrix."""
    if len(given.outputs) == 1:
        ((name, matrix),) = given.outputs.items()
        columns = np.stack([array.reshape(len(array), -1) for array in right.outputs.values()], axis=-1)
        return replace(right, outputs={name: columns.reshape(len(matrix), -1)}), given
    if set(right.outputs) <= set(given.outputs):
        return right, replace(given, outputs={name: given.outputs[name] for name in right.outputs})
    if len(right.outputs) == len(given.outputs):
        return right, replace(given, outputs=dict(zip(right.outputs, given.outputs.values(), strict=True)))
    return right, given


def _tensors(right: Answers, given: Answers) -> dict[str, tuple[str, int]]:
    """Where pyfunc's outputs are, paired as above: by name, the original's output, and its only column, or -1."""
    names = list(right.outputs)
    if len(given.outputs) == 1:
        return {name: (next(iter(given.outputs)), column) for column, name in enumerate(names)}
    others = names if set(names) <= set(given.outputs) else list(given.outputs)
    return {name: (other, -1) for name, other in zip(names, others, strict=True)}


def _form(form: dict[str, Any], tensors: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    parts = [part | dict(zip(("tensor", "column"), tensors[part["tensor"]], strict=True)) for part in form["parts"]]
    return {"kind": form["kind"], "parts": parts}


def _not_asked(why: str) -> PyfuncOutput:
    return PyfuncOutput(left_out=(f"What mlflow.pyfunc answers was not asked: {why}.",))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
