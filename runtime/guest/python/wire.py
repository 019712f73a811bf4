"""How a Python model's process and its host exchange arrays, although each has its own NumPy.

A message is the size of its header (8 bytes, little-endian), the header as JSON, and the raw bytes of its arrays. The
host trusts nothing that it receives.

Process: the model's own process, as `python_host/wire.py`; where its host runs.
Python: the model's
Packages: numpy
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

MAX_HEADER_BYTES, MAX_BYTES = 1 << 20, 512 << 20
_SIZE = 8
_TEXT = "text"
_CODES = ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
_TYPES = {np.dtype(code).str for code in _CODES}
Arrays = dict[str, Any]


class BadMessage(ValueError):
    """The bytes are not a message, or the message is too large."""


def pack(arrays: Mapping[str, Any] | None = None, **fields: Any) -> bytes:
    """A message with `arrays` by name, and other fields as JSON. Text is an array of objects, each a `str`."""
    bodies, entries = [], []
    for name, array in (arrays or {}).items():
        text = array.dtype.kind == "O"
        body = json.dumps(array.ravel().tolist()).encode() if text else np.ascontiguousarray(array).tobytes()
        kind = _TEXT if text else array.dtype.str
        entries.append({"name": name, "type": kind, "shape": list(array.shape), "bytes": len(body)})
        bodies.append(body)
    header = json.dumps({**fields, "arrays": entries}).encode()
    return b"".join([len(header).to_bytes(_SIZE, "little"), header, *bodies])


class Reader:
    """Takes the bytes of one message as they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._header: dict[str, Any] | None = None
        self._needed, self._body_at = _SIZE, 0

    @property
    def missing(self) -> int:
        """How many bytes are known to be missing; 0 if the message is complete."""
        return max(0, self._needed - len(self._buffer))

    def take(self, data: bytes) -> None:
        """Takes the next bytes, at most `missing` of them.

        Raises:
            BadMessage: they are not a message.
        """
        self._buffer += data
        if self.missing or self._header is not None:
            return
        if not self._body_at:
            size = int.from_bytes(self._buffer, "little")
            if not 0 < size <= MAX_HEADER_BYTES:
                raise BadMessage(f"it begins with a header of {size} bytes, the limit is {MAX_HEADER_BYTES}")
            self._needed = self._body_at = _SIZE + size
            return
        self._header = _header(bytes(self._buffer[_SIZE:]))
        self._needed += sum(entry["bytes"] for entry in self._header["arrays"])

    def message(self) -> tuple[dict[str, Any], Arrays]:
        """The fields, and the arrays by name.

        Raises:
            BadMessage: an array differs from the header.
        """
        if self._header is None or self.missing:
            raise BadMessage("it is not whole")
        arrays, at = {}, self._body_at
        for entry in self._header["arrays"]:
            arrays[entry["name"]] = _array(entry, self._buffer[at : at + entry["bytes"]])
            at += entry["bytes"]
        return {key: value for key, value in self._header.items() if key != "arrays"}, arrays


def _header(body: bytes) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(body)
        for entry in header["arrays"]:
            _check(entry)
        total = sum(entry["bytes"] for entry in header["arrays"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise BadMessage(f"its header makes no sense: {str(error)[:200]}") from error
    if total > MAX_BYTES:
        raise BadMessage(f"its arrays have {total} bytes, the limit is {MAX_BYTES}")
    return header


def _check(entry: dict[str, Any]) -> None:
    sizes = [*entry["shape"], entry["bytes"]]
    if not isinstance(entry["name"], str) or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        raise ValueError(f"array {str(entry)[:100]}")
    if entry["type"] != _TEXT and entry["type"] not in _TYPES:
        raise ValueError(f"an array has the type {str(entry['type'])[:40]}")
    if entry["type"] != _TEXT and math.prod(entry["shape"]) * np.dtype(entry["type"]).itemsize != entry["bytes"]:
        raise ValueError(f"an array has not the size of its shape: {str(entry)[:100]}")


def _array(entry: dict[str, Any], body: bytearray) -> Any:
    if entry["type"] != _TEXT:
        return np.frombuffer(body, entry["type"]).reshape(entry["shape"])  # writable, as any array
    try:
        texts = json.loads(body)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError("it holds no texts")
        array = np.empty(len(texts), object)
        array[:] = texts
        return array.reshape(entry["shape"])
    except (RecursionError, ValueError) as error:
        raise BadMessage(f"{entry['name'][:100]!r} can't be read: {str(error)[:200]}") from error
