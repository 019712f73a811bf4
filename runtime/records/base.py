"""The base class of every record: frozen, small JSON with units in its field names.

Bytes never travel in a record, only their digests. A record's *identity* is what a cached result depends on. Fields
marked `volatile` (where something ran, how long it took, who asked) are not part of it, so a result is found again from
another machine, port or trigger.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python


def volatile(default: Any = ...) -> Any:
    """A field that never decides whether a cached result is still valid."""
    return Field(default, json_schema_extra={"volatile": True})


class Record(BaseModel):
    """The base class of everything that is passed between steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, ser_json_inf_nan="strings")

    @classmethod
    def parameter(cls) -> str:
        """The name of this record as a step's parameter, on every engine: `LoadReport` is `load_report`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    @property
    def momentary(self) -> bool:
        """Whether the record holds for this run only, so that no later one finds it."""
        return False

    def remark(self) -> str:
        """A note for people that does not end the pipeline; engines show it with the stage."""
        return ""


class Sections(Record):
    """A record whose fields later steps take one by one: `slo` instead of the whole spec."""

    @classmethod
    def parts(cls) -> Mapping[str, type[Record]]:
        """The type of each section by its name, such as `{"slo": Slo}`.

        A property that is a record is a section too: it groups fields that a step takes together.
        """
        kinds: dict[str, Any] = {name: field.annotation for name, field in cls.model_fields.items()}
        groups = {name: member.fget for name, member in vars(cls).items() if isinstance(member, property)}
        kinds |= {name: get_type_hints(group).get("return") for name, group in groups.items()}
        return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Record)}


def identity(value: Any) -> Any:
    """What a cached result depends on, as plain JSON: records lose their volatile fields."""
    if isinstance(value, Record):
        return {name: identity(getattr(value, name)) for name in _identity_fields(type(value))}
    if isinstance(value, tuple | list):
        return [identity(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): identity(item) for key, item in value.items()}
    return to_jsonable_python(value, inf_nan_mode="strings")


def _identity_fields(kind: type[Record]) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        extra = field.json_schema_extra
        if not (isinstance(extra, dict) and extra.get("volatile")):
            yield name
