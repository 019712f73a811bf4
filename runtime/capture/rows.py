"""Captured requests as rows of a table, with columns hashed or left out as the spec says.

A row has `at` (UTC), `version`, `failed`, `request` (rows of one request share it), and a column for each input and
output: `input/NAME` and `output/NAME`. A tensor of more than one value per row becomes a list, in row-major order.
Texts are strings, or binary if one of them is not UTF-8.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shiplift.runtime.capture.ring import CapturedRequest
from shiplift.runtime.records.capturing import Capturing

INPUT, OUTPUT = "input/", "output/"
OWN = (
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("version", pa.int64()),
    pa.field("failed", pa.bool_()),
    pa.field("request", pa.int64()),
)


def names(column: str, listed: Sequence[str]) -> bool:
    """Whether a column, such as `input/age`, is among those that a spec lists, as `age` or `input/age`."""
    return column in listed or column.partition("/")[2] in listed


def hashed(value: Any, secret: str) -> str:
    """A value's keyed hash: HMAC-SHA256 in hex. A number is hashed as it is written, so 17 is `17` and 0.5 is `0.5`."""
    return hmac.new(secret.encode(), _canonical(value), hashlib.sha256).hexdigest()


def hashed_text(text: str, secret: str) -> set[str]:
    """The hashes that a value may have that a person typed: as a text, as a whole number, and as a float."""
    found = {hashed(text.encode(), secret)}
    for kind in (int, float):
        try:
            found.add(hashed(kind(text), secret))
        except ValueError:
            continue
    return found


def _canonical(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return b"\0".join(_canonical(each) for each in value.ravel())
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    plain = value.item() if isinstance(value, np.generic) else value
    return repr(plain).encode()


def table(requests: Iterable[CapturedRequest], capturing: Capturing, secret: str, *, first: int = 0) -> pa.Table | None:
    """The requests as a table; None if there are none. The first one's `request` is `first`."""
    parts = [_part(request, first + at, capturing, secret) for at, request in enumerate(requests)]
    return joined(part for part in parts if part.num_rows)


def joined(parts: Iterable[pa.Table]) -> pa.Table | None:
    """Tables with the rows of all, and nulls where one lacks a column; None if there are none.

    A column whose type differs between them, such as that of a new version's input, becomes text.
    """
    tables = list(parts)
    if not tables:
        return None
    kinds: dict[str, set[pa.DataType]] = {}
    for each in tables:
        for column in each.schema:
            kinds.setdefault(column.name, set()).add(column.type)
    common = {name: _common(found) for name, found in kinds.items()}
    return pa.concat_tables([_cast(each, common) for each in tables], promote_options="default").combine_chunks()


def _common(found: set[pa.DataType]) -> pa.DataType:
    if len(found) == 1:
        return next(iter(found))
    if found <= {pa.string(), pa.binary()}:
        return pa.binary()
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in found):
        return pa.float64()
    return pa.string()


def _cast(part: pa.Table, common: dict[str, pa.DataType]) -> pa.Table:
    for at, column in enumerate(part.schema):
        if column.type != (kind := common[column.name]):
            part = part.set_column(at, column.name, _as(part.column(at), kind))
    return part


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.chunked_array([pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())])


def _part(request: CapturedRequest, number: int, capturing: Capturing, secret: str) -> pa.Table:
    rows = _rows(request)
    own: list[pa.Array] = [
        pa.array([min(request.at, 2**62)] * rows, pa.int64()).cast(OWN[0].type),
        pa.array([request.version] * rows, OWN[1].type),
        pa.array([request.failed] * rows, OWN[2].type),
        pa.array([number] * rows, OWN[3].type),
    ]
    columns = dict(zip((field.name for field in OWN), own, strict=True))
    for name, array in _named(request):
        if not names(name, capturing.omit):
            columns[name] = _column(array, rows, secret if names(name, capturing.hash) else "")
    return pa.table(columns)


def _named(request: CapturedRequest) -> Iterator[tuple[str, NDArray[Any]]]:
    yield from ((INPUT + name, array) for name, array in request.inputs.items())
    yield from ((OUTPUT + name, array) for name, array in request.outputs.items())


def _rows(request: CapturedRequest) -> int:
    """How many rows a request has: those of its tensors, if these agree, or else one."""
    counts = {array.shape[0] if array.ndim else -1 for _, array in _named(request)}
    return counts.pop() if len(counts) == 1 and -1 not in counts else 1


def _column(array: NDArray[Any], rows: int, secret: str) -> pa.Array:
    wide = array.reshape(rows, -1)
    single = wide.shape[1] == 1
    if secret:
        return pa.array([hashed(row[0] if single else row, secret) for row in wide], pa.string())
    if array.dtype == object:
        return _texts(wide, single=single)
    if single:
        return pa.array(wide[:, 0])
    values = pa.array(wide.ravel())
    offsets = np.arange(rows + 1, dtype=np.int32) * wide.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _texts(wide: NDArray[Any], *, single: bool) -> pa.Array:
    kind, texts = pa.string(), [list(row) for row in wide]
    try:
        for row in texts:
            row[:] = [text.decode() for text in row]
    except UnicodeDecodeError:
        kind, texts = pa.binary(), [list(row) for row in wide]
    if single:
        return pa.array([row[0] for row in texts], kind)
    return pa.array(texts, pa.list_(kind))
