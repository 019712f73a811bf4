"""What the original answers, each row as if it were asked alone: the answers that the exported graph has to give."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shiplift.runtime.base import advice
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.conversion import batching, postprocess
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.samples import BATCHES
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import with_row
from shiplift.runtime.proof.far_answers import far_answers
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.guards.probing import Refusals, refusals
from shiplift.runtime.proof.jumps import jumps
from shiplift.runtime.proof.oracle import answers_to, examine
from shiplift.runtime.proof.ordinary import with_usual
from shiplift.runtime.proof.questions.question import Questions, QuestionSet
from shiplift.runtime.proof.settings import Ask, count_of, rows_of, together
from shiplift.runtime.records.proof import Counterexample
from shiplift.runtime.spec.model import Conversion

ANSWERS = "answers.npz"
TAKEN, FAR = "taken", "far"  # sets of their own in that file
LARGEST = f"random-{max(BATCHES)}"  # the set with the most rows that differ
_EXAMINE_S, _ASK_S, _JUMPS_S, _REFUSALS_S = 2.0, 3.0, 2.0, 1.0
_LONG_S, _LARGE_BATCH = 0.25, 64
_IN_TRAINING = "It was logged in training mode ({}): call `model.eval()` before you log it."
_NOT_REPEATABLE = (
    "Call `model.eval()` before you log it, so that dropout is off; give what it samples with a fixed seed; keep no "
    "state between calls."
)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The answers to each set of rows, and how a row's answer changes with its neighbours (None: it does not).

    `made` are the questions among the sets, and `left_out` says what was not asked. `taken` are arrays of the set
    `TAKEN` in the file of answers, or none: rows that the original answers, whatever it answers, so that no guard may
    refuse them because it does. `far` are rows far from all others, with its answers: the set `FAR`; None: there are
    none.
    """

    answers: dict[str, Answers]
    mixes: Counterexample | None
    made: dict[str, Questions]
    left_out: tuple[str, ...]
    taken: Arrays
    far: tuple[Questions, Answers] | None = None

    def rows(self, sets: Mapping[str, Arrays]) -> dict[str, Questions]:
        """Each set's rows."""
        return {name: _questions(name, sets, self.made) for name in self.answers}

    def beginning_with(self, output: str) -> "Recorded":
        """The same with this output before the others, which is the one that is scored; empty: as they are."""
        answers = {
            name: replace(each, outputs=dict(sorted(each.outputs.items(), key=lambda pair: pair[0] != output)))
            for name, each in self.answers.items()
        }
        return replace(self, answers=answers) if output else self

    def batches(self, sets: Mapping[str, Arrays]) -> tuple[dict[str, Arrays], dict[str, Arrays]]:
        """Inputs and right answers by set: in the batches that were asked, or one row where rows would mix."""
        right = {name: self.answers[name] for name in sets if self.answers[name].answered.all()}
        if not self.mixes:
            return {name: sets[name] for name in right}, {name: each.outputs for name, each in right.items()}
        alone = {name: rows_of(sets[name], [0]) for name in right}
        return alone, {name: each.take([0]).outputs for name, each in right.items()}


