"""How a column's values travel as tensors, and an answer's values too: Triton's BYTES holds what numbers can't.

A text is itself, a date is ISO 8601, bytes are base64, as in MLflow's own JSON, and any other value is JSON. A missing
value is `MISSING` among texts, and NaN among numbers.

Process: the model's own process, as `python_host/values.py`; Shiplift.
Python: the model's
Packages: numpy, pandas
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any

MISSING = "\ufdd0"  # Unicode reserves this character for programs: no text has it
_MISSING = ("nan", "NaT", "<NA>")  # as NumPy and pandas write what equals nothing
_NONE_32 = 0x7FC007A2
_NONE_64 = 0x7FF800F440000000  # the same number in FP64
_JSON, _ANY = "json", "any"  # the latter is MLflow's own name
_WIDER = {("b", "f"), ("f", "f"), *((of, to) for of in "iu" for to in "iuf")}  # kinds of types, as NumPy calls them
_PLAIN_TYPES = ("boolean", "integer", "long", "float", "double", "string", "datetime", "binary")


def none_number() -> Any:
    """What stands for None among numbers: a NaN with bits of its own, as R has for NA; FP32 keeps them, too."""
    import numpy as np  # noqa: PLC0415 - from the environment

    return np.uint64(_NONE_64).view(np.float64)


def is_none(array: Any) -> Any:
    """Which values of an array of floats stand for None."""
    import numpy as np  # noqa: PLC0415 - from the environment

    if array.dtype == np.float64:
        return array.view(np.uint64) == np.uint64(_NONE_64)
    if array.dtype == np.float32:
        return array.view(np.uint32) == np.uint32(_NONE_32)
    return np.zeros(array.shape, dtype=np.bool_)


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN, NaT or pandas' NA."""
    if isinstance(value, float):  # NumPy's FP64, too
        return math.isnan(value)
    return value is None or (not hasattr(value, "__len__") and str(value) in _MISSING)


