"""The proof of a Python model: its own library, asked as production asks, answers what it answers to each row alone.

This runs in another sandbox than the model, whose code could have written anything into its answers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.admission.kept_rows import kept_rows
from shiplift.runtime.admission.known_rows import GIVEN
from shiplift.runtime.admission.python_answers import (
    AGAIN,
    EXAMPLE,
    NEIGHBOURS,
    NO_ANSWER,
    TODAY,
    UNSERVABLE,
    unanswered,
)
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.onnx_models import differences
from shiplift.runtime.model.python.asking import slowly
from shiplift.runtime.model.tensors import Arrays, datatype, dump_npz, load_npz, under
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare, counted, with_row, worst_of
from shiplift.runtime.proof.file import from_file
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.proof import ColumnDifference, Counterexample, Proof, SettingAsked
from shiplift.runtime.records.tensor import Signature, TensorSpec

REFERENCE, KEPT = "reference.npz", "asked.npz"
SINGLE_NOTE = (
    "Warning: the model gets one sample at a time, without batching: its answers to a batch differ from those to each "
    "of its samples ({})."
)
_UNSERVED = "Warning: the model answers made rows in a way that can't be served, so clients get an error: {}."
_ONE_ROW = "no two rows have an answer"
_ONE_TYPE = (
    "Make `predict` answer every row with a number, a boolean, a text, or lists and mappings of these: of one type in "
    "all rows, None where it is missing. Log it with `signature=infer_signature(x, y)`, where `y` is what "
    "`predict` answers to `x`."
)
_ENDED = NO_ANSWER[1:]  # where the process has to be started again


def prove(
    *,
    answers: str,
    sets: list[str],
    outputs: list[str],
    places: int,
    left_out: list[str],
    inputs: list[dict[str, Any]],
    out: str,
    seconds_each: float = 0.0,
) -> dict[str, Any]:
    """Judges the answers that `python_answers.answer` recorded, with what it returned.

    Returns the signature, the proof, the cases and notes, and writes `out/reference.npz`: requests as `input/NAME` and
    their answers as `output/NAME`; and `out/asked.npz`: rows of all sets, for the packaged server. A sandbox entry.

    Raises:
        ExportFailed: the example has no answer, an answer can't be served, or the model is not repeatable.
        DataInvalid: the answers can't be read.
    """
    progress("comparing the model's answers")
    recorded = load_npz(Path(answers))
    judged = {name: from_file(recorded, name) for name in sets}
    _require_answer(judged[EXAMPLE][1])
    unserved = [each for name in sets for each in _unservable(*judged[name])]
    seen = _Compared(recorded, judged)
    seen.repeated()
    mixes = seen.mixes(places)
    rows, right = _reference(*judged[EXAMPLE])
    reference = {f"input/{name}": array for name, array in rows.items()}
    (Path(out) / REFERENCE).write_bytes(dump_npz(reference | {f"output/{n}": array for n, array in right.items()}))
    (Path(out) / KEPT).write_bytes(dump_npz(kept_rows([_askable(*judged[name]) for name in sets], guards=())))
    proof = Proof(
        asked=counted([origin.partition(":")[0] for questions, _ in judged.values() for origin in questions.origins]),
        settings=tuple(SettingAsked(name=name, rows=count) for name, count in seen.settings.items()),
        worst=worst_of(seen.worst),
        batches=not mixes,
        left_out=tuple(left_out),
    )
    return {
        "signature": _signature(
            inputs, {name: right[name] for name in outputs}, recorded, 1 if mixes else -1
        ).model_dump(mode="json"),
        "proof": proof.model_dump(mode="json"),
        "parity": [case.model_dump(mode="json") for case in seen.cases],
        "notes": [
            *([SINGLE_NOTE.format(mixes)] if mixes else []),
            *([_UNSERVED.format(unserved[0])] if unserved else []),
            *_slow(seconds_each, left_out),
        ],
    }


class _Compared:
    """How the answers in other settings differ from those to each row alone."""

    def __init__(self, recorded: Arrays, judged: dict[str, tuple[Questions, Answers]]) -> None:
        self.recorded, self.judged = recorded, judged
        self.settings = {"alone": sum(len(right.errors) for _, right in judged.values())}
        self.worst: list[ColumnDifference | None] = []
        self.cases: list[ParityCase] = []

    def repeated(self) -> None:
        """Compares what was asked again, later and in a second process.

        Raises:
            ExportFailed: it differs.
        """
        _, later = from_file(self.recorded, AGAIN)
        questions, right = self.judged[EXAMPLE]
        found = compare(right.take([0]), later, questions.origins[:1], setting="asked again, after other rows")
        _require_repeatable(with_row(found.first, questions.inputs))
        for name, (questions, right) in self.judged.items():
            at = self.recorded[f"{AGAIN}/{name}/rows"].tolist()
            expected, (_, actual) = right.take(at), from_file(self.recorded, f"{AGAIN}/{name}")
            origins = [questions.origins[row] for row in at]
            found = compare(expected, actual, origins, setting="asked of a second process")
            differs = with_row(_numbered(found.first, at), questions.inputs)
            if differs and self._same_today(name, expected, origins):
                raise _depends_on_time(differs)
            _require_repeatable(differs)
            self._saw("in a second process", found.worst, len(at))
            if name == EXAMPLE:
                self._case("example, in two processes", expected, actual)

    def _same_today(self, name: str, expected: Answers, origins: Sequence[str]) -> bool:
        """Whether the rows of a set are answered as ever in another process, as long as it is today there."""
        if f"{TODAY}/{name}/errors" not in self.recorded:
            return False
        _, today = from_file(self.recorded, f"{TODAY}/{name}")
        return len(today.errors) == len(expected.errors) and compare(expected, today, origins).same

    def mixes(self, places: int) -> str:
        """How a row's answer depends on its neighbours; empty if it does not."""
        found = next(filter(None, (self._in_place(place) for place in range(places))), None) or self._in_batches()
        if found is not None:
            return str(found)
        if not places:
            return _ONE_ROW
        return ""

    def _in_place(self, place: int) -> Counterexample | None:
        questions, right = from_file(self.recorded, NEIGHBOURS)
        at = np.roll(np.arange(len(right.errors)), place)
        _, actual = from_file(self.recorded, f"place-{place}")
        origins = [questions.origins[row] for row in at]
        found = compare(right.take(at), actual, origins, setting=f"in a batch of {len(at)}")
        self._repeated_in(f"place-{place}", actual, questions, at.tolist())
        if found.first is None:
            self._saw("at every place of a batch", found.worst, len(at))
        return with_row(_numbered(found.first, at.tolist()), questions.inputs)

    def _in_batches(self) -> Counterexample | None:
        for name, (questions, right) in self.judged.items():
            if f"batch/{name}/errors" not in self.recorded:
                continue
            _, actual = from_file(self.recorded, f"batch/{name}")
            at = np.flatnonzero(right.answered)[: len(actual.errors)].tolist()
            expected = right.take(at)
            found = compare(expected, actual, [questions.origins[row] for row in at], setting="in a batch")
            self._repeated_in(f"batch/{name}", actual, questions, at)
            if found.first:
                return with_row(_numbered(found.first, at), questions.inputs)
            self._saw("in batches", found.worst, len(at))
            if name == EXAMPLE:
                self._case("samples alone and in a batch", expected, actual)
        return None

    def _repeated_in(self, name: str, actual: Answers, questions: Questions, at: list[int]) -> None:
        """Compares a batch with the same batch later, if it was asked again.

        Raises:
            ExportFailed: it differs.
        """
        if f"repeat/{name}/errors" in self.recorded:
            _, later = from_file(self.recorded, f"repeat/{name}")
            few = range(min(len(actual.errors), len(later.errors)))
            origins = [questions.origins[row] for row in at]
            found = compare(actual.take(few), later.take(few), origins, setting="asked again, in the same batch")
            _require_repeatable(with_row(_numbered(found.first, at), questions.inputs))

    def _saw(self, setting: str, worst: ColumnDifference | None, rows: int) -> None:
        self.settings[setting] = self.settings.get(setting, 0) + rows
        self.worst.append(worst)

    def _case(self, name: str, expected: Answers, actual: Answers) -> None:
        both = np.flatnonzero(expected.answered & actual.answered)
        if len(both):
            self.cases.append(_case(name, expected.take(both).outputs, actual.take(both).outputs))


