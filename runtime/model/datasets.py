"""Logged data as arrays: NPZ, CSV or Parquet files, matched to a model's inputs, with an error for each mismatch."""

from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid
from shiplift.runtime.model import tables
from shiplift.runtime.model.tensors import DATA_LIMITS, Arrays, DataLimits, as_input, load_npz, numpy_type
from shiplift.runtime.records.tensor import FLOATS, TensorSpec

_NAMED = (
    "Name each array after the input it is for, and the labels as `data.label` says: "
    "`numpy.savez('validation.npz', INPUT=x, label=y)`."
)
_WITHOUT_INFINITE = (
    "Leave these samples out of every array: `keep = np.isfinite(VALUES).reshape(len(VALUES), -1).all(axis=1)`, then "
    "`numpy.savez('validation.npz', INPUT=x[keep], label=y[keep])`."
)
_WITHOUT_MISSING = (
    "Leave these samples out of every column: `table = table.dropna(subset=['NAME'])`, then "
    "`table.to_parquet('validation.parquet')`."
)


def load_samples(
    body: bytes,
    name: str,
    inputs: tuple[TensorSpec, ...],
    label: str,
    columns: tuple[str, ...] = (),
    limits: DataLimits = DATA_LIMITS,
) -> tuple[Arrays, NDArray[Any] | None]:
    """The inputs by name, in the model's dtypes, and the labels (None if the file has none).

    `columns` names arrays that are neither: `load_columns` returns those.

    Raises:
        DataInvalid: the file can't be read, exceeds `limits`, or its arrays do not match the model's inputs.
    """
    arrays = _read(body, name, limits)
    labels = arrays.pop(label, None)
    names = {spec.name for spec in inputs}
    arrays = {key: array for key, array in arrays.items() if key not in columns or key in names}
    if labels is not None:
        _check_labels(labels, label, name)
    matched = _match(arrays, inputs, name)
    samples = {spec.name: _checked(matched[spec.name], spec, name) for spec in inputs}
    counts = {len(array) for array in samples.values()} | ({len(labels)} if labels is not None else set())
    if len(counts) != 1:
        raise DataInvalid(
            f"{name} has arrays of different lengths: {sorted(counts)}",
            do="Log one row per sample in each: `numpy.savez('validation.npz', INPUT=x[:N], label=y[:N])`.",
        )
    return samples, labels


def load_columns(
    body: bytes, name: str, columns: tuple[str, ...], count: int, limits: DataLimits = DATA_LIMITS
) -> Arrays:
    """Named arrays of a data file, one value for each of `count` samples.

    Raises:
        DataInvalid: an array is missing, or does not have one value per sample.
    """
    arrays = _read(body, name, limits) if columns else {}
    if missing := [column for column in columns if column not in arrays]:
        raise DataInvalid(
            f"{name} has no {', '.join(map(repr, missing))}, which `data.slices` names",
            do="Log them with the samples, `numpy.savez('validation.npz', INPUT=x, label=y, SLICE=values)`. Or leave "
            "them out of `data.slices`.",
        )
    values = {column: arrays[column] for column in columns}
    for column, array in values.items():
        if array.size != count:
            raise DataInvalid(
                f"{name} has {array.size} values of {column!r} for {count} samples",
                do="Log one value per sample to slice by, or leave it out of `data.slices`.",
            )
    return values


def _read(body: bytes, name: str, limits: DataLimits) -> Arrays:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".npz":
        return load_npz(body, limits, name=name)
    if suffix not in (".csv", ".parquet"):
        raise DataInvalid(
            f"{name} is not a .npz, .csv or .parquet file",
            do="Log `numpy.savez('validation.npz', INPUT=x, label=y)`, and name it in the spec, as in "
            "`data: {validation: shiplift/validation.npz}`.",
        )
    try:
        return (tables.read_csv if suffix == ".csv" else tables.read_parquet)(body, name, limits)
    except DataInvalid:
        raise
    except Exception as error:
        raise DataInvalid(
            f"{name} can't be read: {' '.join(str(error).split())[:300]}",
            do="Write it again: `numpy.savez('validation.npz', INPUT=x, label=y)`.",
        ) from error