def record(
    original: Original, sets: Mapping[str, Arrays], conversion: Conversion, make: Callable[[float], QuestionSet]
) -> Recorded:
    """Asks the original all sets, after it was examined with rows of the largest random one, and then questions.

    `make` makes these, knowing how many seconds a row takes.

    Raises:
        ExportFailed: it does not answer its own example, is not repeatable, or mixes the rows of the only batch size
            that it takes.
    """
    progress("asking the original")

    def ask(inputs: Arrays) -> Arrays:
        return _outputs(original, inputs, conversion)

    _require_example(original, sets["example"], conversion)
    mixes = None if original.takes_text else _examined(original, ask, sets)
    answers = {name: answers_to(ask, inputs, batches=mixes is None) for name, inputs in sets.items()}
    asked = make(_seconds_per_row(ask, sets[LARGEST], batches=mixes is None))
    made = {f"questions-{index}": questions for index, questions in enumerate(asked.questions)}
    for name, questions in made.items():
        answers[name] = answers_to(ask, questions.inputs, batches=mixes is None, seconds=_ASK_S)
    coarse = conversion.inputs == "float32"
    refused = _refusals(ask, made, answers, narrow=original.narrow, batches=mixes is None)
    if mixes is None and original.narrow and (beside := _jumps(ask, made, answers, coarse=coarse)).origins:
        made = {"jumps": beside} | made  # first, since they are the most telling if the time is up
        answers["jumps"] = answers_to(ask, beside.inputs, batches=True)
    if refused:
        made["refusals"], answers["refusals"] = refused.questions, refused.answers
    if noise := _noise(original, sets[LARGEST], answers[LARGEST], conversion):
        answers = {name: replace(each, noise=noise) for name, each in answers.items()}
    far = None
    if not original.narrow and asked.far.origins:
        precisely = _precisely(original, conversion) if mixes is None and noise else None
        far = far_answers(ask, precisely, asked.far, (sets[LARGEST], answers[LARGEST]))
    answers |= with_usual({name: (_questions(name, sets, made), each) for name, each in answers.items()})
    late = sum(len(each.origins) - len(answers[name].errors) for name, each in made.items())
    slow = (f"{late} rows: the original took too long",) if late else ()
    left_out = (*asked.left_out, *slow)
    return Recorded(answers=answers, mixes=mixes, made=made, left_out=left_out, taken=_taken(refused), far=far)


def _jumps(ask: Ask, made: Mapping[str, Questions], answers: Mapping[str, Answers], *, coarse: bool) -> Questions:
    """Rows on both sides of jumps between the rows of the first questions, if there are any.

    Only models of tables are asked, which compute in FP64 what FP32 can tell apart. A network in FP32 has noise of its
    own, which moves its jumps.
    """
    name = next(iter(made), "")
    if not name:
        return Questions(inputs={}, origins=())
    right = answers[name]
    rows = rows_of(made[name].inputs, range(len(right.errors)))
    return jumps(ask, rows, right, coarse=coarse, seconds=_JUMPS_S)


def _refusals(
    ask: Ask, made: Mapping[str, Questions], answers: Mapping[str, Answers], *, narrow: bool, batches: bool
) -> Refusals | None:
    """Rows like the first questions that the original refuses for a single value; None: it refuses none."""
    name = next(iter(made), "")
    if not name:
        return None
    right = answers[name]
    rows = rows_of(made[name].inputs, range(len(right.errors)))
    return refusals(ask, rows, right, narrow=narrow, batches=batches, seconds=_REFUSALS_S)


def _taken(refused: Refusals | None) -> Arrays:
    """The rows that were answered beside the refused ones, without their answers."""
    if refused is None:
        return {}
    rows = refused.taken
    return in_file(
        {TAKEN: rows.inputs}, {TAKEN: Answers(outputs={}, errors=("",) * len(rows.origins))}, {TAKEN: rows.origins}
    )


def _seconds_per_row(ask: Ask, rows: Arrays, *, batches: bool) -> float:
    """What a row takes as questions are asked: in larger and larger batches, until one takes long.

    Some models take as long for one row as for many.
    """
    size, most = (count_of(rows), _LARGE_BATCH) if batches else (1, 1)
    while True:
        some = rows_of(rows, [at % count_of(rows) for at in range(size)])
        started = time.monotonic()
        together(ask, some)
        spent = time.monotonic() - started
        if spent > _LONG_S or size >= most:
            return spent / size
        size *= 2


def _questions(name: str, sets: Mapping[str, Arrays], made: Mapping[str, Questions]) -> Questions:
    """A set's rows; those that were not made are all from the set of that name."""
    inputs = sets.get(name)
    return made[name] if inputs is None else Questions(inputs=inputs, origins=(name,) * count_of(inputs))


