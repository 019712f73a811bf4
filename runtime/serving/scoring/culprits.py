"""Which value of a refused request is to blame: MLflow's messages often say only what was wrong.

Looked for only after a refusal, so a value that MLflow would have converted is never blamed for a good request.
"""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import numpy_type
from shiplift.runtime.serving.scoring.common_forms import FORMS
from shiplift.runtime.serving.scoring.problems import ScoringProblem
from shiplift.runtime.serving.scoring.schema import Field, InputSchema

_MOST = 1_000_000  # values that are looked at


def named(said: str, body: Mapping[str, Any], schema: InputSchema) -> str:
    """A refusal that also names the value to blame, if one is found that it does not name yet."""
    for field, row, value in islice(_values(body, schema), _MOST):
        if _wrong(value, field):
            kind = field.dtype or field.kind
            return (
                f"{said.rstrip('. ')}. To blame: input {field.label} has {reprlib.repr(value)} in row {row}, no {kind}."
            )
    return said


def _wrong(value: Any, field: Field) -> bool:
    """Whether a value can't be what its field holds."""
    kind = numpy_type(field.spec.datatype)
    try:
        if field.kind == "datetime":
            return np.isnat(np.datetime64(value)) and value is not None
        if kind.kind == "O":
            return not isinstance(value, str | bytes)
        if kind.kind in "iu":
            return not np.iinfo(kind).min <= int(value) <= np.iinfo(kind).max
        return kind.kind == "f" and value is not None and not isinstance(float(value), float)
    except (TypeError, ValueError, OverflowError):
        return True


def require_even(body: Mapping[str, Any]) -> None:
    """Checks that all rows of a frame have as many values as there are columns: pandas would fill up short ones.

    Raises:
        ScoringProblem: one has not.
    """
    frame = body.get("dataframe_split")
    if not isinstance(frame, dict):
        return
    rows = frame.get("data")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        return
    names = frame.get("columns")
    width = len(names) if isinstance(names, list) else len(rows[0])
    for number, row in enumerate(rows):
        if len(row) != width:
            last = f", from {names[0]!r} to {names[-1]!r}" if isinstance(names, list) and names else ""
            raise ScoringProblem(
                400,
                f"row {number} has {len(row)} values ({reprlib.repr(row)}), and there are {width} columns{last}",
            )


def _values(body: Mapping[str, Any], schema: InputSchema) -> Iterator[tuple[Field, int, Any]]:
    """The values of the fields with the number of their row, as far as the body's form shows them."""
    form = next((form for form in FORMS if form in body), "")
    columns = _columns(form, body.get(form), schema)
    for field in schema.fields:
        column = columns.get(field.name)
        if isinstance(column, list | tuple):
            for row, value in enumerate(column):
                yield from ((field, row, each) for each in (_leaves(value) if schema.tensors else (value,)))


def _columns(form: str, data: Any, schema: InputSchema) -> Mapping[str, Any]:
    if form == "dataframe_split" and isinstance(data, dict):
        names, rows = data.get("columns"), data.get("data")
        if isinstance(names, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows):
            by_place = {str(name): [row[at] for row in rows if at < len(row)] for at, name in enumerate(names)}
            return by_place if schema.named else {"": rows}
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        return {field.name: [row.get(field.name) for row in data if field.name in row] for field in schema.fields}
    if isinstance(data, list) and len(schema.fields) == 1:
        return {schema.fields[0].name: data}
    return data if isinstance(data, dict) else {}


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The numbers in nested lists."""
    if not isinstance(value, Sequence) or isinstance(value, str) or depth > 32:
        yield value
        return
    for item in value:
        yield from _leaves(item, depth + 1)
