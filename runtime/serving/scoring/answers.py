"""Served tensors in the form in which MLflow's scoring server would write pyfunc's answer."""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.guest.python.values import MISSING, is_none
from shiplift.runtime.model.tensors import Arrays, text_of
from shiplift.runtime.records.scoring import AnswerForm, AnswerPart
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.serving.discovery import ServedModel


def form_of(served: ServedModel) -> AnswerForm:
    """The form of a served model's answer: as pyfunc was seen to answer, or as the logged outputs say."""
    specs = {spec.name: spec for spec in served.signature.outputs}
    seen = served.scoring.answer if served.scoring else None
    if seen and all(part.tensor in specs for part in seen.parts):
        return seen
    return _derived(served, list(specs.values()))


def body_of(form: AnswerForm, chunks: Sequence[Arrays], *, wrapped: bool = True) -> bytes:
    """The body of the answer, `wrapped` in the key `predictions`; `chunks` are the outputs of consecutive rows."""
    parts = [
        _bare(part, [each for chunk in chunks for each in _values(part, chunk[part.tensor])]) for part in form.parts
    ]
    answer = _put_together(form, parts)
    return json.dumps({"predictions": answer} if wrapped else answer).encode()


def value_of(form: AnswerForm, chunks: Sequence[Arrays]) -> Any:
    """The answer for programs: an array, a list of arrays, a data frame, or arrays by name; `chunks` are as above."""
    arrays = arrays_of(form, chunks)
    named = {part.name: _bare(part, _read(part, arrays[part.name])) for part in form.parts}
    if form.kind == "array":
        return named[form.parts[0].name]
    if form.kind == "list":
        return list(named.values())
    if form.kind == "mapping":
        return named
    import pandas as pd  # noqa: PLC0415 - 0.5 s, only for answers that are data frames

    return pd.DataFrame({name: array if np.ndim(array) == 1 else list(array) for name, array in named.items()})


def is_split(served: ServedModel, form: AnswerForm, rows: int) -> bool:
    """Whether a request of so many rows is asked row by row although a part of the answer is about all of them."""
    return rows > 1 and served.signature.batch != -1 and any(part.axis == "whole" for part in form.parts)


def arrays_of(form: AnswerForm, chunks: Sequence[Arrays]) -> Arrays:
    """The answer's parts by their names, with rows along the first axis; texts are `str`."""
    return {part.name: np.concatenate([_array(part, chunk[part.tensor]) for chunk in chunks]) for part in form.parts}


def _bare(part: AnswerPart, values: Any) -> Any:
    """A part's values as pyfunc has them, which may lack the axis of rows; a whole part is the same for each row."""
    return values[0] if part.axis == "whole" or (part.axis == "squeezed" and len(values) == 1) else values


def _read(part: AnswerPart, array: NDArray[Any]) -> NDArray[Any]:
    """A part's array with the values that JSON or base64 stands for."""
    if part.holds not in _READ:
        return array
    read = _decoded if part.holds == "json" else _bytes
    values = np.empty(array.shape, object)
    values.ravel()[:] = [read(item) for item in array.ravel()]
    return values


def _put_together(form: AnswerForm, parts: list[list[Any]]) -> Any:
    if form.kind == "array":
        return parts[0]
    if form.kind == "list":
        return parts
    names = [part.name for part in form.parts]
    if form.kind == "mapping":
        return dict(zip(names, parts, strict=True))
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _values(part: AnswerPart, array: NDArray[Any]) -> list[Any]:
    """A part's values, one for each row."""
    array = _shaped(part, array)
    if array.dtype.kind == "O":
        return _texts(array.tolist(), _READ.get(part.holds, _text))
    if array.dtype.kind != "f":
        return list(array.tolist())
    logical = part.holds == "booleans"
    missing = np.isnan(array) if logical else is_none(array)
    if not logical and not missing.any():
        return list(array.tolist())
    values = (array != 0 if logical else array).astype(object)
    values[missing] = None
    return list(values.tolist())


def _array(part: AnswerPart, array: NDArray[Any]) -> NDArray[Any]:
    """A part's values as an array; texts are `str`."""
    array = _shaped(part, array)
    if array.dtype.kind != "O":
        return array
    texts = np.empty(array.shape, object)
    texts.ravel()[:] = [_text(item) for item in array.ravel()]
    return texts


def _shaped(part: AnswerPart, array: NDArray[Any]) -> NDArray[Any]:
    """The part of a tensor that is the part's, with as many axes as pyfunc's."""
    if part.column >= 0:
        array = array.reshape(len(array), -1)[:, part.column]
    if part.rank < array.ndim and math.prod(array.shape[part.rank :]) == 1:
        array = array.reshape(array.shape[: part.rank])
    return array


def _texts(values: list[Any], read: Callable[[Any], Any]) -> list[Any]:
    return [_texts(item, read) if isinstance(item, list) else read(item) for item in values]


def _decoded(item: Any) -> Any:
    """The value of a text that is JSON; one that is none stands for itself."""
    text = _text(item)
    try:
        return None if text is None else json.loads(text)
    except (RecursionError, ValueError):
        return text


def _bytes(item: Any) -> bytes | None:
    """The bytes of a text in base64."""
    text = _text(item)
    return None if text is None else base64.b64decode(text)


def _lines(item: Any) -> str | None:
    """A text in base64 with the line ends that MLflow's server gives it."""
    read = _bytes(item)
    return None if read is None else base64.encodebytes(read).decode()


_READ: Mapping[str, Callable[[Any], Any]] = {"json": _decoded, "bytes": _lines}


def _text(item: Any) -> str | None:
    """A text; None in place of one that is missing."""
    if item is None:
        return None
    text = text_of(item, errors="replace")
    return None if text == MISSING else text


def _derived(served: ServedModel, specs: list[TensorSpec]) -> AnswerForm:
    """The form of a model whose pyfunc was not asked, as of most texts and images."""
    logged = _logged_outputs(served)
    by_name = {spec.name: spec for spec in specs}
    if len(logged) > 1 and set(logged) <= set(by_name):
        kind = "mapping" if all(logged.values()) else "records"
        parts = [
            AnswerPart(name=name, tensor=name, rank=_rank(by_name[name], flat=not logged[name])) for name in logged
        ]
        return AnswerForm(kind=kind, parts=tuple(parts))
    return AnswerForm(kind="array", parts=(AnswerPart(tensor=specs[0].name, rank=_rank(specs[0], flat=True)),))


def _logged_outputs(served: ServedModel) -> dict[str, bool]:
    """The names of the logged outputs, and whether each is a tensor."""
    text = served.scoring.outputs if served.scoring else ""
    try:
        return {str(entry.get("name") or ""): entry.get("type") == "tensor" for entry in json.loads(text or "[]")}
    except (AttributeError, TypeError, ValueError):
        return {}


def _rank(spec: TensorSpec, *, flat: bool) -> int:
    return 1 if flat and spec.shape[1:] == (1,) else len(spec.shape)
