"""The outputs of `predict` as tensors: numbers, booleans and texts as they are, and any other values as JSON.

An output whose values are of several types has no type as a tensor. Each of its rows is a text then, which is JSON.
None among numbers is NaN, with bits that tell it from a number that is none: clients of MLflow's protocol get null.

A value may lack the axis of rows. A `whole` one never has it: it is about all rows of a request, such as the version of
the model beside its labels, and each row is given it. A `squeezed` one lacks it if there is one row.

Process: the model's own process, as `python_host/outputs.py` beside `values.py`; Shiplift.
Python: the model's
Packages: numpy
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .values import as_json, is_missing, none_number, texts  # noqa: TID251 - the same import in Shiplift and in a package

_ANY = "any"  # a text of such a value is quoted where it would be read as JSON
_NUMBERS, _BOOLEANS, _TEXTS, _BYTES, _JSON = "numbers", "booleans", "texts", "bytes", "json"
_NAT = "NaT"
_EXACT = 1 << 53  # larger whole numbers are not all floats
SQUEEZED, WHOLE = "squeezed", "whole"  # how a value lacks the axis of rows


class Unservable(ValueError):
    """The model answers something that no tensor can hold."""


class Outputs:
    """Makes tensors of outputs, and knows what each held last. Those named in `json` are JSON, row by row.

    `axes` names those that lack the axis of rows for some sample, and how; None: that is to be seen.
    """

    def __init__(self, json: Iterable[str] = (), axes: Mapping[str, str] | None = None) -> None:
        self._json, self._axes, self._seeing = frozenset(json), dict(axes or {}), axes is None
        self._kinds: dict[str, str] = {}
        self._lacking: dict[str, str] = {}

    def tensor(self, name: str, value: Any, rows: int) -> Any:
        """An array of numbers, or of texts, with a row for each sample.

        Raises:
            Unservable: it is neither, or has another number of rows.
        """
        self._lacking[name] = lacking = self._lacks(name, value, rows)
        bare = lacking == WHOLE or (lacking == SQUEEZED and rows == 1)
        if name in self._json:
            array = _json_row(name, value) if bare else _json_rows(name, value, rows)
        else:
            self._kinds[name], array = _row(name, value) if bare else _typed(name, _array(name, value, rows))
        return array.repeat(rows, axis=0) if bare and rows > 1 else array

    def holds(self, name: str) -> str:
        """What else a client has to know to read an output, as `records.scoring.AnswerPart.holds`."""
        kind = _JSON if name in self._json else self._kinds.get(name)
        return kind if kind in (_JSON, _BOOLEANS, _BYTES) else ""

    def lacks(self, name: str) -> str:
        """How the output lacked the axis of rows last; empty: it had it."""
        return self._lacking.get(name, "")

    def _lacks(self, name: str, value: Any, rows: int) -> str:
        if name in self._axes:
            return self._axes[name]
        if _count(value) == rows or _several_whole(value):
            return ""
        return WHOLE if self._seeing or rows == 1 else ""


def _count(value: Any) -> int:
    """How many rows a value has; -1: it has no axis."""
    shape: Any = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if shape else -1
    if isinstance(value, (str, bytes, bytearray, Mapping)) or hasattr(value, "model_dump"):
        return -1
    return len(value) if hasattr(value, "__len__") else -1


def _several_whole(value: Any) -> bool:
    """Whether it is a list of arrays that each have a row: of a model with several outputs, asked one row."""
    return isinstance(value, (list, tuple)) and len(value) > 1 and all(_whole(item) for item in value)


def document(answer: Any) -> Any:
    """An answer as the lists and mappings that MLflow's server writes."""
    if hasattr(answer, "columns") and hasattr(answer, "to_dict"):
        return answer.to_dict(orient="records")
    if hasattr(answer, "to_frame"):
        return answer.to_frame().to_dict(orient="records")
    plain = _plain(answer)
    return plain.tolist() if hasattr(plain, "tolist") else plain


def key_of(name: Any) -> str:
    """The name that JSON gives a key of a mapping."""
    return json.dumps(name) if name is None or isinstance(name, (bool, float)) else str(name)


def is_listed(answer: Any, rows: int) -> bool:
    """Whether an answer to several rows is a list of arrays that each have them all, and so none of an item per row."""
    several = isinstance(answer, (list, tuple)) and 1 < rows != len(answer) > 0
    return several and all(_length(item) == rows for item in answer)


def _length(item: Any) -> int:
    """How many rows a part of a list has; -1: it is not an array."""
    shape: tuple[int, ...] = getattr(item, "shape", ())
    return shape[0] if shape else len(item) if isinstance(item, (list, tuple)) else -1


def _json_rows(name: str, value: Any, rows: int) -> Any:
    """Each row's value as JSON, (rows,)."""
    listed = isinstance(value, (list, tuple))
    array = _single(*value) if listed and len(value) == rows else _array(name, value, rows)
    return _written(name, array)


