"""Tensors and signatures: names, Triton datatypes and shapes."""

import operator
from typing import Literal

from pydantic import Field

from shiplift.runtime.records.base import Record

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]
FLOATS = ("FP16", "FP32", "FP64")


class TensorSpec(Record):
    """A tensor's name, Triton datatype and shape. -1 is a dynamic dimension; the first dimension is the batch.

    A first dimension of 1 means that the model takes one sample at a time. A request may leave out an `optional` input.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = Field(default=False, exclude_if=operator.not_)  # older clients don't know this field


class Signature(Record):
    """The tensors that a model takes and returns.

    `streamed`: it answers a request in pieces, which add up: texts are joined, numbers are summed.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    streamed: bool = Field(default=False, exclude_if=operator.not_)

    @property
    def batch(self) -> int:
        """The number of samples that the model takes at a time; -1 if any."""
        return max((spec.shape[0] for spec in self.inputs), default=-1)
