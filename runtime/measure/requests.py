"""The requests of a load test: recorded ones, or ones generated from the input example with realistic lengths."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.guest.graphs.guards import Guards
from shiplift.runtime.measure.generator import LoadGenerator, WireProtocol
from shiplift.runtime.measure.generators import load_generator
from shiplift.runtime.model.generation.signature import MAX_TOKENS, ROOM
from shiplift.runtime.model.logged_requests import MAX_RECORDED, recorded, recorded_sequences
from shiplift.runtime.model.samples import random_like
from shiplift.runtime.model.tensors import (
    Arrays,
    DataLimits,
    inputs_in,
)
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site, SitePolicy
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.measurement import DynamicShape, Load

REQUESTS = "requests.json"
_GENERATED = 32
_SHORTEST = 16  # if the spec gives no lengths, the shortest requests are the example's length divided by this


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Generated requests: samples, which the load generator sends in any order, or sequences, which keep their order.

    `note` says how they differ from what the spec asks for.
    """

    samples: Sequence[Arrays] = ()
    sequences: Sequence[Sequence[Arrays]] = ()
    note: str = ""

    def write(self, generator: LoadGenerator, path: Path, signature: Signature) -> Path:
        """Writes the requests to a file."""
        if self.sequences:
            return generator.write_sequences(path, signature, self.sequences)
        return generator.write_requests(path, signature, self.samples)


# Makes the requests for a package from its golden ones, as the spec asks. The kind of model decides how.
Make = Callable[[Package, Arrays, Load], Requests]


def shortened(golden: Arrays, load: Load) -> str:
    """A note that a model's context is too short for answers of `load.tokens` tokens; empty if it is long enough."""
    least = int(np.min(golden.get(ROOM, load.tokens)))
    if least >= load.tokens:
        return ""
    return (
        f"after some prompts the context has no room for {load.tokens} tokens (`load.tokens`): those requests "
        f"ask for as many as fit, {least} after the longest"
    )