def _json_row(name: str, value: Any) -> Any:
    """A value as the JSON of one row, (1,)."""
    return _written(name, [_plain(value)])


def _written(name: str, items: Any) -> Any:
    try:
        return _as_json([_dated(item.tolist() if hasattr(item, "tolist") else item) for item in items])
    except TypeError as error:
        raise _no_value(name, error) from None


def _as_json(items: list[Any]) -> Any:
    """Values as JSON, (values,); NaN is not missing there, and MLflow's server writes it as it is."""
    found = texts([_lines(item) if isinstance(item, (bytes, bytearray)) else item for item in items], _ANY, _encoded)
    for at, item in enumerate(items):
        if isinstance(item, float) and is_missing(item):
            found[at] = "NaN"
    return found


def _encoded(value: Any) -> Any:
    """What MLflow's server writes for a value within JSON that JSON lacks, and more than it writes: data classes."""
    import numpy as np  # noqa: PLC0415 - from the environment

    if isinstance(value, (bytes, bytearray)):
        return _lines(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if hasattr(value, "model_dump"):
        dumped = value.model_dump()
        try:
            json.dumps(dumped, default=_encoded)
        except TypeError:
            return value.model_dump(mode="json")
        return dumped
    return as_json(value)


def _lines(value: bytes | bytearray) -> str:
    return base64.encodebytes(value).decode("ascii")


def _row(name: str, value: Any) -> tuple[str, Any]:
    """A value without an axis of rows as what it holds, and the tensor's one row of it, (1, ...)."""
    import numpy as np  # noqa: PLC0415 - from the environment

    value = _plain(value)
    if isinstance(value, (list, tuple)):
        array = _objects(value) if len(value) else None
    elif isinstance(value, np.ndarray):
        array = value if value.size else None
    else:
        array = _single(value).reshape(())
    if array is None:
        return _JSON, _json_row(name, value)
    return _typed(name, array[None])


def _plain(value: Any) -> Any:
    """A value of another library as an array, and an array of a kind that no tensor has as what MLflow writes."""
    import numpy as np  # noqa: PLC0415 - from the environment

    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if hasattr(value, "toarray"):
        return value.toarray()
    if hasattr(value, "isna") and not isinstance(value.dtype, np.dtype) and value.isna().any():
        return value.to_numpy(dtype=object)  # pandas would write NaN for NA
    if isinstance(value, (np.ndarray, np.generic)) and (
        isinstance(value, np.ma.MaskedArray) or value.dtype.kind in "mMV"
    ):
        return value.tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping, list, tuple)) or not hasattr(value, "__array__"):
        return value
    return value if hasattr(value, "model_dump") else np.asarray(value)


def _typed(name: str, array: Any) -> tuple[str, Any]:
    """What an array holds (empty: it is all missing), and the array that Triton carries."""
    if array.dtype.kind in "OS":
        try:
            return _of_objects(array.astype(object))
        except TypeError as error:
            raise _no_value(name, error) from None
    if array.dtype.kind == "M":
        return _TEXTS, texts(map(_dated, array.reshape(-1))).reshape(array.shape)
    if array.dtype.kind == "U":
        return _TEXTS, array.astype(str).astype(object)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise Unservable(f"predict answered {name!r} of type {array.dtype}, which Triton can't carry")
    if array.dtype.kind == "f" and array.size and (array != array).all():  # noqa: PLR0124 - only NaN is not itself
        return "", array.astype(array.dtype.newbyteorder("="))
    return _BOOLEANS if array.dtype.kind == "b" else _NUMBERS, array.astype(array.dtype.newbyteorder("="))


def _dated(item: Any) -> Any:
    """The same, or the text that MLflow's server writes for a missing date."""
    return _NAT if type(item).__name__ in ("NaTType", "datetime64") and str(item) == _NAT else item


def _no_value(name: str, error: TypeError) -> Unservable:
    return Unservable(f"predict answered a value as {name!r} that is neither a number nor text: {error}")


def _of_objects(array: Any) -> tuple[str, Any]:
    """Objects as what they are, if all are of one type, or else as JSON. What is missing among them is of any type."""
    import numpy as np  # noqa: PLC0415 - from the environment

    items = list(map(_dated, array.reshape(-1).tolist()))
    known = [item for item in items if not is_missing(item)]
    if known and len(known) == len(items) and all(isinstance(item, (list, tuple, np.ndarray)) for item in known):
        return _of_lists(array, items)
    kind = _kind_of(known)
    if kind in (_TEXTS, _BYTES, _JSON):
        return kind, (_as_json(items) if kind == _JSON else texts(items)).reshape(array.shape)
    if kind and len(known) == len(items):
        plain = np.asarray([float(each) if hasattr(each, "as_tuple") else each for each in items])
    else:
        plain = np.array([none_number() if is_missing(item) else float(item) for item in items])
        for at, item in enumerate(items):
            if isinstance(item, float) and is_missing(item):
                plain[at] = item
    return kind, plain.reshape(array.shape)


