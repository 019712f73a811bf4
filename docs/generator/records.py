"""The fields of the records that stages pass to each other."""

import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator

from docs.generator.markdown import fields
from shiplift.runtime import records
from shiplift.runtime.records.base import Record


def stage_records() -> str:
    """Every record that a stage takes or returns, and what they are made of."""
    return "\n".join(map(_section, every_record()))


def every_record() -> Iterator[type[Record]]:
    """The public records of the room `records`, by name."""
    names = [found.name for found in pkgutil.walk_packages(records.__path__, f"{records.__name__}.")]
    found = {
        name: member
        for module in map(importlib.import_module, names)
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Record) and member.__module__ == module.__name__ and not name.startswith("_")
    }
    return (found[name] for name in sorted(found) if found[name].model_fields)


def _section(record: type[Record]) -> str:
    schema = record.model_json_schema()
    return f"## {record.__name__}\n\n{_text(record)}\n\n{fields(schema, schema.get('$defs', {}))}"


def _text(record: type[Record]) -> str:
    return textwrap.dedent(inspect.getdoc(record) or "")
