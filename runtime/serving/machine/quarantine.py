"""Which models' workers have crashed in a server, and how: read from files that its backends keep for its watchers.

They are in the server's private /tmp, which is seen through its process. A model may have taken the server over, so
nothing is followed and little is read. Those files end with the server, so a version's quarantine is noted in the home:
a release that would serve the version again is told.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.base.text import printable
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.records.base import Record

QUARANTINED = 3  # crashes in a row
FOLDER = "tmp/shiplift-workers"
_LONGEST, _MOST = 8192, 1000
HEALTHY_S = 3600.0  # as in backends/common/pauses.h: the next crash then counts as the first


class Crashed(Record):
    """The crashes in a row of a model's worker: how many, and of the last one when (seconds since the epoch) and why.

    The worker starts again `pause_s` after that. `lines` are the last that it printed. `part` says what crashed.
    """

    model: str
    version: int
    crashes: int
    at: float = Field(ge=0, le=1e11)
    pause_s: float
    why: str
    lines: str = ""
    part: str = "worker"

    @property
    def told(self) -> str:
        """Why it ended last, and what it printed."""
        said = f"; it last said: {printable(self.lines).strip()}" if self.lines.strip() else ""
        return f"its {printable(self.part)} {printable(self.why)}{said}"

    def finding(self, now: float) -> str:
        """What to tell of it: nothing before the third crash, or when it has been healthy for long since."""
        if self.crashes < QUARANTINED or now - self.at > HEALTHY_S:
            return ""
        paused = self.at + self.pause_s - now
        soon = f"it starts again in {paused:.0f} s" if paused > 0 else "it was started again"
        return f"quarantined: crashed {self.crashes} times, {soon}: {self.told}"

    @property
    def past(self) -> str:
        """What to tell of it later."""
        on = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at))
        return f"it was quarantined: it crashed {self.crashes} times, the last time on {on}: {self.told}"


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


# --- what a home remembers -------------------------------------------------------------------------------------------

_NOTES = TypeAdapter(dict[str, Crashed])  # by version


def note_quarantined(home: Path, model: str, version: int, crash: Crashed) -> None:
    """Notes that a version of a model crashed so often that it was quarantined."""
    if crash.crashes >= QUARANTINED:
        write_atomically(_file(home, model), _NOTES.dump_json(_notes(home, model) | {str(version): crash}))


def quarantined(home: Path, model: str, version: int) -> str:
    """Why a version was quarantined here once; empty if it never was."""
    crash = _notes(home, model).get(str(version))
    return crash.past if crash else ""


def _notes(home: Path, model: str) -> dict[str, Crashed]:
    try:
        return _NOTES.validate_json(_file(home, model).read_bytes())
    except (FileNotFoundError, ValidationError):  # none, or truncated by a crash of the machine
        return {}


def _file(home: Path, model: str) -> Path:
    return home / "production" / "quarantined" / f"{serving_name(model)}.json"