def _slow(seconds: float, left_out: list[str]) -> list[str]:
    """Why the release takes long, if the author's own code is why, and what was asked less because of it."""
    if not (said := slowly(seconds)):
        return []
    less = [
        what for what, _, why in (reason.partition(": ") for reason in left_out) if why.startswith("each takes about")
    ]
    fewer = f" Because of it, {'; '.join(less)}." if less else ""
    return [f"The release takes long{said}.{fewer} Each stage that asks the model waits as long for every row."]


def _numbered(found: Counterexample | None, rows: list[int]) -> Counterexample | None:
    """The counterexample with its row's number in its set."""
    return found and found.model_copy(update={"row": rows[found.row]})


def _require_answer(right: Answers) -> None:
    if right.errors[0] and not unanswered(right.errors[0]):
        raise _no_tensor("the first row of the example", right.errors[0])
    if right.errors[0]:
        raise ExportFailed(
            f"the Python model does not answer the first row of its example: {right.errors[0]}",
            do="Load it in a fresh environment with its requirements, and call "
            "`mlflow.pyfunc.load_model(...).predict(example)` with that row alone.",
        )


def _unservable(questions: Questions, right: Answers) -> list[str]:
    """The made rows whose answers can't be served, each with the reason.

    Raises:
        ExportFailed: a row is the author's.
    """
    told = []
    for row, (origin, error) in enumerate(zip(questions.origins, right.errors, strict=True)):
        if not error or unanswered(error):
            continue
        if origin in GIVEN:
            raise _no_tensor(f"row {row} of the {origin} rows", error)
        told.append(f"row {row} of the {origin} rows: {_said(error)}")
    return told