def with_lengths(load: Load, package: Package, golden: Arrays) -> Load:
    """The load with lengths to draw, even if the spec gives none, for a package that pads requests.

    Most are short and few are as long as the example, as real texts are.
    """
    pad = package.padding.pad if package.padding else {}
    if load.shapes or load.batch > 1 or not pad:
        return load
    longest = max(1, *(golden[f"input/{name}"].shape[1] for name in pad))
    shapes = tuple(
        DynamicShape(input=name, distribution="lognormal", low=max(1, longest // _SHORTEST), high=longest)
        for name in pad
    )
    return load.model_copy(update={"shapes": shapes})


def fitting(load: Load, signature: Signature) -> Load:
    """The load without lengths for dimensions that another version of the model lacks."""
    shapes = tuple(shape for shape in load.shapes if _is_dynamic(shape, signature))
    return load.model_copy(update={"shapes": shapes})


def lengths(package: Package, golden: Arrays, load: Load) -> tuple[int, ...]:
    """The lengths of the requests that `write` generates, in tokens for texts; none if the spec asks for no buckets.

    Raises:
        DataInvalid: the spec's shapes do not fit the model.
    """
    padding = package.padding
    if padding is None or not padding.pad:
        return padding.lengths if padding else ()
    return tuple(_lengths_of(synthetic(inputs_in(golden, package.signature), package.signature, load), package))


def _lengths_of(samples: list[Arrays], package: Package) -> list[int]:
    """The samples' sizes along the dimension that is padded; none if the package pads no tensors."""
    name = next(iter(package.padding.pad if package.padding else {}), None)
    return [sample[name].shape[0] for sample in samples] if name else []


def batch_problem(package: Package, load: Load) -> str:
    """Why a package can't take requests with the spec's number of samples; empty if it can."""
    most = 1 if package.stateful or package.signature.batch == 1 else package.config.max_batch
    if load.batch <= most:
        return ""
    return f"load.batch is {load.batch}, but {package.model} version {package.version} takes at most {most} per request"


def write_logged(
    *,
    site: dict[str, Any],
    protocol: WireProtocol,
    package: dict[str, Any],
    file: str,
    name: str,
    sequence_length: int,
    out: str,
) -> dict[str, Any]:
    """Writes `out/requests.json` for a package from the logged `file` called `name`. A sandbox entry.

    Returns the requests' `lengths` if the package pads them.

    Raises:
        DataInvalid: the logged requests can't be read, or do not fit the model.
    """
    here, served = Site.model_validate(site), Package.model_validate(package)
    body, path, signature = Path(file).read_bytes(), Path(out) / REQUESTS, served.signature
    generator = load_generator(here, protocol, streamed=signature.streamed)
    limits = data_limits(here.policy)
    if served.stateful:
        generator.write_sequences(path, signature, recorded_sequences(body, name, signature, sequence_length, limits))
        return {"lengths": []}
    samples = recorded(body, name, signature, limits)
    generator.write_requests(path, signature, whole(samples) if served.takes_whole else samples)
    return {"lengths": _lengths_of(samples, served)}


def whole(samples: Iterable[Arrays]) -> list[Arrays]:
    """Samples as requests of one row. A pipeline takes them so: Triton adds no batch dimension to its shapes."""
    return [{name: array[np.newaxis] for name, array in sample.items()} for sample in samples]


def split(arrays: Arrays, *, limit: int = _GENERATED) -> list[Arrays]:
    """Splits arrays of many samples (by input name) into single samples, at most `limit`."""
    count = min(limit, len(next(iter(arrays.values()))))
    return [{name: array[index] for name, array in arrays.items()} for index in range(count)]


def synthetic(example: Arrays, signature: Signature, load: Load) -> list[Arrays]:
    """Generates samples like the example's (by input name, no batch dimension), with the lengths in `load.shapes`.

    Raises:
        DataInvalid: a shape names an input or dimension that does not exist or is not dynamic.
    """
    rng = np.random.default_rng(load.seed)
    for shape in load.shapes:
        _check_shape(shape, signature)
    if not load.shapes:
        return split(random_like(example, signature.inputs, _GENERATED, seed=load.seed))
    return [_resized_sample(example, signature, load, rng) for _ in range(_GENERATED)]


def within(guards: Sequence[Guard], samples: list[Arrays], example: Arrays) -> list[Arrays]:
    """The samples with values of the example where guards refuse theirs: random codes are no categories."""
    rng = np.random.default_rng(0)
    return [_within(guards, sample, example, rng) for sample in samples]


def _within(guards: Sequence[Guard], sample: Arrays, example: Arrays, rng: np.random.Generator) -> Arrays:
    batch = {name: array[np.newaxis].copy() for name, array in sample.items()}
    for guard in Guards(each.entry() for each in guards if each.input in batch).all:
        places = (slice(None),) if guard.column is None else (slice(None), guard.column)
        values, known = batch[guard.input][places], example[guard.input][places].ravel()
        off = guard.outside(batch[guard.input])
        values[off] = rng.choice(known, int(off.sum()))
        batch[guard.input][places] = values
    return {name: array[0] for name, array in batch.items()}


def prompts(example: Arrays, load: Load, room: NDArray[Any] | None) -> list[Arrays]:
    """The example's prompts, each asking for `load.tokens` tokens, or for as many as the context has room for.

    `room` (INT32, prompts x 1) is how many tokens the model can add to each prompt.
    """
    count = len(next(iter(example.values())))
    most = np.full((count, 1), load.tokens, np.int32)
    return split({**example, MAX_TOKENS: most if room is None else np.minimum(most, room)})


def synthetic_sequences(example: Arrays, signature: Signature, load: Load) -> list[list[Arrays]]:
    """Generates sequences of `load.sequence_length` samples like `synthetic`'s, each starting with a different one.

    Raises:
        DataInvalid: as `synthetic`.
    """
    pool, length = synthetic(example, signature, load), load.sequence_length
    count = min(_GENERATED, _sequences_that_fit(length))
    return [[pool[(start + step) % len(pool)] for step in range(length)] for start in range(count)]


def data_limits(policy: SitePolicy) -> DataLimits:
    """The site's limits on how far a data file may unpack."""
    return DataLimits(unpacked_bytes=policy.unpacked_mb << 20, samples=policy.samples)


def _sequences_that_fit(length: int) -> int:
    """How many sequences of this length the client should hold in memory, at least one."""
    return max(1, MAX_RECORDED // length)


def draw_length(shape: DynamicShape, rng: np.random.Generator) -> int:
    """Draws a length from the distribution, within its bounds."""
    if shape.distribution == "choice":
        return int(rng.choice(shape.lengths))
    if shape.distribution == "uniform":
        return int(rng.integers(shape.low, shape.high, endpoint=True))
    middle = (np.log(shape.low) + np.log(shape.high)) / 2
    spread = (np.log(shape.high) - np.log(shape.low)) / 4  # 95 % lie within the bounds
    return int(np.clip(round(float(rng.lognormal(middle, spread))), shape.low, shape.high))


def _resized_sample(example: Arrays, signature: Signature, load: Load, rng: np.random.Generator) -> Arrays:
    lengths = _lengths(load, rng)
    resized = {}
    for spec in signature.inputs:
        array = example[spec.name]
        for axis in range(1, array.ndim):
            if (spec.name, axis) in lengths:
                array = np.take(array, np.arange(lengths[spec.name, axis]) % max(1, array.shape[axis]), axis=axis)
        resized[spec.name] = array
    batch = random_like(resized, signature.inputs, 1, seed=int(rng.integers(2**31)))
    return {name: array[0] for name, array in batch.items()}


def _lengths(load: Load, rng: np.random.Generator) -> dict[tuple[str, int], int]:
    """A length by input and axis. Equal distributions on one axis share a draw: tokens and their mask must match."""
    drawn: dict[DynamicShape, int] = {}
    for shape in load.shapes:
        alike = shape.model_copy(update={"input": ""})
        drawn[shape] = drawn[alike] = drawn.get(alike) or draw_length(shape, rng)
    return {(shape.input, shape.axis): drawn[shape] for shape in load.shapes}


def _check_shape(shape: DynamicShape, signature: Signature) -> None:
    if not _is_dynamic(shape, signature):
        dynamic = [
            f"{spec.name} axis {axis}"
            for spec in signature.inputs
            for axis, size in enumerate(spec.shape)
            if axis and size == -1
        ]
        raise DataInvalid(
            f"`load.shapes` sets lengths of {shape.input!r} axis {shape.axis}, which is not a dynamic dimension",
            do=f"The model's dynamic dimensions are: {', '.join(dynamic) or 'none'}.",
        )


def _is_dynamic(shape: DynamicShape, signature: Signature) -> bool:
    """Whether the shape's input and dimension exist and the dimension is dynamic."""
    spec = next((spec for spec in signature.inputs if spec.name == shape.input), None)
    return spec is not None and shape.axis < len(spec.shape) and spec.shape[shape.axis] == -1