def _of_lists(array: Any, items: list[Any]) -> tuple[str, Any]:
    """Lists in an array of objects as further axes, if they are of one length and of one type."""
    import numpy as np  # noqa: PLC0415 - from the environment

    try:
        inner = np.asarray(items)
    except ValueError:
        return _JSON, _as_json(items).reshape(array.shape)
    kind, typed = (_JSON, inner) if inner.dtype.kind in "OS" or _mixed(items, inner) else _typed("", inner)
    if kind == _JSON:
        return _JSON, _as_json(items).reshape(array.shape)
    return kind, typed.reshape((*array.shape, *inner.shape[1:]))


def _kind_of(known: list[Any]) -> str:
    """What values that are not missing are, all of them; empty if there are none."""
    import numpy as np  # noqa: PLC0415 - from the environment

    logical = [isinstance(item, (bool, np.bool_)) for item in known]
    if all(logical):
        return _BOOLEANS if known else ""
    if not any(logical) and all(isinstance(item, _numbers()) for item in known):
        exact = all(abs(int(item)) <= _EXACT for item in known if isinstance(item, (int, np.integer)))
        return _NUMBERS if exact or np.asarray(known).dtype.kind in "iu" else _JSON
    if all(isinstance(item, (bytes, bytearray)) for item in known):
        return _BYTES
    return _TEXTS if all(_textual(item) for item in known) else _JSON


def _textual(item: Any) -> bool:
    """Whether it is a text, bytes or a date: what is a text in MLflow's JSON."""
    return (
        isinstance(item, (str, bytes, bytearray)) or hasattr(item, "isoformat") or type(item).__name__ == "datetime64"
    )


def _numbers() -> tuple[type, ...]:
    import decimal  # noqa: PLC0415 - only for objects

    import numpy as np  # noqa: PLC0415 - from the environment

    return (bool, int, float, np.number, np.bool_, decimal.Decimal)


def _array(name: str, value: Any, rows: int) -> Any:
    """A value as an array that begins with the rows."""

    value = _plain(value)
    if _several_whole(value) and rows == 1:
        raise Unservable(
            f"predict answered {len(value)} arrays as {name!r}, each with a row per sample, instead of one"
        )
    array = _objects(value) if isinstance(value, (list, tuple)) else _as_array(value)
    if array.ndim and len(array) == rows:
        return array
    count = f"{len(array)} rows" if array.ndim else "a single value"
    raise Unservable(f"predict answered {count} as {name!r} to {rows} samples, not one row per sample")


def _as_array(value: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - from the environment

    single = isinstance(value, (str, bytes, bytearray, Mapping)) or hasattr(value, "model_dump")
    return _single(value).reshape(()) if single else np.asarray(value)


def _whole(item: Any) -> bool:
    """Whether it is an array, or a sparse matrix, with one row."""
    shape: tuple[int, ...] = getattr(item, "shape", ())
    return bool(shape) and shape[0] == 1


def _objects(value: Any) -> Any:
    """A list as an array; one of mappings, of lists of several lengths, or of several types, is one of objects."""
    import numpy as np  # noqa: PLC0415 - from the environment

    try:
        array = np.asarray(value)
    except ValueError:
        return _single(*value)
    if array.dtype.kind in "mM":
        return _single(*array.tolist())
    lossy = array.dtype.kind == "S"  # such an array would lose zeros at the end
    return _single(*value) if lossy or _mixed(value, array) else array


def _mixed(value: Any, array: Any) -> bool:
    """Whether NumPy made values of several types one: numbers text, booleans numbers, or large whole numbers floats."""
    import numpy as np  # noqa: PLC0415 - from the environment

    if array.dtype.kind not in "Uiuf":
        return False
    kinds = set(map(type, _leaves(value)))
    if array.dtype.kind == "U":
        return not kinds <= {str, np.str_}  # NumPy would write the name of an enumeration's member
    if len(kinds) > 1 and kinds & {bool, np.bool_}:
        return True
    large = array.dtype.kind == "f" and any(issubclass(kind, (int, np.integer)) for kind in kinds)
    return large and any(abs(int(item)) > _EXACT for item in _leaves(value) if isinstance(item, (int, np.integer)))


def _leaves(value: Any) -> Iterator[Any]:
    import numpy as np  # noqa: PLC0415 - from the environment

    for item in value:
        if isinstance(item, (list, tuple)):
            yield from _leaves(item)
        elif isinstance(item, np.ndarray):
            yield from item.flat[:1]  # the others are of its type
        else:
            yield item


def _single(*items: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - from the environment

    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