def _no_tensor(row: str, error: str) -> ExportFailed:
    return ExportFailed(f"the model's answer can't be served: {row}: {_said(error)}", do=_ONE_TYPE)


def _said(error: str) -> str:
    return error.removeprefix(UNSERVABLE + ": ")


def _require_repeatable(found: Counterexample | None) -> None:
    if found:
        raise ExportFailed(
            f"the model is not repeatable: {found}",
            do="Ask `mlflow.pyfunc.load_model(...).predict` that row twice, in two processes. Seed what it "
            "samples, keep no state between calls, and take the time as an input: production is checked against these "
            "answers. "
            "`hash()` of a text and the order of a set differ from process to process.",
        )


def _depends_on_time(found: Counterexample) -> ExportFailed:
    then = found.model_copy(update={"setting": "asked of a second process, whose clock was set ahead"})
    return ExportFailed(
        f"the model's answers depend on when it is asked: {then}",
        do="Give the model the date or the time as an input, instead of `now()` or `today()` in its code: what it "
        "answers tomorrow can't be proved today.",
    )


def _reference(questions: Questions, right: Answers) -> tuple[Arrays, Arrays]:
    """The example's rows that have an answer, and the answers."""
    own = np.array([origin == "example" for origin in questions.origins], dtype=np.bool_)
    at = np.flatnonzero(own & right.answered)
    return {name: array[at] for name, array in questions.inputs.items()}, right.take(at).outputs


def _askable(questions: Questions, right: Answers) -> tuple[Questions, Answers]:
    """All but the rows that ended the process or took too long: production pauses a model for these."""
    at = [row for row, error in enumerate(right.errors) if not error.startswith(_ENDED)]
    return questions.take(at), right.take(at)


def _signature(inputs: list[dict[str, Any]], outputs: Arrays, recorded: Arrays, size: int) -> Signature:
    """The inputs and outputs, with -1 for the sizes in which answers differ."""
    asked = [TensorSpec.model_validate(spec) for spec in inputs]
    shapes = under("shapes/", recorded)
    return Signature(
        inputs=tuple(spec.model_copy(update={"shape": (size, *spec.shape[1:])}) for spec in asked),
        outputs=tuple(_spec(name, array, shapes[name], size) for name, array in outputs.items()),
    )


def _spec(name: str, array: Any, shapes: Any, size: int) -> TensorSpec:
    kind = datatype(array.dtype)
    if kind is None:
        raise ExportFailed(
            f"the output {name!r} has the type {array.dtype}, which Triton can't carry",
            do="Answer numbers, booleans or texts.",
        )
    sizes = (sorted(set(axis.tolist())) for axis in shapes.T)
    return TensorSpec(name=name, datatype=kind, shape=(size, *(each[0] if len(each) == 1 else -1 for each in sizes)))


def _case(name: str, left: Arrays, right: Arrays) -> ParityCase:
    found = {key: differences(array, right[key]) for key, array in left.items() if key in right}
    return ParityCase(
        inputs=name,
        batch=len(next(iter(left.values()))),
        max_abs=max(absolute for absolute, _ in found.values()),
        max_rel=max(relative for _, relative in found.values()),
    )
