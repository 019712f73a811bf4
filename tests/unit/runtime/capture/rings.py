"""What the library in a server does with a ring, for tests of those who read it."""

import struct
from pathlib import Path

from shiplift.runtime.capture.ring import HEADER

CAPACITY = 1 << 16
NOW = 1_800_000_000.0


class Server:
    """A server with a ring of the model `m`, which someone else made."""

    def __init__(self, rings: Path) -> None:
        rings.mkdir(exist_ok=True)
        self.file = rings / "m.ring"

    def puts(self, email: bytes, amount: float, at: float = NOW, *, ready: bool = True) -> None:
        """Captures a request with an address, a name and an amount, and its answer."""
        entries = [entry(0, 13, b"email", struct.pack("<I", len(email)) + email)]
        entries += [
            entry(0, 13, b"name", struct.pack("<I", 3) + b"Ada"),
            entry(0, 12, b"amount", struct.pack("<d", amount)),
        ]
        entries += [entry(1, 11, b"score", struct.pack("<f", 0.5))]
        body = b"".join(entries)
        size = 40 + len(body)
        record = struct.pack("<IIQqIIQ", int(ready), size, int(at * 1e6), 3, 0, len(entries), 0) + body
        self.raw(record)

    def raw(self, record: bytes) -> None:
        """Writes any bytes as a record."""
        with self.file.open("r+b") as file:
            file.seek(16)
            head, _ = struct.unpack("<QQ", file.read(16))
            file.seek(HEADER + head % CAPACITY)
            file.write(record)
            file.seek(16)
            file.write(struct.pack("<Q", head + len(record)))

    def counts(self, *, captured: int, dropped: int, too_large: int) -> None:
        """Sets the counters of the ring."""
        with self.file.open("r+b") as file:
            file.seek(32)
            file.write(struct.pack("<QQQ", captured, dropped, too_large))


def entry(answer: int, kind: int, name: bytes, body: bytes) -> bytes:
    """A tensor of one value."""

    def whole(part: bytes) -> bytes:
        return part.ljust((len(part) + 7) // 8 * 8, b"\0")

    return (
        struct.pack("<BBHIQ", answer, kind, len(name), 1, len(body)) + struct.pack("<q", 1) + whole(name) + whole(body)
    )
