"""Field types shared by several sections of the spec."""

import math
from typing import Annotated

from pydantic import AfterValidator, Field


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
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be a path inside the run's artifacts")
    return path


RelativePath = Annotated[str, AfterValidator(_inside)]
