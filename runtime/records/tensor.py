"""Tensors and signatures: names, Triton datatypes and shapes."""

from typing import Literal

from shiplift.runtime.records.base import Record

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]


class TensorSpec(Record):
    """A tensor's name, Triton datatype and shape; -1 is a dynamic dimension, the first dimension is the batch."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class Signature(Record):
    """The tensors a model takes and returns."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
