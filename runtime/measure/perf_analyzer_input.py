"""perf_analyzer's "real input data" JSON: tensors are base64 of their raw bytes, text is text."""

import base64
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Signature


def write_requests(path: Path, signature: Signature, samples: Iterable[Arrays]) -> Path:
    """Writes one request per sample (arrays by input name), sent in turn; shapes may differ between them."""
    path.write_text(json.dumps({"data": [_request(signature, sample) for sample in samples]}))
    return path


def write_sequences(path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:
    """Writes sequences of requests; each sequence is sent in order, under its own id."""
    data = [[_request(signature, sample) for sample in sequence] for sequence in sequences]
    path.write_text(json.dumps({"data": data}))
    return path


def _request(signature: Signature, sample: Arrays) -> dict[str, Any]:
    return {spec.name: _entry(sample[spec.name], spec.datatype) for spec in signature.inputs}


def _entry(sample: Any, datatype: str) -> Any:
    array = np.asarray(sample)
    shape = list(array.shape) or [1]
    if datatype == "BYTES" and any(isinstance(item, bytes) for item in array.reshape(-1)):
        items = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
        raw = b"".join(struct.pack("<I", len(item)) + item for item in items)  # Triton's wire format of BYTES
        return {"content": {"b64": base64.b64encode(raw).decode()}, "shape": shape}
    if datatype == "BYTES":
        return {"content": [str(item) for item in array.reshape(-1)], "shape": shape}
    return {"content": {"b64": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}, "shape": shape}
