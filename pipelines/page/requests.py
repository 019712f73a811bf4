"""The form of "try it": a request from fields that a signature asks for, or from JSON as clients send it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.schema import Field, InputSchema, schema_of

_FIELDS = 40  # more columns are easier to write as JSON
_WHOLE, _REAL = ("integer", "long"), ("float", "double")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A field of the form: its name in the form and for people, its kind, and what stands in it at first."""

    name: str
    label: str
    kind: str
    value: str
    required: bool


def entries_of(served: ServedModel, given: Mapping[str, str]) -> tuple[Entry, ...]:
    """The fields for a model's columns, with what was given before; empty if JSON is better."""
    schema = schema_of(served)
    if schema.tensors or len(schema.fields) > _FIELDS:
        return ()
    return tuple(
        Entry(
            name=f"column{at}",
            label=field.name or field.spec.name,
            kind=field.kind,
            value=given.get(f"column{at}", _first(field)),
            required=field.required,
        )
        for at, field in enumerate(schema.fields)
    )


def example(served: ServedModel) -> str:
    """A request as JSON with one row of zeros and empty texts, to begin with."""
    schema = schema_of(served)
    if schema.tensors:
        rows = {field.name: _zeros(field) for field in schema.fields}
        return json.dumps({"inputs": rows if schema.named else next(iter(rows.values()))})
    return _body(schema, [_value(field, _first(field)) for field in schema.fields])


def body_of(served: ServedModel, given: Mapping[str, str]) -> str:
    """The request as JSON, from a form's fields.

    Raises:
        UsageError: a field's value is none of its kind, or the JSON is not valid.
    """
    if "json" in given:
        try:
            json.loads(given["json"])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the request is not JSON: {error}", do="Correct it, and send it again.") from error
        return given["json"]
    schema = schema_of(served)
    return _body(schema, [_value(field, given.get(f"column{at}", "")) for at, field in enumerate(schema.fields)])


def tensors_of(served: ServedModel, body: str) -> dict[str, tuple[str, Any]] | None:
    """The datatype and the values of each tensor of a request, as Triton's clients send them; None for other forms."""
    schema, asked = schema_of(served), json.loads(body)
    if not isinstance(asked, dict):
        return None
    rows = asked.get("inputs")
    if schema.tensors and rows is not None:
        by_name = rows if isinstance(rows, dict) else {schema.fields[0].name: rows}
        return _named({field: by_name[field.name] for field in schema.fields if field.name in by_name}) or None
    split = asked.get("dataframe_split")
    if not isinstance(split, dict) or not isinstance(split.get("data"), list):
        return None
    columns = list(map(str, split.get("columns", [])))
    try:
        at = {field: columns.index(field.name) for field in schema.fields if field.name in columns}
        return _named({field: [[row[place]] for row in split["data"]] for field, place in at.items()}) or None
    except (IndexError, KeyError, TypeError):
        return None


def _named(values: Mapping[Field, Any]) -> dict[str, tuple[str, Any]]:
    return {field.spec.name: (field.spec.datatype, each) for field, each in values.items()}


def _body(schema: InputSchema, row: list[Any]) -> str:
    if not schema.named:
        return json.dumps({"inputs": [row]})
    present = [(field.name, value) for field, value in zip(schema.fields, row, strict=True) if value is not None]
    names, values = [name for name, _ in present], [value for _, value in present]
    return json.dumps({"dataframe_split": {"columns": names, "data": [values]}})


def _value(field: Field, text: str) -> Any:
    if not text.strip() and not field.required:
        return None
    if field.kind == "boolean" and text.strip().lower() in (*_TRUE, *_FALSE):
        return text.strip().lower() in _TRUE
    if field.kind in (*_WHOLE, *_REAL):
        return _number(field, text)
    if field.kind == "boolean":
        raise UsageError(f"{field.label} is {text[:50]!r}, which is neither true nor false", do="Correct it.")
    return text


def _number(field: Field, text: str) -> float:
    try:
        number = int(text) if field.kind in _WHOLE else float(text)
    except ValueError:
        kind = "whole number" if field.kind in _WHOLE else "number"
        raise UsageError(f"{field.label} is {text[:50]!r}, which is no {kind}", do="Correct it.") from None
    if not math.isfinite(number):
        raise UsageError(f"{field.label} is {text[:50]!r}, which JSON can't carry", do="Correct it.")
    return number


def _first(field: Field) -> str:
    if not field.required:
        return ""
    return {"boolean": "false", "string": ""}.get(field.kind, "0" if field.kind in (*_WHOLE, *_REAL) else "")


def _zeros(field: Field) -> Any:
    value: Any = "" if field.spec.datatype == "BYTES" else False if field.spec.datatype == "BOOL" else 0
    for size in reversed([1, *(max(1, each) for each in field.shape[1:])]):
        value = [value] * size
    return value
