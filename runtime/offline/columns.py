"""Which columns of a dataset the model takes, which the output repeats, and the columns of the output."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shiplift.runtime.base.errors import DataInvalid, UsageError
from shiplift.runtime.guest.python.values import MISSING
from shiplift.runtime.model.tensors import Arrays, numpy_type
from shiplift.runtime.records.offline import OfflineOrder
from shiplift.runtime.records.scoring import AnswerPart
from shiplift.runtime.serving.scoring.models import Scorable
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.schema import InputSchema
from shiplift.runtime.serving.scoring.tables import read_rows

ERROR, ANSWER = "error", "prediction"  # the columns of reasons, and of an answer that has no name
_KINDS = {
    "double": pa.float64(),
    "float": pa.float32(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
_ZERO = ((pa.types.is_boolean, False), (pa.types.is_string, "0"), (pa.types.is_large_string, "0"))


@dataclass(frozen=True, kw_only=True)
class SelectedColumns:
    """The columns that the model takes, in the order of its inputs if those have no names, and those that are kept."""

    taken: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def read(self) -> tuple[str, ...]:
        """All that are read."""
        return tuple(dict.fromkeys((*self.taken, *self.kept)))


def types_of(schema: InputSchema) -> tuple[tuple[str, pa.DataType], ...]:
    """The types of named columns, for a format that doesn't say them."""
    return tuple((field.name, _KINDS[field.kind]) for field in schema.fields if field.name and field.kind in _KINDS)


def columns_of(schema: InputSchema, found: pa.Schema, order: OfflineOrder, where: str) -> SelectedColumns:
    """The columns to read of a file that has the `found` ones; `where` names it.

    Raises:
        DataInvalid: one is missing, or has a type that the model does not take.
        UsageError: one that is to be kept does not exist.
    """
    names = list(found.names)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataInvalid(f"{where} has two columns {twice[0]!r}", do="Rename one of them.")
    if unknown := [name for name in order.keep or () if name not in names]:
        raise UsageError(f"{where} has no column {unknown[0]!r} to keep", do=f"It has {_listed(names)}.")
    taken = _named(schema, names, where) if schema.named else _unnamed(schema, found, order.keep or (), where)
    kept = tuple(name for name in names if name not in taken) if order.keep is None else order.keep
    _check_types(schema, found, taken, where)
    return SelectedColumns(taken=taken, kept=kept)


def _named(schema: InputSchema, names: Sequence[str], where: str) -> tuple[str, ...]:
    missing = [field.name for field in schema.fields if field.name not in names and not field.spec.optional]
    if missing:
        raise DataInvalid(
            f"{where} has no column {_listed(missing)}, which the model takes; it has {_listed(names)}",
            do="Name the columns as the model's signature does.",
        )
    return tuple(field.name for field in schema.fields if field.name in names)


def _unnamed(schema: InputSchema, found: pa.Schema, keep: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of a model whose inputs have no names: all, or all numbers, that are not to be kept."""
    others = [field for field in found if field.name not in keep]
    only = schema.fields[0]
    if named := [field.name for field in others if len(schema.fields) == 1 and field.name == only.spec.name]:
        return tuple(named)
    if schema.tensors and (lists := [field.name for field in others if pa.types.is_nested(field.type)]):
        return tuple(lists) if len(lists) == 1 else _refuse(lists, 1, where)
    width = only.shape[-1] if schema.tensors and len(only.shape) > 1 else len(schema.fields)
    names = [field.name for field in others]
    if len(names) != width and not keep and schema.tensors:
        names = [field.name for field in others if _is_number(field.type)]
    return tuple(names) if width in (-1, len(names)) else _refuse(names, width, where)


def _refuse(names: Sequence[str], width: int, where: str) -> tuple[str, ...]:
    raise DataInvalid(
        f"{where} has {len(names)} columns that could be inputs, {_listed(names)}, and the model takes {width} without "
        "names",
        do="Name with --keep the columns that are no inputs.",
    )


def _check_types(schema: InputSchema, found: pa.Schema, taken: Sequence[str], where: str) -> None:
    """Asks the codec about a row of stand-ins, so that a wrong type is found before anything runs."""
    fields = [found.field(name) for name in taken]
    if any(pa.types.is_nested(field.type) for field in fields):
        return
    try:
        arrays = [pa.array([_stand_in(field.type)]).cast(field.type) for field in fields]
    except (pa.ArrowException, TypeError, ValueError):  # a type without one
        return
    try:
        read_rows(pa.RecordBatch.from_arrays(arrays, names=list(taken)), schema)
    except ScoringProblem as problem:
        types = ", ".join(f"{field.name}: {field.type}" for field in fields[:20])
        raise DataInvalid(f"{where} has columns of wrong types ({types}): {problem}", do="Convert them.") from problem


def _stand_in(kind: pa.DataType) -> Any:
    return next((value for matches, value in _ZERO if matches(kind)), 0)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


# --- the output ---


def output_schema(model: Scorable, found: pa.Schema, columns: SelectedColumns, order: OfflineOrder) -> pa.Schema:
    """The columns of every part: those that are kept, the answer's, and with `--errors column` the reasons.

    Raises:
        UsageError: two would have the same name.
    """
    specs = {spec.name: spec for spec in model.served.signature.outputs}
    answers = [pa.field(name_of(part), _type(part, specs[part.tensor])) for part in model.form.parts]
    extra = [pa.field(ERROR, pa.string())] if order.on_error == "column" else []
    names = [*columns.kept, *(field.name for field in (*answers, *extra))]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"the dataset's column {twice[0]!r} would have the same name as one of the answer",
            do="Leave it out: name with --keep the columns to keep, or '' for none.",
        )
    return pa.schema([*(found.field(name) for name in columns.kept), *answers, *extra])


def name_of(part: AnswerPart) -> str:
    """The column of a part of the answer."""
    return part.name or ANSWER


def _type(part: AnswerPart, spec: Any) -> pa.DataType:
    inner = pa.string() if spec.datatype == "BYTES" else pa.from_numpy_dtype(numpy_type(spec.datatype))
    for _ in range(part.rank - 1):
        inner = pa.list_(inner)
    return inner


def answer_columns(model: Scorable, arrays: Arrays, schema: pa.Schema) -> dict[str, pa.Array]:
    """The answer's arrays, (rows, ...), as columns of the types in `schema`."""
    return {
        name_of(part): _nested(arrays[part.name], schema.field(name_of(part)).type, part.rank)
        for part in model.form.parts
    }


def _nested(array: NDArray[Any], kind: pa.DataType, rank: int) -> pa.Array:
    """An array as a column, with a list for each axis beyond the first."""
    if array.ndim < rank:
        array = array.reshape(*array.shape, *[1] * (rank - array.ndim))
    shape = [*array.shape[: rank - 1], int(np.prod(array.shape[rank - 1 :]))]
    flat = array.reshape(-1)
    if array.dtype == object:
        column = pa.array([None if value == MISSING else value for value in flat.tolist()], pa.string())
    else:
        column = pa.array(flat)
    for axis in range(rank - 1, 0, -1):
        count, length = int(np.prod(shape[:axis])), shape[axis]
        column = pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * length, column)
    return column.cast(kind)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return f"{shown} and {len(names) - 20} more" if len(names) > 20 else shown
