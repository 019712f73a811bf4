"""The rows that a model's author gave, and the questions that are made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.datasets import load_samples
from shiplift.runtime.model.logged_requests import recorded
from shiplift.runtime.model.tensors import Arrays, DataLimits, as_input
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Budget, KnownRows, QuestionSet
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import Signature, TensorSpec

GIVEN = ("example", "validation", "recorded")  # origins of rows that somebody asked, or will
_SEED = 20240229
_FEW, _ROWS, _SECONDS = 64, 2000, 2.0
_BYTES = 16 << 20  # of all questions: fewer images than rows of a table


def asked_of(facts: ModelFacts, known: KnownRows, seconds_per_row: float, *, coarse: bool = False) -> QuestionSet:
    """The questions for a model of which these `facts` are known, fewer of one that is slow.

    `coarse`: clients send FP32 where the signature says FP64, so all values are such that FP32 holds them.
    """
    each = max(1, sum(array[:1].nbytes for array in known.example.values()))
    rows = max(_FEW, min(_ROWS, _BYTES // each))
    budget = Budget(rows=rows, seconds=_SECONDS, seconds_per_row=seconds_per_row)
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


def known_rows(known: dict[str, Any] | None, inputs: tuple[TensorSpec, ...], example: Arrays) -> KnownRows:
    """The example, the inputs of the author's validation data, and the requests that were recorded.

    If anything is `known`, it has the limits `unpacked_mb` and `samples` of the site. Of the validation data, it has
    the `file` (None: there are none) and its `name`, the `label`, and more `columns` that are no inputs; of recorded
    requests, the file as `recorded` (None: there are none) and its name as `recorded_name`.

    Raises:
        DataInvalid: the validation data can't be read, or do not match the model's inputs.
    """
    if known is None:
        return KnownRows(example=example)
    limits = DataLimits(unpacked_bytes=known["unpacked_mb"] << 20, samples=known["samples"])
    return KnownRows(
        example=example,
        validation=_validation(known, inputs, limits) if known["file"] else {},
        recorded=_recorded(known, inputs, limits) if known["recorded"] else {},
    )


def _validation(known: dict[str, Any], inputs: tuple[TensorSpec, ...], limits: DataLimits) -> Arrays:
    body, columns = Path(known["file"]).read_bytes(), tuple(known["columns"])
    rows, _ = load_samples(body, known["name"], inputs, known["label"], columns, limits)
    return rows


def _recorded(known: dict[str, Any], inputs: tuple[TensorSpec, ...], limits: DataLimits) -> Arrays:
    """Recorded requests that have the shape of the first one; none if clients send something else than was logged.

    Tuning sends all of them, in the names of what is served, and says what is wrong with them.
    """
    try:
        body = Path(known["recorded"]).read_bytes()
        samples = recorded(body, known["recorded_name"], Signature(inputs=inputs, outputs=()), limits)
        alike = [sample for sample in samples if _shapes(sample) == _shapes(samples[0])]
        specs = {spec.name: spec for spec in inputs}
        return {name: as_input(np.stack([sample[name] for sample in alike]), specs[name]) for name in samples[0]}
    except DataInvalid:
        return {}


def _shapes(sample: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in sample.items()}
