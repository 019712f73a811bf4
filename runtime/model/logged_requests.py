"""The requests that an author logged: an NPZ of arrays, or KServe request bodies as JSON."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import DATA_LIMITS, Arrays, DataLimits, as_input, fits, load_npz, numpy_type
from shiplift.runtime.records.tensor import Signature, TensorSpec

MAX_RECORDED = 1024  # perf_analyzer holds all of them in memory and sends them in turn
_SEQUENCE = "sequence_id"  # Triton's parameter of a KServe request


def recorded(body: bytes, name: str, signature: Signature, limits: DataLimits = DATA_LIMITS) -> list[Arrays]:
    """Reads logged requests: an NPZ of arrays by input name, or KServe request bodies as a JSON list or JSON lines.

    A request with several samples counts as several. In JSON, `{"b64": "..."}` stands for bytes such as a JPEG: one
    element of a BYTES tensor, or all of any other tensor (ONNX models take files as UINT8: their strings are text).

    Raises:
        DataInvalid: the file can't be read, or does not fit the model's inputs.
    """
    return [sample for _, sample in _recorded(body, name, signature, limits)]


def recorded_sequences(
    body: bytes, name: str, signature: Signature, length: int, limits: DataLimits = DATA_LIMITS
) -> list[list[Arrays]]:
    """Reads logged requests as sequences: by the `sequence_id` in their `parameters`, or an NPZ's array of that name.

    Without ids, every `length` consecutive requests form a sequence.

    Raises:
        DataInvalid: as `recorded`.
    """
    by_id: dict[Any, list[Arrays]] = {}
    for index, (sequence, sample) in enumerate(_recorded(body, name, signature, limits)):
        by_id.setdefault(f"from {index // length}" if sequence is None else sequence, []).append(sample)
    return list(by_id.values())


def _recorded(body: bytes, name: str, signature: Signature, limits: DataLimits) -> list[tuple[Any, Arrays]]:
    """Each recorded sample with the id of its sequence."""
    try:
        batches = [dict(load_npz(body, limits, name=name))] if name.endswith(".npz") else list(_bodies(body, signature))
        samples = [sample for batch in batches for sample in _samples(batch, signature)]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataInvalid(
            f"the requests in {name} can't be read: {' '.join(str(error).split())[:200]}",
            do="Log arrays by input name, `numpy.savez('requests.npz', INPUT=x)`, or JSON of KServe's request bodies.",
        ) from error
    if not samples:
        raise DataInvalid(
            f"{name} has no requests",
            do="Log at least one, `numpy.savez('requests.npz', INPUT=x)`, or leave `load.requests` out.",
        )
    return samples[:MAX_RECORDED]


def _bodies(body: bytes, signature: Signature) -> Iterator[Arrays]:
    text = body.decode()
    try:
        content = json.loads(text)
    except ValueError:
        content = [json.loads(line) for line in text.splitlines() if line.strip()]
    requests = content.get("requests", [content]) if isinstance(content, dict) else content
    specs = {spec.name: spec for spec in signature.inputs}
    for request in requests:
        batch = {item["name"]: _tensor(item["data"], specs[item["name"]], item["shape"]) for item in request["inputs"]}
        sequence = request.get("parameters", {}).get(_SEQUENCE)
        yield (
            batch
            if sequence is None or _SEQUENCE in batch
            else batch | {_SEQUENCE: np.full(len(next(iter(batch.values()))), sequence)}
        )


def _tensor(data: Any, spec: TensorSpec, shape: list[int]) -> NDArray[Any]:
    if spec.datatype == "BYTES":
        flat = [base64.b64decode(item["b64"]) if isinstance(item, dict) else str(item) for item in _flat(data)]
        elements = np.empty(len(flat), dtype=object)
        elements[:] = flat
        return elements.reshape(shape)
    dtype = numpy_type(spec.datatype)
    raw = [item for item in _flat(data) if isinstance(item, dict)]
    if raw:  # the tensor's own bytes, such as those of a JPEG that the model decodes
        return np.frombuffer(b"".join(base64.b64decode(item["b64"]) for item in raw), dtype=dtype).reshape(shape)
    return np.array(data, dtype=dtype).reshape(shape)


def _flat(data: Any) -> list[Any]:
    return [leaf for item in data for leaf in _flat(item)] if isinstance(data, list) else [data]


def _samples(batch: Arrays, signature: Signature) -> Iterator[tuple[Any, Arrays]]:
    arrays: dict[str, NDArray[Any]] = {}
    for spec in signature.inputs:
        if spec.optional and spec.name not in batch:
            continue
        if spec.name not in batch:
            raise ValueError(f"input {spec.name!r} is missing; the request has {', '.join(sorted(batch)) or 'none'}")
        raw = batch[spec.name]
        array = raw if spec.datatype == "BYTES" and raw.dtype == object else as_input(raw, spec)
        rows = array[:1] if signature.streamed else array  # such a model takes one row at a time, so each is a request
        if not fits(rows, spec):
            raise ValueError(f"{spec.name!r} has shape {array.shape}, the model takes {spec.shape}")
        arrays[spec.name] = array
    sequences = None if _SEQUENCE in arrays else batch.get(_SEQUENCE)
    for index in range(min(len(array) for array in arrays.values())):
        sequence = None if sequences is None else sequences[index].item()
        yield sequence, {name: array[index] for name, array in arrays.items()}
