"""CSV and Parquet files as columns, read in pieces within limits: they can be a thousand times larger in memory."""

import io
from typing import Any

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model.tensors import Arrays, DataLimits

MAX_COLUMNS = 20_000
_ROWS = 16_384  # read at a time
_VALUE_BYTES, _OBJECT_BYTES = 8, 56  # the size of a number, and of a Python object that holds a text


def read_csv(body: bytes, name: str, limits: DataLimits) -> Arrays:
    """The columns of a CSV file by name.

    Raises:
        DataInvalid: the file exceeds `limits`, or has too many columns.
        ValueError: the file can't be read.
    """
    import pandas as pd  # noqa: PLC0415 - takes 0.35 s, only for tables

    _check_columns(name, body.partition(b"\n")[0].count(b",") + 1)
    pieces, size, rows = [], 0, 0
    with pd.read_csv(io.BytesIO(body), chunksize=_ROWS) as reader:
        for piece in reader:
            texts = piece.select_dtypes(exclude="number").size
            size, rows = size + int(piece.memory_usage(deep=True).sum()) + _OBJECT_BYTES * texts, rows + len(piece)
            limits.check(name, size, rows)
            pieces.append(piece)
    table = pd.concat(pieces, ignore_index=True) if len(pieces) > 1 else pieces[0]
    return {str(column): table[column].to_numpy() for column in table.columns}


def read_parquet(body: bytes, name: str, limits: DataLimits) -> Arrays:
    """The columns of a Parquet file by name.

    A value that is repeated a million times takes a few bytes in the file, so its metadata is checked first. Text stays
    encoded until its size is known.

    Raises:
        DataInvalid: the file exceeds `limits`, or has too many columns.
        OSError, ValueError: the file can't be read.
    """
    import pyarrow as pa  # noqa: PLC0415 - only for tables
    from pyarrow import parquet  # noqa: PLC0415

    schema = parquet.read_schema(io.BytesIO(body))
    _check_columns(name, len(schema.names))
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
    file = parquet.ParquetFile(io.BytesIO(body), read_dictionary=text)
    _check_metadata(file.metadata, name, limits)
    batches, size = [], 0
    for batch in file.iter_batches(batch_size=_ROWS):
        size += sum(_expanded(column) for column in batch.columns)
        limits.check(name, size)
        batches.append(batch)
    table = pa.Table.from_batches(batches, schema=file.schema_arrow if not batches else None).to_pandas()
    return {str(column): _plain(table[column]) for column in table.columns}


def _plain(column: Any) -> Any:
    return column.astype(object).to_numpy() if str(column.dtype) == "category" else column.to_numpy()


def _check_metadata(metadata: Any, name: str, limits: DataLimits) -> None:
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    claimed = sum(max(column.num_values * _VALUE_BYTES, column.total_uncompressed_size) for column in columns)
    limits.check(name, max(claimed, metadata.num_rows * metadata.num_columns), metadata.num_rows)


def _expanded(column: Any) -> int:
    """The size in bytes of a batch's column once each value is written out."""
    import pyarrow.compute as pc  # noqa: PLC0415
    from pyarrow import types  # noqa: PLC0415

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.take(pc.fill_null(pc.binary_length(column.dictionary), 0), pc.drop_null(column.indices))
    return int(pc.sum(lengths).as_py() or 0) + _OBJECT_BYTES * len(column)


def _check_columns(name: str, count: int) -> None:
    if count > MAX_COLUMNS:
        raise DataInvalid(
            f"{name} has {count} columns, the limit is {MAX_COLUMNS}",
            do="Log a matrix as one array: `numpy.savez('validation.npz', INPUT=x, label=y)`.",
        )
