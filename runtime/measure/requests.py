"""What a load test sends: requests that users really sent, or ones made from the example with lengths as they occur."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.measure.generator import LoadGenerator
from shiplift.runtime.model.samples import random_like
from shiplift.runtime.model.tensors import Arrays, as_input, fits, load_npz, numpy_type
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.measurement import DynamicShape, Load

_COUNT = 32
_SEQUENCE = "sequence_id"  # Triton's parameter of a KServe request
_MOST = 1024  # perf_analyzer holds all of them in memory, and sends them in turn


def write(
    generator: LoadGenerator, path: Path, package: Package, golden: Arrays, load: Load,
    logged: tuple[bytes, str] | None = None,
) -> Path:  # fmt: skip
    """The file of what a generator sends to a package: requests `logged` (a file's bytes and name), else made-up ones.

    Raises:
        DataInvalid: what was logged does not fit the model, or the spec's shapes don't.
    """
    signature = package.signature
    example = {spec.name: golden[f"input/{spec.name}"] for spec in signature.inputs}
    if package.sequences:
        many = recorded_sequences(*logged, signature, load.sequence_length) if logged else None
        return generator.write_sequences(path, signature, many or synthetic_sequences(example, signature, load))
    sent = recorded(*logged, signature) if logged else synthetic(example, signature, load)
    return generator.write_requests(path, signature, sent)


def split(arrays: Arrays, *, limit: int = _COUNT) -> list[Arrays]:
    """Arrays of many samples by input name as that many single samples, at most `limit`."""
    count = min(limit, len(next(iter(arrays.values()))))
    return [{name: array[at] for name, array in arrays.items()} for at in range(count)]


def synthetic(example: Arrays, signature: Signature, load: Load) -> list[Arrays]:
    """Samples like the example's (by input name, without a batch dimension), with the lengths of `load.shapes`.

    Raises:
        DataInvalid: a shape is for an input or a dimension that the model doesn't have, or that is not dynamic.
    """
    rng = np.random.default_rng(load.seed)
    for shape in load.shapes:
        _check_shape(shape, signature)
    if not load.shapes:
        return split(random_like(example, signature.inputs, _COUNT, seed=load.seed))
    return [_one(example, signature, load, rng) for _ in range(_COUNT)]


def synthetic_sequences(example: Arrays, signature: Signature, load: Load) -> list[list[Arrays]]:
    """Sequences of `load.sequence_length` samples as `synthetic` makes them, each beginning with another.

    Raises:
        DataInvalid: as `synthetic`.
    """
    pool, length_ = synthetic(example, signature, load), load.sequence_length
    return [
        [pool[(start + step) % len(pool)] for step in range(length_)] for start in range(min(_COUNT, _room(length_)))
    ]


def recorded(body: bytes, name: str, signature: Signature) -> list[Arrays]:
    """Requests as logged: an NPZ of arrays by input name, or JSON: KServe request bodies, as a list or one a line.

    A request of several samples counts as several. In JSON, `{"b64": "..."}` stands for bytes, such as a JPEG: those of
    one element of a BYTES tensor, or of the whole of another (ONNX models take files as UINT8: their strings are text).

    Raises:
        DataInvalid: the file can't be read, or does not fit the model's inputs.
    """
    return [one for _, one in _recorded(body, name, signature)]


def recorded_sequences(body: bytes, name: str, signature: Signature, length: int) -> list[list[Arrays]]:
    """The same as sequences: by the `sequence_id` that requests have in `parameters`, or samples in an array of an NPZ.

    Without any, every `length` requests on end are one.

    Raises:
        DataInvalid: as `recorded`.
    """
    found = _recorded(body, name, signature)
    by: dict[Any, list[Arrays]] = {}
    for at, (sequence, one) in enumerate(found):
        by.setdefault(f"from {at // length}" if sequence is None else sequence, []).append(one)
    return list(by.values())


def _room(length: int) -> int:
    """How many sequences of a length fit into what a client should hold; one in any case."""
    return max(1, _MOST // length)


def _recorded(body: bytes, name: str, signature: Signature) -> list[tuple[Any, Arrays]]:
    """Each recorded sample with the sequence it is of."""
    try:
        batches = [dict(load_npz(body))] if name.endswith(".npz") else list(_bodies(body, signature))
        found = [one for batch in batches for one in _samples(batch, signature)]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise DataInvalid(
            f"the requests in {name} can't be read: {' '.join(str(error).split())[:200]}",
            do="Log an NPZ of arrays by input name, or JSON of KServe request bodies.",
        ) from error
    if not found:
        raise DataInvalid(f"{name} has no requests", do="Log at least one, or none of the file.")
    return found[:_MOST]


def length(shape: DynamicShape, rng: np.random.Generator) -> int:
    """One length drawn from a distribution, within its bounds."""
    if shape.distribution == "choice":
        return int(rng.choice(shape.lengths))
    if shape.distribution == "uniform":
        return int(rng.integers(shape.low, shape.high, endpoint=True))
    middle = (np.log(shape.low) + np.log(shape.high)) / 2
    spread = (np.log(shape.high) - np.log(shape.low)) / 4  # nineteen of twenty lie between the bounds
    return int(np.clip(round(float(rng.lognormal(middle, spread))), shape.low, shape.high))


def _one(example: Arrays, signature: Signature, load: Load, rng: np.random.Generator) -> Arrays:
    lengths = _lengths(load, rng)
    resized = {}
    for spec in signature.inputs:
        array = example[spec.name]
        for axis in range(1, array.ndim):
            if (spec.name, axis) in lengths:
                array = np.take(array, np.arange(lengths[spec.name, axis]) % max(1, array.shape[axis]), axis=axis)
        resized[spec.name] = array
    made = random_like(resized, signature.inputs, 1, seed=int(rng.integers(2**31)))
    return {name: array[0] for name, array in made.items()}


def _lengths(load: Load, rng: np.random.Generator) -> dict[tuple[str, int], int]:
    """A length by input and axis; the same distribution on the same axis is drawn once, for tokens and their mask."""
    drawn: dict[DynamicShape, int] = {}
    for shape in load.shapes:
        alike = shape.model_copy(update={"input": ""})
        drawn[shape] = drawn[alike] = drawn.get(alike) or length(shape, rng)
    return {(shape.input, shape.axis): drawn[shape] for shape in load.shapes}


def _check_shape(shape: DynamicShape, signature: Signature) -> None:
    spec = next((one for one in signature.inputs if one.name == shape.input), None)
    if spec is None or shape.axis >= len(spec.shape) or spec.shape[shape.axis] != -1:
        known = [f"{s.name} axis {at}" for s in signature.inputs for at, d in enumerate(s.shape) if at and d == -1]
        raise DataInvalid(
            f"`load.shapes` gives lengths to {shape.input!r} axis {shape.axis}, which is no dynamic dimension",
            do=f"The model's are: {', '.join(known) or 'none'}.",
        )


def _bodies(body: bytes, signature: Signature) -> Iterator[Arrays]:
    text = body.decode()
    try:
        said = json.loads(text)
    except ValueError:
        said = [json.loads(line) for line in text.splitlines() if line.strip()]
    many = said.get("requests", [said]) if isinstance(said, dict) else said
    kinds = {spec.name: spec for spec in signature.inputs}
    for one in many:
        batch = {given["name"]: _tensor(given["data"], kinds[given["name"]], given["shape"]) for given in one["inputs"]}
        sequence = one.get("parameters", {}).get(_SEQUENCE)
        yield (
            batch
            if sequence is None or _SEQUENCE in batch
            else batch | {_SEQUENCE: np.full(len(next(iter(batch.values()))), sequence)}
        )


def _tensor(data: Any, spec: TensorSpec, shape: list[int]) -> NDArray[Any]:
    if spec.datatype == "BYTES":
        flat = [base64.b64decode(item["b64"]) if isinstance(item, dict) else str(item) for item in _flat(data)]
        made = np.empty(len(flat), dtype=object)
        made[:] = flat
        return made.reshape(shape)
    dtype = numpy_type(spec.datatype)
    raw = [item for item in _flat(data) if isinstance(item, dict)]
    if raw:  # the tensor's own bytes, such as those of a JPEG that the model decodes
        return np.frombuffer(b"".join(base64.b64decode(item["b64"]) for item in raw), dtype=dtype).reshape(shape)
    return np.array(data, dtype=dtype).reshape(shape)


def _flat(data: Any) -> list[Any]:
    return [one for item in data for one in _flat(item)] if isinstance(data, list) else [data]


def _samples(batch: Arrays, signature: Signature) -> Iterator[tuple[Any, Arrays]]:
    given: dict[str, NDArray[Any]] = {}
    for spec in signature.inputs:
        if spec.name not in batch:
            raise ValueError(f"input {spec.name!r} is not there, but {', '.join(sorted(batch)) or 'nothing'}")
        raw = batch[spec.name]
        array = raw if spec.datatype == "BYTES" and raw.dtype == object else as_input(raw, spec)
        if not fits(array, spec):
            raise ValueError(f"{spec.name!r} has shape {array.shape}, the model takes {spec.shape}")
        given[spec.name] = array
    sequences = None if _SEQUENCE in given else batch.get(_SEQUENCE)
    for at in range(min(len(array) for array in given.values())):
        yield None if sequences is None else sequences[at].item(), {key: array[at] for key, array in given.items()}