def text_of(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """A value as the text that holds it; `default` gives what JSON has in place of a value that it lacks."""
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration's member, what it is
    if is_missing(value):
        return MISSING
    special = _special(value)
    return json.dumps(value, default=default or as_json) if special is None else special


def texts(values: Iterable[Any], kind: str = "string", default: Callable[[Any], Any] | None = None) -> Any:
    """The values of a column of this kind as an array of texts, (values,); `default` is as above."""
    import numpy as np  # noqa: PLC0415 - from the environment

    found = [_quoted(value, default) if kind == _ANY else text_of(value, default) for value in values]
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array


def _quoted(value: Any, default: Callable[[Any], Any] | None) -> str:
    """A value of a column that has several types: a text is JSON, where it would be read as one of the others."""
    text = text_of(value, default)
    if not isinstance(value, str) and (is_missing(value) or _special(value) is None):
        return text
    return text if _json(text) is text and text != MISSING else json.dumps(text)


def all_missing(array: Any) -> bool:
    """Whether an array of numbers has nothing but NaN: so None is answered where no other row shows its type."""
    return bool(array.dtype.kind == "f" and array.size and (array != array).all())  # noqa: PLR0124 - only NaN is not itself


def as_served(array: Any, dtype: Any) -> Any:
    """An answer in the type that an output is served in, if it says the same in that; otherwise as it is.

    Whole numbers are floats too, if those are exact, and what is missing has a form in texts.
    """
    import numpy as np  # noqa: PLC0415 - from the environment

    of, to = array.dtype.kind, dtype.kind
    if to == "O":
        return texts([None] * array.size).reshape(array.shape) if all_missing(array) else array
    if array.dtype == dtype or (of, to) not in _WIDER:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
        same = ((cast == array) & (cast.astype(array.dtype) == array)) | (array != array)  # noqa: PLR0124 - NaN
    return cast if same.all() else array


def kind_of(column: Any) -> str:
    """MLflow's name of a column's type; that of a nested one is `json`."""
    name = getattr(column.type, "name", "")
    return name if name in _PLAIN_TYPES else _JSON


def values(array: Any, kind: str) -> Any:
    """The values of a column of this kind, (rows,), from its tensor, (rows,) or (rows, 1).

    Raises:
        ValueError: a text does not hold such a value.
    """
    array = array.reshape(-1)
    if kind == "boolean" and array.dtype.kind == "f":
        return [_boolean(value) for value in array.tolist()]
    if array.dtype.kind != "O":
        return array
    read = _READ.get(kind, str)
    found = [None if text == MISSING else read(text) for text in array.tolist()]
    return _dates(found) if kind == "datetime" else found


def dates(array: Any) -> list[Any]:
    """The dates in a tensor of texts as Python's own, which is what type hints name, each in its time zone.

    Raises:
        ValueError: a text is not a date.
    """
    found = array.reshape(-1).tolist()
    return [None if text in ("", MISSING) else datetime.fromisoformat(text) for text in found]


def column(array: Any, kind: str, *, none: bool | None = None) -> Any:
    """The same for a data frame. One of texts has the type that pandas gives texts, even if all are missing.

    `none`: whether a missing text is None, or else NaN; None: what pandas makes of it.
    """
    import pandas as pd  # noqa: PLC0415 - only for columns

    read = values(array, kind)
    if kind != "string" or not isinstance(read, list):
        return read
    if none is False:
        read = [math.nan if value is None else value for value in read]
    return pd.Series(read, dtype=object if none else pd.Series([""]).dtype)


def learned_none(estimator: Any) -> bool | None:
    """Whether a fitted estimator of scikit-learn learned None as the missing text, or NaN. None: it is no estimator.

    To an encoder, they are two categories; JSON and tensors have one missing value for both.
    """
    if not type(estimator).__module__.startswith("sklearn."):
        return None
    learned = [value for part in _parts(estimator) for value in _learned(part) if is_missing(value)]
    return any(value is None for value in learned) and not any(isinstance(value, float) for value in learned)


def _learned(part: Any) -> Iterable[Any]:
    """The categories of an encoder of texts, and the value that an imputer replaces."""
    for known in getattr(part, "categories_", None) or ():
        yield from known if any(isinstance(value, str) for value in known) else ()
    learned = getattr(part, "statistics_", None)
    if "missing_values" in vars(part) and getattr(getattr(learned, "dtype", None), "kind", "") == "O":
        yield part.missing_values


def _parts(estimator: Any) -> Iterable[Any]:
    """The estimator and all that are within it."""
    found, left = set[int](), [estimator]
    while left:
        part = left.pop()
        if id(part) in found:
            continue
        found.add(id(part))
        if isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, dict):
            left += part.values()
        elif type(part).__module__.startswith("sklearn.") and hasattr(part, "__dict__"):
            yield part
            left += vars(part).values()


def _dates(found: list[Any]) -> Any:
    import pandas as pd  # noqa: PLC0415 - only for columns

    dates = pd.to_datetime(pd.Series(found, dtype=object), format="ISO8601", utc=True)
    return dates.dt.tz_localize(None).astype("datetime64[ns]")  # as MLflow gives them to a model


def _boolean(value: float) -> bool | None:
    if math.isnan(value):
        return None
    if value not in (0, 1):
        raise ValueError(f"{value:g} is neither true (1) nor false (0)")
    return bool(value)


def _json(text: str) -> Any:
    """The value of a text that is JSON; a text that isn't stands for itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _special(value: Any) -> str | None:
    """The text of a value that JSON doesn't have; None if it is not such a value."""
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if type(value).__name__ == "datetime64":
        import pandas as pd  # noqa: PLC0415 - NumPy writes zeros that pandas leaves out

        value = pd.Timestamp(value)
    return str(value.isoformat()) if hasattr(value, "isoformat") else None


def as_json(value: Any) -> Any:
    """What JSON has in place of a value that it lacks.

    Raises:
        TypeError: nothing.
    """
    if (text := _special(value)) is not None:
        return text
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "as_tuple"):  # a decimal
        return float(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _empty_or(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: read(text) if text else None


_READ: Mapping[str, Callable[[str], Any]] = {
    "datetime": _empty_or(str),
    "binary": lambda text: base64.b64decode("".join(text.split()), validate=True),
    _JSON: _json,
}
