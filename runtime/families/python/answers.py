"""Judges a Python model's recorded answers: their types, whether they are reproducible, and whether it takes batches.

This runs in another sandbox than the model, whose code could have written anything into its answers.
"""

from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.onnx_models import differences
from shiplift.runtime.model.tensors import Arrays, datatype, dump_npz, load_npz
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.tensor import Signature, TensorSpec

REFERENCE = "reference.npz"
SINGLE_NOTE = "The model gets one sample at a time: its answers to a batch differ from those to each of its samples."
_TOLERANCE = 1e-4  # relative to the largest value: a sample's answer must not depend on its neighbours


def compare(*, answers: str, sets: list[str], inputs: list[dict[str, Any]], out: str) -> dict[str, Any]:
    """Compares the answers of two processes, and the answers to a batch with those to its samples.

    Returns the signature, the cases and notes, and writes `out/reference.npz`: requests as `input/NAME` and their
    answers as `output/NAME`. A sandbox entry.

    Raises:
        ExportFailed: an output can't be served.
        DataInvalid: the answers can't be read.
    """
    progress("comparing the model's answers")
    recorded = load_npz(Path(answers))
    parts = {name: _part(recorded, f"{name}/") for name in sets}
    example, again, rows = (_part(parts[name], "output/") for name in ("example", "again", "rows"))
    together = _part(parts["batch"], "output/") if "batch" in sets else None
    batched = together is not None and _same(rows, together)
    reference = parts["example"] if batched else parts["rows"]
    (Path(out) / REFERENCE).write_bytes(dump_npz(reference))
    size = -1 if batched else 1
    asked = [TensorSpec.model_validate(spec) for spec in inputs]
    signature = Signature(
        inputs=tuple(spec.model_copy(update={"shape": (size, *spec.shape[1:])}) for spec in asked),
        outputs=tuple(_spec(name, [example[name], rows[name]], size) for name in example),
    )
    cases = [_case("example, in two processes", example, again)]
    if batched and together is not None:
        cases.append(_case("samples alone and in a batch", rows, together))
    return {
        "signature": signature.model_dump(mode="json"),
        "parity": [case.model_dump(mode="json") for case in cases],
        "notes": [] if batched else [SINGLE_NOTE],
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


def _same(left: Arrays, right: Arrays) -> bool:
    return all(
        left[name].shape == right[name].shape and min(differences(left[name], right[name])) <= _TOLERANCE
        for name in left
    )


def _case(name: str, left: Arrays, right: Arrays) -> ParityCase:
    found = {key: differences(array, right[key]) for key, array in left.items()}
    bad = [key for key, (absolute, _) in found.items() if absolute == float("inf")]
    return ParityCase(
        inputs=name,
        batch=len(next(iter(left.values()))),
        max_abs=max(absolute for absolute, _ in found.values()),
        max_rel=max(relative for _, relative in found.values()),
        problem="; ".join(f"{key!r} differs between two runs, or is NaN" for key in bad),
    )


def _part(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
