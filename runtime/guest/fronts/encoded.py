"""What decoding an image file may cost, found out before and while it is decoded.

The time to decode a progressive JPEG grows with its scans, not with its bytes or pixels: each scan visits every block.
So scans are counted first, as libjpeg meets them, and so are the parts of a file, which Pillow reads one by one in
Python. Whatever else takes long is stopped between the pieces of the file at a limit of CPU time.

Process: Triton's Python backend or a process beside it, as `encoded.py`; Shiplift's sandbox.
Python: the server's
Packages: none
"""

import io
import re
import time
from collections.abc import Iterator

FORMATS = ("JPEG", "PNG")
MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
MOST_SCANS, MOST_PARTS, CPU_S = 100, 4096, 10.0
_USUAL_SCANS = 16  # what an image of the most pixels may have; encoders write about ten
_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7\x01]", re.DOTALL)
_START_OF_SCAN, _START, _END = 0xDA, 0xD8, 0xD9


class BadImage(ValueError):
    """An image that can't be taken; `str()` is for the client that sent it."""


class Metered(io.BytesIO):
    """A file whose reader gets `CPU_S` seconds of CPU time for it.

    `read` raises BadImage beyond that, in the thread that made this object.
    """

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._until = time.thread_time() + CPU_S

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes."""
        if time.thread_time() > self._until:
            raise BadImage(f"decoding the image took over {CPU_S:g} s of CPU time, the limit: send a smaller one")
        return super().read(size)


def scans_of(body: bytes) -> int:
    """The number of scans of a JPEG file; 1 for a PNG file.

    Raises:
        BadImage: it has too many of them, or too many parts.
    """
    parts = _png_parts(body) if body.startswith(MAGIC[1]) else _jpeg_parts(body)
    count = scans = 0
    for kind in parts:
        count, scans = count + 1, scans + (kind == _START_OF_SCAN)
        if scans > MOST_SCANS:
            raise BadImage(f"the image has over {MOST_SCANS} scans, the limit: save it as a usual JPEG file")
        if count > MOST_PARTS:
            raise BadImage(f"the image has over {MOST_PARTS} segments, the limit: save it without metadata")
    return max(scans, 1)


def check_work(scans: int, width: int, height: int, most_pixels: int) -> None:
    """Checks that an image of this size has no more scans than decoding in time allows.

    Raises:
        BadImage: it has.
    """
    most = max(_USUAL_SCANS, _USUAL_SCANS * most_pixels // max(width * height, 1))
    if scans > most:
        raise BadImage(f"the image has {scans} scans, the limit for {width} x {height} pixels is {most}")


def _jpeg_parts(body: bytes) -> Iterator[int]:
    """The markers of a JPEG file, in libjpeg's order: it skips what is between them, and what segments contain."""
    at = 0
    while marker := _MARKER.search(body, at):
        kind, at = body[marker.end() - 1], marker.end()
        if kind == _END:
            return
        yield kind
        if kind != _START:
            at += max(2, int.from_bytes(body[at : at + 2], "big"))


def _png_parts(body: bytes) -> Iterator[int]:
    """The chunks of a PNG file."""
    at = len(MAGIC[1])
    while at + 8 <= len(body):
        yield 0
        at += 12 + int.from_bytes(body[at : at + 4], "big")
