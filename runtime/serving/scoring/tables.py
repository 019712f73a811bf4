"""Rows of Arrow as served tensors: those of plainly right types without pandas, others by MLflow's own rules."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays, numpy_type
from shiplift.runtime.serving.scoring.common_forms import NotCommonError, served
from shiplift.runtime.serving.scoring.schema import Field, InputSchema

_PLAIN = {
    "double": (pa.float64(),),
    "float": (pa.float32(),),
    "long": (pa.int64(),),
    "integer": (pa.int32(),),
    "boolean": (pa.bool_(),),
    "string": (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
}


def read_rows(rows: pa.RecordBatch, schema: InputSchema) -> Arrays:
    """The served tensors of rows that have the model's columns, in the order of its inputs if those have no names.

    Raises:
        ScoringProblem: MLflow would refuse them, or production can't serve them.
    """
    try:
        return _at_once(rows, schema)
    except (NotCommonError, TypeError, ValueError, pa.ArrowInvalid):
        from shiplift.runtime.serving.scoring.mlflow_rules import read_frame  # noqa: PLC0415 - 0.1 GB, and a second

        return read_frame(rows.to_pandas(), schema)


def _at_once(rows: pa.RecordBatch, schema: InputSchema) -> Arrays:
    first = schema.fields[0]
    if schema.tensors and len(schema.fields) == 1 and rows.num_columns > 1:
        return {first.spec.name: served(_matrix(rows.columns, first), first)}
    named = dict(zip(rows.schema.names, rows.columns, strict=True))
    if len(named) < rows.num_columns or not rows.num_rows:
        raise NotCommonError
    columns = [named.get(field.name) for field in schema.fields] if schema.named else rows.columns
    if len(columns) != len(schema.fields) or any(column is None for column in columns):
        raise NotCommonError
    read = _tensor if schema.tensors else _column
    return {
        field.spec.name: served(read(column, field), field)
        for field, column in zip(schema.fields, columns, strict=True)
    }


def _column(column: pa.Array, field: Field) -> NDArray[Any]:
    """A column's values, (rows,)."""
    if column.type not in _PLAIN.get(field.kind, ()):
        raise NotCommonError
    return _values(column)


def _values(column: pa.Array) -> NDArray[Any]:
    """Values of a plain type. Only floats can be missing: they are NaN then, as in pandas."""
    if column.null_count and not pa.types.is_floating(column.type):
        raise NotCommonError
    values: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return values


def _matrix(columns: Sequence[pa.Array], field: Field) -> NDArray[Any]:
    """The matrix of a model of one tensor, from a column for each of its features."""
    wanted = pa.from_numpy_dtype(np.dtype(field.dtype))
    if len(field.shape) != 2 or any(column.type != wanted for column in columns):
        raise NotCommonError
    return np.stack([_values(column) for column in columns], axis=1)


def _tensor(column: pa.Array, field: Field) -> NDArray[Any]:
    """A tensor from a column of lists that all have the shape of one sample, or of single values."""
    shape, inner = [len(column)], column
    while pa.types.is_list(inner.type) or pa.types.is_large_list(inner.type) or pa.types.is_fixed_size_list(inner.type):
        shape.append(_length(inner))
        inner = inner.flatten()
    plain = numpy_type(field.spec.datatype)
    text = plain.kind == "O" and inner.type in _PLAIN["string"]
    if not text and (plain.kind == "O" or inner.type != pa.from_numpy_dtype(plain)):
        raise NotCommonError
    array = _values(inner).reshape(shape)
    if len(shape) == 1 and len(field.shape) > 1:
        return array.reshape(-1, *[1] * (len(field.shape) - 1))
    return array


def _length(lists: pa.Array) -> int:
    """How long all the lists are."""
    if lists.null_count or not len(lists):
        raise NotCommonError
    if pa.types.is_fixed_size_list(lists.type):
        return int(lists.type.list_size)
    lengths = np.diff(lists.offsets.to_numpy())
    if (lengths != lengths[0]).any() or not lengths[0]:
        raise NotCommonError
    return int(lengths[0])
