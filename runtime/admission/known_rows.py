"""The rows that a model's author gave, and the questions that are made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.model.datasets import load_samples
from shiplift.runtime.model.tensors import Arrays, DataLimits
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Asked, Budget, KnownRows
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

GIVEN = ("example", "validation", "recorded")  # origins of rows that somebody asked, or will
_SEED = 20240229
_FEW, _ROWS, _SECONDS = 64, 2000, 2.0
_BYTES = 16 << 20  # of all questions: fewer images than rows of a table


def asked_of(
    facts: ModelFacts, example: Arrays, validation: Arrays, seconds_per_row: float, *, coarse: bool = False
) -> Asked:
    """The questions for a model of which these `facts` are known, fewer of one that is slow.

    `coarse`: clients send FP32 where the signature says FP64, so all values are such that FP32 holds them.
    """
    each = max(1, sum(array[:1].nbytes for array in example.values()))
    rows = max(_FEW, min(_ROWS, _BYTES // each))
    budget = Budget(rows=rows, seconds=_SECONDS, seconds_per_row=seconds_per_row)
    known = KnownRows(example=example, validation=validation)
    asked = questions(facts, known, budget, _SEED, coarse=coarse)
    if not coarse:
        return asked
    return replace(asked, questions=tuple(replace(part, inputs=as_float32(part.inputs)) for part in asked.questions))


def as_float32(inputs: Arrays) -> Arrays:
    """Rows with FP64 as FP32 holds it, still as FP64; what is too large for FP32 is infinite."""
    with np.errstate(over="ignore"):
        return {
            name: array.astype(np.float32).astype(np.float64) if array.dtype == np.float64 else array
            for name, array in inputs.items()
        }


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
