"""Which packages may pad requests to buckets of lengths, which buckets are to be proven, and which sets to measure.

Only the bundled server's own backends pad, and its front of text models. NVIDIA's take a ragged batch as one long row
per input (Triton's ragged_batching.md), which ordinary models don't understand; their batcher goes on to put only
requests of equal length together.
"""

import math
import re
from collections.abc import Sequence
from statistics import median_low

import numpy as np

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model.lengths import GRID, Buckets, bucket_sets, padding_percent
from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.records.measurement import LengthsSent
from shiplift.runtime.records.precision import Engine
from shiplift.runtime.records.serving import Package, ServerKind
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.serving import Lengths

_ENGINES: tuple[Engine, ...] = ("onnxruntime", "openvino")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")  # what the backends find in a configuration without unescaping it


def check_pad(lengths: Lengths, signature: Signature) -> None:
    """Whether the spec's inputs are the model's, have lengths, and can hold their values.

    Raises:
        SpecInvalid: one is not.
    """
    if not lengths.pad:
        raise SpecInvalid(
            "`serving.lengths.pad` names no input",
            do=f"Name those whose first dimension after the batch varies: {_ragged(signature)}.",
        )
    specs = {spec.name: spec for spec in signature.inputs}
    for name, value in lengths.pad.items():
        if name not in specs or not _has_length(specs[name]):
            raise SpecInvalid(
                f"`serving.lengths.pad` names {name!r}, which is no input with a dynamic dimension after the batch",
                do=f"The model's are: {_ragged(signature)}.",
            )
        if not _holds(specs[name], value):
            raise SpecInvalid(
                f"`serving.lengths.pad` fills {name!r} up with {value:g}, which is no {specs[name].datatype}",
                do="Give a value of the input's data type.",
            )


def problem(signature: Signature, engine: Engine, server: ServerKind) -> str:
    """Why a model with lengths can't be served with buckets; empty: it may, if padding proves to change no answer."""
    if server != "bundled":
        return "NVIDIA's backends don't pad requests, so only those of equal length share a batch"
    if engine not in _ENGINES:
        return f"{engine} pads no requests, so only those of equal length share a batch"
    if signature.batch == 1:
        return "the model takes one sample at a time"
    tensors = (*signature.inputs, *signature.outputs)
    if unnamed := [spec.name for spec in tensors if not _NAME.fullmatch(spec.name)]:
        return f"the name {unnamed[0]!r} can't stand in the backend's parameters: only letters, digits and `_.:/-` can"
    return ""


def shape_problem(lengths: Lengths, signature: Signature) -> str:
    """Why the inputs in `lengths.pad` can't be padded by their first dimension alone; empty if they can."""
    wide = [spec.name for spec in signature.inputs if spec.name in lengths.pad and -1 in spec.shape[2:]]
    return f"input {wide[0]!r} has more than one dynamic dimension after the batch" if wide else ""


def to_prove(lengths: Lengths) -> Buckets:
    """The buckets whose padding has to be proven."""
    return GRID if lengths.buckets == "auto" else lengths.buckets


def declared(lengths: Lengths | None) -> Buckets:
    """The buckets that the spec sets; none if it leaves them to tuning."""
    return () if lengths is None or lengths.buckets == "auto" else lengths.buckets


def sets_of(packages: Sequence[Package], lengths: Lengths | None, sent: Sequence[int]) -> tuple[Buckets, ...]:
    """The sets of buckets that a search tries for requests of the lengths `sent`."""
    proven = [package.padding.buckets for package in packages if package.padding and package.padding.buckets]
    if lengths is None or not proven:
        return ((),)
    return (declared(lengths),) if declared(lengths) else bucket_sets(sent, max(proven, key=len))


def padded_with(package: Package, buckets: Buckets) -> Buckets:
    """The buckets, or none if the package was not proven with them."""
    proven = package.padding.buckets if package.padding else ()
    return buckets if set(buckets) <= set(proven) else ()


def lengths_sent(sent: Sequence[int], buckets: Buckets) -> LengthsSent | None:
    """What tuning's requests were like, and how much padding they cost; None if they have no lengths."""
    if not sent:
        return None
    return LengthsSent(
        requests=len(sent), shortest=min(sent), median=median_low(sent), longest=max(sent), buckets=buckets,
        padding_percent=round(padding_percent(sent, buckets), 1),
        one_length_percent=round(padding_percent(sent, (max(sent),)), 1),
    )  # fmt: skip


def _has_length(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and spec.shape[1] == -1 and spec.datatype != "BYTES"


def _ragged(signature: Signature) -> str:
    return ", ".join(spec.name for spec in signature.inputs if _has_length(spec)) or "none, so leave `lengths` out"


def _holds(spec: TensorSpec, value: float) -> bool:
    """Whether an input's data type has the value; of FP16, the backends know no other than 0."""
    dtype = numpy_type(spec.datatype)
    if dtype.kind == "f":
        return value == 0 or (spec.datatype != "FP16" and abs(value) <= np.finfo(dtype).max)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return math.floor(value) == value and low <= value <= high