def answered(original: Original, inputs: Arrays, conversion: Conversion) -> Arrays:
    """The original's outputs for a batch.

    Raises:
        ExportFailed: it does not answer.
    """
    try:
        return _outputs(original, inputs, conversion)
    except ExportFailed:
        raise
    except Exception as error:
        size, reason = count_of(inputs), " ".join(str(error).split())[:400]
        raise ExportFailed(
            f"the model does not answer a batch of {size}: {type(error).__name__}: {reason}",
            do=advice.LOG_ITS_EXAMPLE,
        ) from error


def _outputs(original: Original, inputs: Arrays, conversion: Conversion) -> Arrays:
    outputs = (
        original.answer(inputs)
        if original.batch == -1
        else batching.answer_in_batches(original.answer, inputs, original.batch)
    )
    return _finished(outputs, conversion)


def _finished(outputs: Arrays, conversion: Conversion) -> Arrays:
    """The outputs that the spec asks for, with its post-processing."""
    if missing := [name for name in conversion.outputs if name not in outputs]:
        raise ExportFailed(
            f"export.outputs names {', '.join(missing)}; the model has {', '.join(outputs)}",
            do="Name some of these in the spec, `export: {outputs: [NAME]}`, or leave `export.outputs` out.",
        )
    outputs = {name: outputs[name] for name in conversion.outputs or outputs}
    return postprocess.in_numpy(outputs, conversion.postprocess, conversion.top_k)


def _noise(original: Original, rows: Arrays, answers: Answers, conversion: Conversion) -> Arrays:
    """How far off the original is in each column of floats, by output: FP32 against FP64; none where unknown."""
    if not answers.answered.all() or not (precise := original.in_double(rows)):
        return {}
    precise = _finished(precise, conversion)
    floats = [name for name, array in answers.outputs.items() if array.dtype.kind == "f" and name in precise]
    off = {name: np.abs(precise[name] - answers.outputs[name]).reshape(count_of(rows), -1) for name in floats}
    return {name: array.max(axis=0) for name, array in off.items() if np.isfinite(array).all()}


def _precisely(original: Original, conversion: Conversion) -> Ask:
    def precisely(inputs: Arrays) -> Arrays:
        outputs = original.in_double(inputs)
        return _finished(outputs, conversion) if outputs else {}

    return precisely


def _require_example(original: Original, example: Arrays, conversion: Conversion) -> None:
    """Whether the first row is answered by itself, with a row in each output."""
    outputs = answered(original, rows_of(example, [0]), conversion)
    for name, array in outputs.items():
        if np.ndim(array) == 0 or len(array) != 1:
            raise ExportFailed(
                f"the output {name!r} has no batch axis: for one row its shape is {list(np.shape(array))}",
                do="Make the first dimension of every output the batch, as it is of the inputs; or log the graph with "
                "a first dimension of 1 on its inputs, to be asked one row at a time.",
            )


def _examined(original: Original, ask: Any, sets: Mapping[str, Arrays]) -> Counterexample | None:
    rows = sets[LARGEST]
    seen = examine(ask, rows, [LARGEST] * count_of(rows), seconds=_EXAMINE_S)
    if seen.unstable:
        raise ExportFailed(
            f"the model is not repeatable: {with_row(seen.unstable, rows)}",
            do=_IN_TRAINING.format(", ".join(original.training)) if original.training else _NOT_REPEATABLE,
        )
    if seen.mixes and original.batch > 1:
        raise ExportFailed(
            f"the model takes batches of {original.batch} alone, and mixes their rows: {with_row(seen.mixes, rows)}",
            do="Export it with a dynamic first dimension: `torch.onnx.export(model, x, 'model.onnx', "
            "dynamic_shapes=({0: 'batch'},))`; or with a batch of 1.",
        )
    return with_row(seen.mixes, rows)
