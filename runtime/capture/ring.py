"""The ring between a serving process and the process that writes files: `backends/capture/ring.h` describes it.

The server may have been taken over by a model, so nothing that it wrote is believed: the file is read, never mapped,
since a shorter file would end this process; and a record that makes no sense ends the reading of the ring until it is
emptied.
"""

import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays

FOLDER = "/tmp/shiplift-capture"  # noqa: S108 - the server's private /tmp, as in backends/capture/capture.c
MAGIC = 0x32676E6972707073
HEADER = 4096
CAPACITY = 16 << 20
_FIELDS = struct.Struct("<7QIIQ")
_TAIL, _SHARE, _UNTIL = 24, 56, 64
_RECORD, _ENTRY = struct.Struct("<IIQqIIQ"), struct.Struct("<BBHIQ")
_FILLING, _READY, _SKIPPED = 0, 1, 2
_RANK_MOST, _ENTRIES_MOST, _NAME_MOST = 32, 2048, 1024
_WHOLE_SHARE = 2**32
# By Triton's number of a data type.
_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("bool"),
    2: np.dtype("u1"),
    3: np.dtype("<u2"),
    4: np.dtype("<u4"),
    5: np.dtype("<u8"),
    6: np.dtype("i1"),
    7: np.dtype("<i2"),
    8: np.dtype("<i4"),
    9: np.dtype("<i8"),
    10: np.dtype("<f2"),
    11: np.dtype("<f4"),
    12: np.dtype("<f8"),
    13: np.dtype(object),
    14: np.dtype("<u2"),  # bfloat16's bits
}


class RingBroken(ValueError):
    """A ring contains what no server writes."""


@dataclass(frozen=True, kw_only=True)
class CapturedRequest:
    """A captured request and its answer: arrays by name, rows first. `at` is in microseconds since the epoch.

    `failed`: the answer was an error, so that there are no outputs. `took_us` is from when the server had the request
    until the first answer.
    """

    at: int
    version: int
    failed: bool
    took_us: int = 0
    inputs: Arrays = field(default_factory=dict)
    outputs: Arrays = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RingCounters:
    """What a server counted in requests: captured, dropped for want of room, and too large for the ring."""

    captured: int = 0
    dropped: int = 0
    too_large: int = 0


class Ring:
    """A model's ring in a server's folder, opened for reading and for the share; made if it is missing."""

    def __init__(self, folder: int, name: str, capacity: int = CAPACITY, *, reader: str = "") -> None:
        """`folder` is the descriptor of the folder of rings, in the server's private /tmp.

        The process that writes files has a model's own ring; any other `reader` has one that is named after it.

        Raises:
            OSError: the server has gone.
            RingBroken: what is there is no ring.
        """
        self._share = -1
        self._file = _opened(folder, f"{name}{reader and f'@{reader}'}.ring", capacity)
        try:
            self.capacity = os.fstat(self._file).st_size - HEADER
            magic, known, *_ = self._header()
            if magic != MAGIC or known != self.capacity or self.capacity <= 0:
                raise RingBroken(f"{name}.ring is not a ring")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    @property
    def identity(self) -> str:
        """What tells this ring from every other, also after a restart of the server."""
        entry = os.fstat(self._file)
        return f"{entry.st_dev}-{entry.st_ino}-{self._header()[8]}"

    def set_share(self, share: float) -> None:
        """Sets the share of requests that is captured from now on; 0 for none."""
        part = min(_WHOLE_SHARE - 1, round(share * _WHOLE_SHARE))
        part = max(part, 1 if share > 0 else 0)
        if part != self._share:
            self._share = part
            os.pwrite(self._file, struct.pack("<I", part), _SHARE)

    def keep_open(self, seconds: float) -> None:
        """Captures for so long from now on at most, unless this is called again, whatever becomes of this process."""
        until = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 + round(seconds * 1_000_000)
        os.pwrite(self._file, struct.pack("<Q", until), _UNTIL)

    def counters(self) -> RingCounters:
        """What the server counted since it started."""
        _, _, _, _, captured, dropped, too_large, *_ = self._header()
        return RingCounters(captured=captured, dropped=dropped, too_large=too_large)

    @property
    def head(self) -> int:
        """Where the server writes next."""
        return int(self._header()[2])

    @property
    def tail(self) -> int:
        """Where the first record begins that was not kept yet."""
        return int(self._header()[3])

    def records(self, most_bytes: int) -> tuple[list[CapturedRequest], int]:
        """The records that wait, and the tail after them; a record that is still being written ends them.

        Raises:
            RingBroken: a record makes no sense.
        """
        found, after = self.waiting(most_bytes)
        return [_parsed(record) for record in found], after

    def waiting(self, most_bytes: int) -> tuple[list[bytes], int]:
        """As `records`, but as the server wrote them: `requests_in` reads them, in another process too.

        Raises:
            RingBroken: what is there is no record.
        """
        head, tail = self.head, self.tail
        if head < tail or head - tail > self.capacity:
            raise RingBroken(f"the server wrote from {tail} to {head} in a ring of {self.capacity}")
        found: list[bytes] = []
        at = tail
        while at < head and at - tail < most_bytes:
            place = at % self.capacity
            state, size, *_ = self._start(place)
            if state == _FILLING:
                break
            if size < 8 or size % 8 or size > min(self.capacity - place, head - at):
                raise RingBroken(f"a record has {size} bytes")
            if state not in (_READY, _SKIPPED):
                raise RingBroken(f"a record has the state {state}")
            if state == _READY:
                found.append(os.pread(self._file, size, HEADER + place))
            at += size
        return found, at

    def advance(self, tail: int) -> None:
        """Gives the server the room before `tail`: what was there is kept."""
        os.pwrite(self._file, struct.pack("<Q", tail), _TAIL)

    def empty(self) -> int:
        """Skips everything that waits; returns its bytes."""
        head, tail = self.head, self.tail
        self.advance(head)
        return max(0, head - tail)

    def _header(self) -> tuple[int, ...]:
        return _FIELDS.unpack(os.pread(self._file, _FIELDS.size, 0))

    def _start(self, place: int) -> tuple[int, int]:
        state, size = struct.unpack("<II", os.pread(self._file, 8, HEADER + place))
        return state, size


