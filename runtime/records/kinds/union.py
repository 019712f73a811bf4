"""Records that come in several kinds, as a discriminated union whose members carry only their own fields.

The union is a class, so that steps can name it as the type of an edge. Its members are subclasses, so that a kind can
be added in a folder of its own. In JSON, `kind` says which member it is. JSON of Shiplift 0.1 has no `kind`, and the
fields of all kinds: `_kind_of_old` tells them apart.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

from pydantic import GetCoreSchemaHandler, ModelWrapValidatorHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from shiplift.runtime.records.base import Record


class Kinded(Record):
    """The base class of such a union. A class without a `kind` of its own is a union, a class with one is a member."""

    kinds: ClassVar[dict[str, type[Record]]] = {}
    kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **_keywords: Any) -> None:
        """Gives each union a table of its own, and adds each member to the tables of its bases."""
        if not cls._is_member():
            cls.kinds = {}
            return
        for base in cls.__mro__[1:]:
            if issubclass(base, Kinded) and base is not Kinded:
                base.kinds[cls.model_fields["kind"].default] = cls

    @classmethod
    def parameter(cls) -> str:
        """The name of the union: a step takes `exported`, whichever kind it is."""
        unions = [base for base in cls.__mro__ if issubclass(base, Kinded) and base is not Kinded]
        return super(Kinded, unions[-1]).parameter()

    @classmethod
    def _is_member(cls) -> bool:
        return not cls.model_fields["kind"].is_required()

    def __new__(cls, *_arguments: Any, **_fields: Any) -> Self:
        """Refuses to make an instance of the union itself, which would be a record of no kind."""
        if not cls._is_member():
            raise TypeError(f"{cls.__name__} has kinds: make a {' or a '.join(k.__name__ for k in cls.kinds.values())}")
        return super().__new__(cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Writes a field of the union's type as the member that it holds, with all of that member's fields."""
        schema: dict[str, Any] = dict(handler(source))
        if not cls._is_member():
            schema["serialization"] = core_schema.simple_ser_schema("any")
        return cast("CoreSchema", schema)

    @model_validator(mode="wrap")
    @classmethod
    def _as_its_kind(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls._is_member() or isinstance(value, cls):
            return handler(value)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("no_mapping", "a record with kinds is read from a mapping")
        fields = dict(value) if "kind" in value else cls._migrated(dict(value))
        member = cls.kinds.get(str(fields["kind"]))
        if member is None:
            raise ValueError(f"{fields['kind']!r} is not a kind of {cls.__name__}: {', '.join(cls.kinds)}")
        return member.model_validate(fields)  # type: ignore[return-value]  # a member is a subclass

    @classmethod
    def _migrated(cls, old: dict[str, Any]) -> dict[str, Any]:
        """The fields of a record that 0.1 wrote, without empty ones that belong to other kinds."""
        try:
            fields = cls._renamed(old | {"kind": cls._kind_of_old(old)})
        except (AttributeError, KeyError, TypeError) as error:  # it is not such a record at all
            raise ValueError(f"a {cls.__name__} needs a `kind`, or the fields of 0.1: {error!r}") from error
        own = cls.kinds[fields["kind"]].model_fields
        return {name: value for name, value in fields.items() if name in own or not _is_empty(value)}

    @classmethod
    def _kind_of_old(cls, _old: dict[str, Any]) -> str:
        """The kind of a record that 0.1 wrote.

        Raises:
            ValueError: the record does not show it.
        """
        raise ValueError(f"a {cls.__name__} needs a `kind`: {', '.join(cls.kinds)}")

    @classmethod
    def _renamed(cls, old: dict[str, Any]) -> dict[str, Any]:
        """The same fields under their current names."""
        return old


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value == 0 or (isinstance(value, list | tuple | dict | str) and not value)
