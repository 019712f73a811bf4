"""The form of "try it": a request from fields that a signature asks for, or from JSON as clients send it."""

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.scoring.schema import Field, InputSchema, schema_of

_FIELDS = 40  # more columns are easier to write as JSON
_WHOLE, _REAL = ("integer", "long"), ("float", "double")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")
_ANY = "*/*"
# The files that the texts of a kind of model may be, as browsers name them; of other kinds, none. What a pipeline or an
# adopted model takes, nobody says: it may be either.
_FILES = {"image": "image/jpeg,image/png", "pipeline": _ANY, "adopted": _ANY}
_NAMES = {b"\xff\xd8\xff": "image.jpg", b"\x89PNG\r\n\x1a\n": "image.png"}


@dataclass(frozen=True, kw_only=True)
class FormEntry:
    """A field of the form: its name in the form and for people, its kind, and what stands in it at first.

    `files` are the media types of the files that it takes, as base64 (empty: none).
    """

    name: str
    label: str
    kind: str
    value: str
    required: bool
    files: str = ""


def entries_of(served: ServedModel, given: Mapping[str, str], kind: str = "") -> tuple[FormEntry, ...]:
    """The fields for the columns of a model of this kind, with what was given before; empty if JSON is better."""
    schema = schema_of(served)
    if schema.tensors or len(schema.fields) > _FIELDS:
        return ()
    return tuple(
        FormEntry(
            name=f"column{at}",
            label=field.name or field.spec.name,
            kind=field.kind,
            value=given.get(f"column{at}", _first(field)),
            required=field.required,
            files=_ANY if field.kind == "binary" else _FILES.get(kind, "") if field.kind == "string" else "",
        )
        for at, field in enumerate(schema.fields)
    )


def files_in(entries: Iterable[FormEntry]) -> dict[str, str]:
    """The base64 in a form's fields that take files, with a name for the file that it is."""
    found: dict[str, str] = {}
    for entry in entries:
        text = "".join(entry.value.split())
        if entry.files and text:
            try:
                body = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):  # a text, and no file
                continue
            known = (name for magic, name in _NAMES.items() if body.startswith(magic))
            found[entry.value] = next(known, "input.bin")
    return found


def row_of(served: ServedModel, given: Mapping[str, str]) -> dict[str, Any]:
    """A value for each input by the name of its tensor, from a form's fields, or from a JSON object.

    Raises:
        UsageError: a field's value is not of its kind, or the JSON is not an object.
    """
    if "json" in given:
        row = json.loads(body_of(served, given))
        if not isinstance(row, dict):
            raise UsageError("the row is not a JSON object", do="Write a value for each input by its name.")
        return row
    values = {
        field.spec.name: _value(field, given.get(f"column{at}", ""))
        for at, field in enumerate(schema_of(served).fields)
    }
    return {name: value for name, value in values.items() if value is not None}


def example_row(served: ServedModel) -> str:
    """A row as JSON, with zeros and empty texts, to begin with."""
    rows = {field.spec.name: _zeros(field)[0] for field in schema_of(served).fields if field.required}
    return json.dumps(rows)


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
    try:
        if not schema.named and isinstance(rows, list):
            return _named({field: [[row[place]] for row in rows] for place, field in enumerate(schema.fields)}) or None
        split = asked["dataframe_split"]
        columns = list(map(str, split.get("columns", [])))
        at = {field: columns.index(field.name) for field in schema.fields if field.name in columns}
        return _named({field: [[row[place]] for row in split["data"]] for field, place in at.items()}) or None
    except (AttributeError, IndexError, KeyError, TypeError):  # another form, or none
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
        raise UsageError(f"{field.label} is {text[:50]!r}, which is not a {kind}", do="Correct it.") from None
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
