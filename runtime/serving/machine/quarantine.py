"""Which models' workers have crashed in a server, and how: read from files that its backends keep for its watchers.

They are in the server's private /tmp, which is seen through its process. A model may have taken the server over, so
nothing is followed and little is read.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from pydantic import ValidationError

from shiplift.runtime.base.text import printable
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.records.base import Record

QUARANTINED = 3  # crashes in a row
FOLDER = "tmp/shiplift-workers"
_LONGEST, _MOST = 8192, 1000
_HEALTHY_S = 3600.0  # as in backends/common/pauses.h: the next crash then counts as the first


class Crashed(Record):
    """The crashes in a row of a model's worker: how many, and of the last one when (seconds since the epoch) and why.

    The worker starts again `pause_s` after that. `lines` are the last that it printed.
    """

    model: str
    version: int
    crashes: int
    at: float
    pause_s: float
    why: str
    lines: str = ""

    def finding(self, now: float) -> str:
        """What to tell of it: nothing before the third crash, or when it has been healthy for long since."""
        if self.crashes < QUARANTINED or now - self.at > _HEALTHY_S:
            return ""
        paused = self.at + self.pause_s - now
        soon = f"it starts again in {paused:.0f} s" if paused > 0 else "it was started again"
        said = f"; it last said: {printable(self.lines).strip()}" if self.lines.strip() else ""
        return f"quarantined: crashed {self.crashes} times, {soon}: its worker {printable(self.why)}{said}"


def crashed(pid: int) -> tuple[Crashed, ...]:
    """The models whose workers have crashed in the confined server that was started as `pid`."""
    with suppress(OSError):
        folder = os.open(f"/proc/{worker(pid)}/root/{FOLDER}", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            return tuple(_read(folder))
        finally:
            os.close(folder)
    return ()


def _read(folder: int) -> Iterator[Crashed]:
    for name in sorted(os.listdir(folder))[:_MOST]:
        if name.endswith(".json"):
            with suppress(OSError, ValidationError):
                yield Crashed.model_validate_json(_body(folder, name))


def _body(folder: int, name: str) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return os.read(file, _LONGEST) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)
