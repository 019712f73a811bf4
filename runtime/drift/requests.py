"""Captured rows as requests of a load test and rows of a proof: the cases that production really saw."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.drift.window import read_window
from shiplift.runtime.model.logged_requests import MAX_RECORDED
from shiplift.runtime.model.tensors import as_input, dump_npz
from shiplift.runtime.records.tensor import Signature, TensorSpec

CAPTURED = "captured.npz"
LEAST = 20  # requests


def write_captured(signature: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """Writes captured rows of any version to `CAPTURED` in the working directory, as logged requests are written.

    Rows that the signature does not take, such as those of an earlier version with other columns, are left out, and so
    are those that production refused or failed to answer.

    Raises:
        DataInvalid: too few rows are left, or rows can't be restored to the shape of an input.
    """
    inputs = Signature.model_validate(signature).inputs
    for spec in inputs:
        if sum(size == -1 for size in spec.shape[1:]) > 1:
            raise DataInvalid(
                f"captured rows can't be requests: input {spec.name!r} has shape {spec.shape}, a row keeps no shape",
                do="Log requests as a file, and name it in `load.requests`.",
            )
    window = read_window(
        [Path(file) for file in files], [f"input/{spec.name}" for spec in inputs], most=4 * MAX_RECORDED
    )
    columns = {spec.name: [_restored(each, spec) for each in window.columns[f"input/{spec.name}"]] for spec in inputs}
    kept = _alike(columns, window.failed)[:MAX_RECORDED]
    if len(kept) < LEAST:
        broken = f"; files that can't be read: {'; '.join(window.broken[:3])}" if window.broken else ""
        raise DataInvalid(
            f"this version takes {len(kept)} of {window.rows} captured rows as requests, {LEAST} are needed{broken}",
            do="Wait for more requests, or log some as a file, and name it in `load.requests`.",
        )
    arrays = {spec.name: as_input(_stacked([columns[spec.name][at] for at in kept]), spec) for spec in inputs}
    Path(CAPTURED).write_bytes(dump_npz(arrays))
    return {"rows": len(kept), "seen": window.rows}


def _restored(row: Any, spec: TensorSpec) -> NDArray[Any] | None:
    """A captured row in the shape of an input, without its first dimension; None if it can't be one."""
    if row is None:
        return None
    texts = spec.datatype == "BYTES"
    try:
        flat = np.asarray(row, dtype=object if texts else np.float64 if spec.datatype in _FLOATS else np.int64)
        if texts and any(not isinstance(each, str | bytes) for each in flat.ravel()):
            return None
        return flat.reshape(spec.shape[1:])
    except (OverflowError, TypeError, ValueError):
        return None


_FLOATS = ("FP16", "FP32", "FP64")


def _alike(columns: dict[str, list[NDArray[Any] | None]], failed: list[bool]) -> list[int]:
    """The rows that were answered and have every input, in the shapes that most of them have."""
    shapes: dict[int, tuple[tuple[int, ...], ...]] = {}
    for at in (at for at, each in enumerate(failed) if not each):
        whole = [column[at] for column in columns.values()]
        known = [each.shape for each in whole if each is not None]
        if len(known) == len(whole):
            shapes[at] = tuple(known)
    common = Counter(shapes.values()).most_common(1)
    return [at for at, shape in shapes.items() if shape == common[0][0]] if common else []


def _stacked(rows: list[NDArray[Any] | None]) -> NDArray[Any]:
    return np.stack([each for each in rows if each is not None])
