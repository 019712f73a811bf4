"""Which packages may pad requests to buckets of lengths, which buckets need a proof, and which sets to measure.

Only the bundled server's own backends pad, and so does its front of text models. NVIDIA's backends take a ragged batch
as one long row per input (Triton's ragged_batching.md), which ordinary models don't understand; with them, only
requests of equal length share a batch. The front of text models on NVIDIA's server pads texts to the longest of their
batch.
"""

import math
import re
from collections.abc import Sequence
from statistics import median_low

import numpy as np

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.model.lengths import GRID, Buckets, bucket_sets, padding_percent
from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LengthsSent
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.serving_settings import Lengths
from shiplift.runtime.spec.target import Target

_ENGINES: tuple[Engine, ...] = ("onnxruntime", "openvino")
# How far an answer may be off once its request is padded, relative to the largest value. The causes are sums in another
# order, and the rounding of coarser precisions.
TOLERANCE: dict[Precision, float] = {"fp64": 1e-4, "fp32": 1e-4, "fp16": 1e-2, "bf16": 2e-2, "int8": 2e-2, "fp8": 5e-2}
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")  # names that the backends find in a configuration without unescaping


def check_pad(lengths: Lengths, signature: Signature, *, text: bool = False) -> None:
    """Checks that the spec's inputs are the model's, have lengths, and can hold their values; `text`: it takes text.

    Raises:
        SpecInvalid: an input is none of these.
    """
    if text and lengths.pad:
        raise SpecInvalid(
            "`serving.lengths.pad` names inputs, but the model takes text: its tokenizer pads",
            do="Leave `pad` out.",
        )
    if text:
        return
    if not lengths.pad:
        raise SpecInvalid(
            "`serving.lengths.pad` names no input",
            do=f"Name those whose first dimension after the batch varies: {_ragged(signature)}.",
        )
    specs = {spec.name: spec for spec in signature.inputs}
    for name, value in lengths.pad.items():
        if name not in specs or not _has_length(specs[name]):
            raise SpecInvalid(
                f"`serving.lengths.pad` names {name!r}, which is not an input with a dynamic dimension after the batch",
                do=f"The model's are: {_ragged(signature)}.",
            )
        if not _holds(specs[name], value):
            raise SpecInvalid(
                f"`serving.lengths.pad` fills {name!r} up with {value:g}, which is not {specs[name].datatype}",
                do="Give a value of the input's data type.",
            )


def problem(lengths: Lengths, signature: Signature, engine: Engine, target: Target, *, text: bool = False) -> str:
    """Why a model can't be served with buckets; empty if it can, provided that padding proves to change no answer."""
    if text and target.server != "bundled":
        return "the front of text models on NVIDIA's server pads texts only to the longest of their batch"
    if target.server != "bundled" or target.gpu:
        return "NVIDIA's backends don't pad requests, so only those of equal length share a batch"
    if engine not in _ENGINES:
        return f"{engine} pads no requests, so only those of equal length share a batch"
    if signature.batch == 1:
        return "the model takes one sample at a time"
    return "" if text else _tensor_problem(lengths, (*signature.inputs, *signature.outputs))


def _tensor_problem(lengths: Lengths, tensors: Sequence[TensorSpec]) -> str:
    """Why tensors can't be padded, or cut back, along their first dimension after the batch; empty if they can."""
    if any(spec.datatype == "BYTES" for spec in tensors):
        return "models with texts as tensors run in the Python backend, which pads none"
    if unnamed := [spec.name for spec in tensors if not _NAME.fullmatch(spec.name)]:
        return (
            f"the name {unnamed[0]!r} can't be used in the backend's parameters: they take letters, digits and `_.:/-`"
        )
    wide = [spec.name for spec in tensors if spec.name in lengths.pad and -1 in spec.shape[2:]]
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
    """The lengths of tuning's requests, and how much padding they cost; None if they have no lengths."""
    if not sent:
        return None
    return LengthsSent(
        requests=len(sent),
        shortest=min(sent),
        median=median_low(sent),
        longest=max(sent),
        buckets=buckets,
        padding_percent=round(padding_percent(sent, buckets), 1),
        one_length_percent=round(padding_percent(sent, (max(sent),)), 1),
    )


def _has_length(spec: TensorSpec) -> bool:
    return len(spec.shape) > 1 and spec.shape[1] == -1 and spec.datatype != "BYTES"


def _ragged(signature: Signature) -> str:
    return ", ".join(spec.name for spec in signature.inputs if _has_length(spec)) or "none, so leave `lengths` out"


def _holds(spec: TensorSpec, value: float) -> bool:
    """Whether an input's data type can hold the value. Of FP16, the backends know only 0."""
    dtype = numpy_type(spec.datatype)
    if dtype.kind == "f":
        return value == 0 or (spec.datatype != "FP16" and abs(value) <= np.finfo(dtype).max)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return math.floor(value) == value and low <= value <= high
