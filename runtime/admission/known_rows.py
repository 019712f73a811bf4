"""The rows that a model's author gave, and the questions that are made of them."""

from pathlib import Path
from typing import Any

from shiplift.runtime.model.datasets import load_samples
from shiplift.runtime.model.tensors import Arrays, DataLimits
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Asked, Budget, KnownRows
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

GIVEN = ("example", "validation", "recorded")  # origins of rows that somebody asked, or will
_SEED = 20240229
_COARSE = "Values on thresholds were not asked: the model compares in FP64, and clients send FP32."
_FEW, _ROWS, _SECONDS = 64, 2000, 2.0
_BYTES = 16 << 20  # of all questions: fewer images than rows of a table


def asked_of(facts: ModelFacts, example: Arrays, validation: Arrays, seconds_per_row: float, *, narrow: bool) -> Asked:
    """The questions for a model of which these `facts` are known, fewer of one that is slow.

    `narrow`: FP64 is served as FP32. Then no values are asked that are closer to a threshold than clients can say.
    """
    each = max(1, sum(array[:1].nbytes for array in example.values()))
    rows = max(_FEW, min(_ROWS, _BYTES // each))
    budget = Budget(rows=rows, seconds=_SECONDS, seconds_per_row=seconds_per_row)
    coarse = narrow and any(spec.datatype == "FP64" for spec in facts.inputs)
    known = KnownRows(example=example, validation=validation)
    return questions(_without_thresholds(facts) if coarse else facts, known, budget, _SEED)


def _without_thresholds(facts: ModelFacts) -> ModelFacts:
    if not any(column.thresholds for column in facts.columns):
        return facts
    columns = tuple(column.model_copy(update={"thresholds": ()}) for column in facts.columns)
    return facts.model_copy(update={"columns": columns, "boxes": (), "notes": (*facts.notes, _COARSE)})


def validation_rows(known: dict[str, Any] | None, inputs: tuple[TensorSpec, ...]) -> Arrays:
    """The inputs of the author's validation data; none if nothing is `known`.

    `known` has the `file` and its `name`, the `label`, more `columns` that are no inputs, and the limits `unpacked_mb`
    and `samples` of the site.

    Raises:
        DataInvalid: the file can't be read, or does not match the model's inputs.
    """
    if known is None:
        return {}
    limits = DataLimits(unpacked_bytes=known["unpacked_mb"] << 20, samples=known["samples"])
    body, columns = Path(known["file"]).read_bytes(), tuple(known["columns"])
    rows, _ = load_samples(body, known["name"], inputs, known["label"], columns, limits)
    return rows