def _match(arrays: Arrays, inputs: tuple[TensorSpec, ...], name: str) -> Arrays:
    """Matches arrays by name. A single input may also be the only array, or a matrix stored as columns."""
    if all(spec.name in arrays for spec in inputs):
        return {
            spec.name: arrays[spec.name].reshape(-1, 1)
            if arrays[spec.name].ndim == 1 and len(spec.shape) == 2
            else arrays[spec.name]
            for spec in inputs
        }
    if len(inputs) == 1 and len(arrays) == 1:
        return {inputs[0].name: next(iter(arrays.values()))}
    if len(inputs) == 1 and arrays and all(array.ndim == 1 for array in arrays.values()):
        return {inputs[0].name: np.column_stack(list(arrays.values()))}
    raise DataInvalid(
        f"{name} has the arrays {', '.join(sorted(arrays)) or 'none'}; the model's inputs are "
        f"{', '.join(spec.name for spec in inputs)}",
        do=_NAMED,
    )


def _checked(array: NDArray[Any], spec: TensorSpec, name: str) -> NDArray[Any]:
    """The array in the form that the input takes: a list of values may stand for a column."""
    if array.ndim == 1 and spec.shape[1:] == (1,):
        array = array.reshape(-1, 1)
    sizes = zip(spec.shape[1:], array.shape[1:], strict=False)
    if array.ndim != len(spec.shape) or any(expected not in (-1, actual) for expected, actual in sizes):
        raise DataInvalid(
            f"{name}: {spec.name!r} has shape {array.shape}, the model takes {spec.shape}",
            do="Log samples shaped like the input example: `x = x.reshape(-1, *SHAPE[1:])`, where `SHAPE` is what the "
            "model takes.",
        )
    if not len(array):
        raise DataInvalid(
            f"{name} has no samples",
            do="Log at least one row: `numpy.savez('validation.npz', INPUT=x[:100], label=y[:100])`.",
        )
    if array.dtype.kind not in ("OSU" if spec.datatype == "BYTES" else "biuf"):
        raise DataInvalid(
            f"{name}: {spec.name!r} has dtype {array.dtype}, the model takes {spec.datatype} "
            f"({numpy_type(spec.datatype)})",
            do="Log samples with the dtypes of the signature: `x = x.astype('DTYPE')`.",
        )
    missing = np.isnan(array) if array.dtype.kind == "f" and spec.datatype in FLOATS else np.False_
    _check_values(np.where(missing, 0, array) if missing.any() else array, spec.name, name)
    return as_input(array, spec)


def _check_labels(labels: NDArray[Any], label: str, name: str) -> None:
    if labels.ndim == 0:
        raise DataInvalid(
            f"{name}: {label!r} is a single value",
            do="Log one label per sample: `numpy.savez('validation.npz', INPUT=x, label=y)`, with as many `y` as `x`.",
        )
    _check_values(labels, label, name)


def _check_values(array: NDArray[Any], column: str, name: str) -> None:
    """Refuses NaN and missing values: in labels they would make a score NaN, which exceeds no limit.

    An input of floats may have them: some models take them, and one that doesn't will say so.
    """
    if array.dtype.kind == "f" and (bad := int((~np.isfinite(array)).sum())):
        raise DataInvalid(f"{name}: {column!r} holds {bad} NaN or infinite values", do=_WITHOUT_INFINITE)
    if array.dtype.kind == "O":
        import pandas as pd  # noqa: PLC0415 - objects come only from tables, which pandas has read

        if missing := int(pd.isna(array).sum()):
            raise DataInvalid(f"{name}: {column!r} holds {missing} missing values", do=_WITHOUT_MISSING)
