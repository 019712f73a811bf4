"""How tensors travel between a pipeline and the processes that run its author's Python.

A message is a JSON header, preceded by its length, and then the bytes of the tensors. A small message travels through
Triton and a pipe. A large one is written to a file in shared memory, and only its path travels.

Process: Triton's Python backend, as `pipeline_messages.py`; the worker's own process.
Python: the server's
Packages: numpy
"""

import contextlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, Any]
Buffer = bytes | bytearray | memoryview

INLINE_BYTES = 64 << 10  # larger messages go through shared memory
MOST_BYTES = 1 << 30  # of one message
SHARED_MEMORY = "/dev/shm"  # noqa: S108 -- the server's own
_ALIGNED = 64  # tensors start at multiples of this, for vector instructions
_LENGTH = struct.Struct("<I")
PREFIX_BYTES = _LENGTH.size  # precedes a message in a pipe
_KINDS: dict[str, type[Any]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


class Broken(Exception):
    """A message is cut off, too large, or makes no sense."""


def datatype(array: NDArray[Any]) -> str | None:
    """The Triton datatype of an array, or None."""
    if array.dtype.kind in "OSU":
        return "BYTES"
    return next((name for name, kind in _KINDS.items() if array.dtype == kind), None)


def packed(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> list[Buffer]:
    """A message as consecutive buffers: `header`, and the arrays by name."""
    bodies = [_packed(array) for array in arrays.values()]
    tensors: list[dict[str, Any]] = []
    at = 0
    for (name, array), body in zip(arrays.items(), bodies):
        tensors.append(
            {"name": name, "datatype": datatype(array), "shape": list(array.shape), "at": at, "bytes": len(body)}
        )
        at += len(body) + -len(body) % _ALIGNED
    text = json.dumps({**header, "tensors": tensors}).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNED)
    buffers: list[Buffer] = [_LENGTH.pack(len(text)), text]
    for body in bodies:
        buffers += [body, bytes(-len(body) % _ALIGNED)]
    return buffers


def size(buffers: Sequence[Buffer]) -> int:
    """The bytes of a message."""
    return sum(map(len, buffers))


def unpacked(message: Any) -> tuple[dict[str, Any], Arrays]:
    """The header of a message and its arrays by name. `message` has bytes; arrays of numbers are views of it.

    Raises:
        Broken: the message makes no sense.
    """
    view = memoryview(message).cast("B")
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(view)[0]
        header = json.loads(bytes(view[_LENGTH.size : start]))
        arrays: Arrays = {}
        for tensor in header.pop("tensors"):
            at, count = start + tensor["at"], tensor["bytes"]
            if not (start <= at and count >= 0 and at + count <= len(view)):
                raise Broken(f"a tensor is outside of its message of {len(view)} bytes")
            arrays[tensor["name"]] = _unpacked(tensor["datatype"], view[at : at + count]).reshape(tensor["shape"])
    except Broken:
        raise
    except Exception as error:  # the sender may be hostile
        raise Broken(f"{type(error).__name__}: {error}") from error
    return header, arrays


def write_shared(path: str, buffers: Sequence[Buffer]) -> int:
    """Writes a message into a file in shared memory, which may exist already; returns its size.

    A file is used repeatedly: the first use of a memory page costs a process more than copying into it.

    Raises:
        OSError: shared memory has no room.
        Broken: the message is too large.
    """
    total = size(buffers)
    if total > MOST_BYTES:
        raise Broken(f"a message of {total} bytes, the limit is {MOST_BYTES}")
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if os.fstat(file).st_size < total:
            os.posix_fallocate(file, 0, total)  # reserves the pages: without room, writing would kill the process
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                view = view[os.write(file, view) :]
    finally:
        os.close(file)
    return total


def read_shared(path: str, total: int) -> NDArray[np.uint8]:
    """The message of `total` bytes in a file, as a copy, so that the next writer can't change it.

    Raises:
        Broken: the file is too short.
        OSError: there is no such file.
    """
    message = np.empty(total, np.uint8)
    view, at = message.data, 0
    with open(path, "rb", buffering=0) as file:
        while at < total:
            read = file.readinto(view[at:])
            if not read:
                raise Broken("a message is cut off")
            at += read
    return message


def remove(path: str) -> None:
    """Removes a file in shared memory, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def send(stream: IO[bytes], buffers: Sequence[Buffer]) -> None:
    """Writes a message into a pipe, preceded by its length."""
    stream.write(_LENGTH.pack(size(buffers)))
    for buffer in buffers:
        stream.write(buffer)
    stream.flush()


def length(prefix: Buffer) -> int:
    """The length of the message that follows the prefix.

    Raises:
        Broken: the message is too large for a pipe.
    """
    count: int = _LENGTH.unpack(prefix)[0]
    if count > 4 * INLINE_BYTES:
        raise Broken(f"a message of {count} bytes, the limit is {4 * INLINE_BYTES}")
    return count


def _packed(array: NDArray[Any]) -> Buffer:
    if datatype(array) != "BYTES":
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    texts = [item if isinstance(item, bytes) else str(item).encode() for item in array.ravel().tolist()]
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def _unpacked(kind: str, body: memoryview) -> NDArray[Any]:
    if kind != "BYTES":
        return np.frombuffer(body, dtype=_KINDS[kind])
    texts, at = [], 0
    while at < len(body):
        (count,) = _LENGTH.unpack_from(body, at)
        if at + _LENGTH.size + count > len(body):
            raise Broken("a text is cut off")
        texts.append(bytes(body[at + _LENGTH.size : at + _LENGTH.size + count]))
        at += _LENGTH.size + count
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array
