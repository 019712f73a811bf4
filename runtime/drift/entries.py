"""What runs in the sandbox: reading the validation data, and comparing captured rows with them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.drift.columns import Unlike, columns
from shiplift.runtime.drift.comparison import Rules, compared
from shiplift.runtime.drift.window import DriftWindow, read_window
from shiplift.runtime.model.datasets import load_samples
from shiplift.runtime.model.tensors import DataLimits, dump_npz, load_npz
from shiplift.runtime.records.drift import ColumnStatistics, Drifting
from shiplift.runtime.records.tensor import Signature

REFERENCE = "reference.npz"
MOST_REFERENCE = 5000  # rows
_MOST_BYTES = 256 << 20
_SEED = 20240229


def read_reference(drifting: dict[str, Any], signature: dict[str, Any], file: str) -> dict[str, Any]:
    """Writes the inputs of the validation data to `REFERENCE` in the working directory, some thousand rows of them.

    Raises:
        DataInvalid: they can't be read, or are not what clients send.
    """
    settings, tensors = Drifting.model_validate(drifting), Signature.model_validate(signature)
    limits = DataLimits(unpacked_bytes=settings.unpacked_mb << 20, samples=settings.samples)
    samples, _ = load_samples(
        Path(file).read_bytes(), settings.reference_name, tensors.inputs, settings.label, settings.extra, limits
    )
    rows = len(next(iter(samples.values())))
    size = max(1, sum(array.nbytes for array in samples.values()) // rows)
    kept = min(rows, MOST_REFERENCE, max(1, _MOST_BYTES // size))
    chosen = np.sort(np.random.default_rng(_SEED).choice(rows, kept, replace=False))
    Path(REFERENCE).write_bytes(dump_npz({f"input/{name}": array[chosen] for name, array in samples.items()}))
    return {"rows": kept}


def compare(drifting: dict[str, Any], hidden: dict[str, str], **window: Any) -> dict[str, Any]:
    """Compares the rows of a window with the reference, column by column.

    `window` has `files` and the `reference` by path, the `version`, and from when on rows count, as `since`, and the
    `names` of the columns. `hidden` are columns whose values can't be compared, each with the reason.
    """
    settings = Drifting.model_validate(drifting)
    reference = load_npz(Path(window["reference"]))
    wanted = [name for name in window["names"] if name in reference]
    rows = read_window(
        [Path(file) for file in window["files"]], wanted, version=window["version"], since=window["since"]
    )
    rules = Rules(min_requests=settings.min_requests, threshold=settings.threshold)
    found = [ColumnStatistics(column=name, note=why) for name, why in hidden.items()]
    for name in wanted:
        found += _compared(name, reference[name], rows, rules)
    return {
        "rows": rows.rows,
        "requests": len(set(rows.requests)),
        "reference_rows": max((len(each) for each in reference.values()), default=0),
        "columns": json.loads(json.dumps([each.model_dump(mode="json") for each in found])),
        "broken": rows.broken[:3],
    }


def _compared(name: str, before: NDArray[Any], window: DriftWindow, rules: Rules) -> Iterator[ColumnStatistics]:
    """An answer that failed has no outputs: its row counts for inputs only."""
    answered = name.startswith("output/")
    kept = [at for at, failed in enumerate(window.failed) if not (answered and failed)]
    values = [window.columns[name][at] for at in kept]
    requests = len({window.requests[at] for at in kept})
    if kept and all(each is None for each in values):
        yield ColumnStatistics(column=name, note="it was not captured", rows=len(kept), requests=requests)
        return
    try:
        for column in columns(name, before, values):
            yield compared(column, len(kept), requests, rules)
    except Unlike as why:
        yield ColumnStatistics(column=name, note=str(why), rows=len(kept), requests=requests)
