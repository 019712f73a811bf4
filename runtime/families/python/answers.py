"""Judges a Python model's recorded answers: their types, whether they are reproducible, and whether it takes batches.

This runs in another sandbox than the model, whose code could have written anything into its answers.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.onnx_models import differences
from shiplift.runtime.model.tensors import Arrays, datatype, dump_npz, load_npz
from shiplift.runtime.proof import comparison as proof
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.proof import Counterexample
from shiplift.runtime.records.tensor import Signature, TensorSpec

REFERENCE = "reference.npz"
SINGLE_NOTE = (
    "Warning: the model gets one sample at a time, without batching: its answers to a batch differ from those to each "
    "of its samples ({})."
)


def compare(*, answers: str, sets: list[str], inputs: list[dict[str, Any]], out: str) -> dict[str, Any]:
    """Compares the answers of two processes, and the answers to a batch with those to its samples.

    Returns the signature, the cases and notes, and writes `out/reference.npz`: requests as `input/NAME` and their
    answers as `output/NAME`. A sandbox entry.

    Raises:
        ExportFailed: an output can't be served, or the model is not repeatable.
        DataInvalid: the answers can't be read.
    """
    progress("comparing the model's answers")
    recorded = load_npz(Path(answers))
    parts = {name: _part(recorded, f"{name}/") for name in sets}
    example, again, rows = (_part(parts[name], "output/") for name in ("example", "again", "rows"))
    _require_repeatable(example, again)
    together = _part(parts["batch"], "output/") if "batch" in sets else None
    mixes = _mixes(rows, together)
    batched = not mixes
    reference = parts["example"] if batched else parts["rows"]
    (Path(out) / REFERENCE).write_bytes(dump_npz(reference))
    size = -1 if batched else 1
    asked = [TensorSpec.model_validate(spec) for spec in inputs]
    signature = Signature(
        inputs=tuple(spec.model_copy(update={"shape": (size, *spec.shape[1:])}) for spec in asked),
        outputs=tuple(_spec(name, [example[name], rows[name]], size) for name in example),
    )
    cases = [_case("example, in two processes", example, again)]
    if together is not None and batched:
        cases.append(_case("samples alone and in a batch", rows, together))
    return {
        "signature": signature.model_dump(mode="json"),
        "parity": [case.model_dump(mode="json") for case in cases],
        "notes": [SINGLE_NOTE.format(mixes)] if mixes else [],
    }


def _spec(name: str, arrays: list[Any], size: int) -> TensorSpec:
    """An output's type and shape, with -1 for the sizes in which its arrays differ."""
    kinds, ranks = {datatype(array.dtype) for array in arrays}, {array.ndim for array in arrays}
    kind = kinds.pop()
    if kind is None or kinds or len(ranks) > 1:
        raise ExportFailed(
            f"the output {name!r} has another type or rank for one sample than for several, or one that Triton can't "
            "carry",
            do="Make `predict` answer arrays of the same type for any number of samples.",
        )
    sizes = zip(*(array.shape[1:] for array in arrays), strict=True)
    return TensorSpec(name=name, datatype=kind, shape=(size, *(s[0] if len(set(s)) == 1 else -1 for s in sizes)))


def _require_repeatable(example: Arrays, again: Arrays) -> None:
    if found := _difference(example, again, "example", "asked of a second process"):
        raise ExportFailed(
            f"the model is not repeatable: {found}",
            do="Seed what it samples, and keep no state between calls: production is checked against these answers.",
        )


def _mixes(rows: Arrays, together: Arrays | None) -> str:
    """How a sample's answer depends on its neighbours; empty if it does not."""
    if together is None:
        return "it does not answer several at once"
    if shaped := [name for name in rows if name in together and rows[name].shape != together[name].shape]:
        return f"{shaped[0]!r} has shape {list(together[shaped[0]].shape)} instead of {list(rows[shaped[0]].shape)}"
    found = _difference(rows, together, "first", "in a batch")
    return str(found) if found else ""


def _difference(left: Arrays, right: Arrays, origin: str, setting: str) -> Counterexample | None:
    sides = Answers.of(left), Answers.of(right)
    return proof.compare(*sides, [origin] * len(sides[0].errors), setting=setting).first


def _case(name: str, left: Arrays, right: Arrays) -> ParityCase:
    found = {key: differences(array, right[key]) for key, array in left.items()}
    bad = [key for key, array in left.items() if array.dtype.kind == "f" and np.isnan(array).any()]
    found |= dict.fromkeys(bad, (math.inf, math.inf))
    return ParityCase(
        inputs=name,
        batch=len(next(iter(left.values()))),
        max_abs=max(absolute for absolute, _ in found.values()),
        max_rel=max(relative for _, relative in found.values()),
        problem="; ".join(f"{key!r} holds NaN" for key in bad),
    )


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