def _opened(folder: int, name: str, capacity: int) -> int:
    """The ring's file: made whole under another name first, so that a server never sees half of one."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        partial = f".{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=folder)
        file = os.open(partial, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
        os.posix_fallocate(file, 0, HEADER + capacity)
        os.pwrite(file, _FIELDS.pack(MAGIC, capacity, 0, 0, 0, 0, 0, 0, int.from_bytes(os.urandom(4)), 0), 0)
        os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    if not S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise RingBroken(f"{name} is not a file")
    return file


def requests_in(body: bytes) -> Iterator[CapturedRequest]:
    """The requests in records that follow one another, as `Ring.waiting` gives them.

    Raises:
        RingBroken: a record makes no sense.
    """
    place = 0
    while place < len(body):
        state, size = struct.unpack_from("<II", body, place) if place + 8 <= len(body) else (_FILLING, 0)
        if state != _READY or size < 8 or size % 8 or place + size > len(body):
            raise RingBroken(f"a record has {size} bytes and the state {state}")
        yield _parsed(body[place : place + size])
        place += size


def _parsed(record: bytes) -> CapturedRequest:
    """A request out of a whole record.

    Raises:
        RingBroken: it makes no sense.
    """
    try:
        _, _, at, version, failed, count, took = _RECORD.unpack_from(record)
        if count > _ENTRIES_MOST:
            raise RingBroken(f"a record has {count} tensors")
        sides: tuple[Arrays, Arrays] = ({}, {})
        for answer, name, array in _entries(record, count):
            sides[bool(answer)][name] = array
    except (struct.error, ValueError, OverflowError) as error:
        raise RingBroken(f"a record can't be read: {error}") from error
    return CapturedRequest(at=at, version=version, failed=bool(failed), took_us=took, inputs=sides[0], outputs=sides[1])


def _entries(record: bytes, count: int) -> Iterator[tuple[int, str, NDArray[Any]]]:
    place = _RECORD.size
    for _ in range(count):
        answer, kind, length, rank, size = _ENTRY.unpack_from(record, place)
        place += _ENTRY.size
        if rank > _RANK_MOST or length > _NAME_MOST or kind not in _TYPES:
            raise RingBroken("a tensor makes no sense")
        shape = struct.unpack_from(f"<{rank}q", record, place)
        if min(shape, default=0) < 0:
            raise RingBroken("a tensor has a negative shape")
        place += 8 * rank
        name = record[place : place + length].decode(errors="replace")
        place += _padded(length)
        body = record[place : place + size]
        if len(body) != size:
            raise RingBroken("a tensor is longer than its record")
        place += _padded(size)
        yield answer, name, _array(body, _TYPES[kind], shape)


def _array(body: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype.kind != "O":
        return np.frombuffer(body, dtype).reshape(shape)
    texts, place = [], 0
    while place < len(body):
        (size,) = struct.unpack_from("<I", body, place)
        place += 4 + size
        if place > len(body):
            raise RingBroken("a text is longer than its tensor")
        texts.append(body[place - size : place])
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8
