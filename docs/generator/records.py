"""The fields of the records that stages pass to each other."""

import importlib
import inspect
import pkgutil
import textwrap
from functools import cache

from docs.generator.markdown import Schema, fields
from shiplift.runtime import records
from shiplift.runtime.records.base import Record


def stage_records() -> str:
    """Every record that a stage takes or returns, and what they are made of."""
    return "\n".join(map(_section, every_record()))


@cache
def every_record() -> tuple[type[Record], ...]:
    """The public records of the room `records`, by name."""
    names = [found.name for found in pkgutil.walk_packages(records.__path__, f"{records.__name__}.")]
    found = {
        name: member
        for module in map(importlib.import_module, names)
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Record) and member.__module__ == module.__name__ and not name.startswith("_")
    }
    return tuple(found[name] for name in sorted(found) if found[name].model_fields)


@cache
def schema_of(record: type[Record]) -> tuple[Schema, Schema]:
    """A record's JSON schema, and the definitions that it refers to; one may refer to itself."""
    schema = record.model_json_schema()
    definitions: Schema = schema.get("$defs", {})
    own: Schema = schema if "properties" in schema else definitions[record.__name__]
    return own, definitions


def _section(record: type[Record]) -> str:
    return f"## {record.__name__}\n\n{_text(record)}\n\n{fields(*schema_of(record))}"


def _text(record: type[Record]) -> str:
    return textwrap.dedent(inspect.getdoc(record) or "")
