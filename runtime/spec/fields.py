"""Field types shared by several sections of the spec."""

import math
from collections.abc import Iterator
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from shiplift.runtime.records.base import Record

LARGEST = 2**53  # floats above it are inexact, and no setting needs to be larger


class Section(Record):
    """The base class of what authors write: `true` is not a number, and numbers are finite and not absurdly large."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if any(isinstance(kind, type) and issubclass(kind, Record) for kind in kinds):
            return value  # a record validates its own fields
        for number in _numbers(value):
            if isinstance(number, bool) and bool not in kinds:
                raise ValueError(f"must not be {str(number).lower()}")
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError("must be a finite number")
            if abs(number) > LARGEST:
                raise ValueError(f"is too large a number: the limit is {LARGEST}")
        return value


def form(value: Any) -> str:
    """The tag of a field that is written by name or in full; paths in errors omit it."""
    return "in full" if isinstance(value, dict | Record) else "by name"


def _kinds(annotation: Any) -> set[Any]:
    """Every type in an annotation such as `tuple[int, ...] | None`."""
    inner = [kind for argument in get_args(annotation) for kind in _kinds(argument)]
    return {annotation, *inner} if isinstance(annotation, type) else set(inner)


def _numbers(value: Any) -> Iterator[int | float]:
    """The numbers in a value, and in the lists and mappings that it holds."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, int | float):
            yield item
        elif isinstance(item, list | tuple):
            pending.extend(item)
        elif isinstance(item, dict):
            pending.extend(item.values())


def finite(value: float) -> float:
    """The value, if it is a finite number.

    Raises:
        ValueError: the value is infinite or NaN.
    """
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Positive = Annotated[float, Field(gt=0), AfterValidator(finite)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(finite)]
Percent = Annotated[float, Field(ge=0, le=1000), AfterValidator(finite)]
Confidence = Annotated[float, Field(ge=50, lt=100)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a path inside the run's artifacts")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]
