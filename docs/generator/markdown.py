"""Markdown made of JSON schemas, as pydantic gives them for records, and as Kubernetes' definitions have them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "maxLength": "at most {} characters",
}
_NAMES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown in one line."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """A text as a table's cell."""
    return " ".join(text.replace("|", "\\|").split())


def code(value: object) -> str:
    """A value as it is written in a spec."""
    return f"`{value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)}`"


def fields(
    schema: Schema,
    definitions: Schema,
    meaning: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
) -> str:
    """A table of a mapping's fields: name, what it takes, default; and `meaning`, if that says something about one.

    `links` leads to the sections of records that fields consist of, by their names.
    """
    known = {name: text for name, text in (meaning or {}).items() if text}
    rows = [
        [
            f"`{name}`",
            _linked(kind(field, definitions), links or {}),
            _default(field, name in schema.get("required", ())),
        ]
        + ([known.get(name, "")] if known else [])
        for name, field in schema.get("properties", {}).items()
    ]
    return table(["Field", "Takes", "Default", *(["Meaning"] if known else [])], rows)


def _linked(words: str, links: Mapping[str, str]) -> str:
    return re.sub(r"\*(\w+)\*", lambda found: links.get(found[1], found[0]), words)


def kind(schema: Schema, definitions: Schema) -> str:
    """What a field takes, in words: its type and its limits."""
    words = _kind(schema, definitions)
    limits = [text.format(_plain(schema[key])) for key, text in _LIMITS.items() if schema.get(key) is not None]
    return ", ".join([words, *limits])


def _kind(schema: Schema, definitions: Schema) -> str:  # noqa: PLR0911 - one form after the other
    if "$ref" in schema:
        return _named(str(schema["$ref"]).rpartition("/")[2], definitions)
    if "enum" in schema:
        return " or ".join(code(value) for value in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    for alternatives in ("anyOf", "oneOf", "allOf"):
        if alternatives in schema:
            return " or ".join(dict.fromkeys(kind(each, definitions) for each in schema[alternatives]))
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'], definitions)}" if schema.get("items") else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"mapping to {kind(values, definitions)}" if isinstance(values, Mapping) and values else "mapping"
    return _NAMES.get(str(schema.get("type", "")), "anything")


def _named(name: str, definitions: Schema) -> str:
    target = definitions.get(name, {})
    return f"*{name}*" if "properties" in target else kind(target, definitions)


def _default(field: Schema, required: bool) -> str:
    if required:
        return "required"
    if "default" not in field:
        return ""
    default = field["default"]
    written = code(default)
    return "its own defaults" if isinstance(default, dict | list) and len(written) > 60 else written


def _plain(number: object) -> str:
    return f"{number:,.10g}" if isinstance(number, int | float) else str(number)
