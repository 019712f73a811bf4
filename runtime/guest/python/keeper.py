"""Keeps a model apart after its process has ended: pauses before the next one starts, and requests that it died of.

It does for models in Python what `backends/common/pauses.h` does for graphs. How often and why a process ended, and how
long nobody starts the next one, stands in a file of the server's own /tmp. All instances of a model share it, and
whoever watches the server reads it.

Process: Triton's Python backend, as `python_host/keeper.py`.
Python: the server's
Packages: none
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
HEALTHY_S = 3600.0  # after so long without a crash, the next one counts as the first
GUILTY = 2  # times that the process died of a request before it is refused
_MOST_SUSPECTS, _MOST_TEXT = 64, 1000
STATES = Path("/tmp/shiplift-workers")  # noqa: S108 - the server's own


class Keeper:
    """The crashes of a model, as one of its instances knows them. Times are in seconds since the epoch."""

    def __init__(
        self, model: str, version: int, *, folder: Path = STATES, clock: Callable[[], float] = time.time
    ) -> None:
        self._model, self._version, self._clock = model, version, clock
        self._file = folder / f"{model}-{version}.json"
        self._paused_until, self._why = 0.0, ""
        self._suspects: dict[bytes, tuple[int, float]] = {}  # the crashes and the last one's time; the oldest first
        self._key = os.urandom(16)

    def refusal(self) -> str:
        """Why no process starts now; empty if one may."""
        left = self.left_s()
        return f"the model's worker {self._why}: it starts again in {left:.0f} s" if left > 0 else ""

    def left_s(self) -> float:
        """The rest of the pause in seconds; 0 or less if there is none. It is the same for all instances."""
        self._look()
        return self._paused_until - self._clock()

    def crashed(self, why: str, lines: str = "") -> None:
        """Notes that the process ended; `lines` are the last that it printed."""
        now = self._clock()
        with self._locked():
            before = self._read()
            recent = before if now - before.get("at", 0.0) <= HEALTHY_S else {}
            crashes = recent.get("crashes", 0) + 1
            pause = min(FIRST_PAUSE_S * 2.0 ** min(crashes - 1, 16), LONGEST_PAUSE_S)
            self._write({"crashes": crashes, "at": now, "pause_s": pause, "why": _plain(why), "lines": _plain(lines)})
        self._paused_until, self._why = now + pause, why

    def forget(self) -> None:
        """Removes the file: the model is unloaded."""
        with contextlib.suppress(OSError):
            self._file.unlink()

    def _look(self) -> None:
        """Takes over the pause that another instance has noted."""
        noted = self._read()
        at, pause, why = (noted.get(name) for name in ("at", "pause_s", "why"))
        if not (isinstance(at, int | float) and isinstance(pause, int | float) and 0 <= pause <= LONGEST_PAUSE_S):
            return
        until = min(at, self._clock()) + pause
        if until > self._paused_until:
            self._paused_until, self._why = until, str(why)

    # --- requests --------------------------------------------------------------------------------------------------

    def digest(self, inputs: Mapping[str, Any]) -> bytes:
        """What a request is known by: its tensors by name, without what it has under "".

        Nobody can make two requests that share it.
        """
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        for name, array in sorted((name, array) for name, array in inputs.items() if name):
            body = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
            digest.update(f"{name} {array.dtype} {array.shape} {len(body)} ".encode())
            digest.update(body)
        return digest.digest()

    def crashes_of(self, inputs: Mapping[str, Any]) -> int:
        """How often the process died while it ran this request, if not long ago."""
        crashes, at = self._suspects.get(self.digest(inputs), (0, 0.0)) if self._suspects else (0, 0.0)
        return crashes if self._clock() - at <= HEALTHY_S else 0

    def suspect(self, requests: Sequence[Mapping[str, Any]]) -> None:
        """Notes that the process died while it ran these requests; equal ones count once."""
        for digest, inputs in {self.digest(inputs): inputs for inputs in requests}.items():
            crashes = self.crashes_of(inputs) + 1
            self._suspects.pop(digest, None)
            self._suspects[digest] = crashes, self._clock()
        while len(self._suspects) > _MOST_SUSPECTS:
            self._suspects.pop(next(iter(self._suspects)))

    def acquit(self, inputs: Mapping[str, Any]) -> None:
        """Notes that the process answered this request."""
        if self._suspects:
            self._suspects.pop(self.digest(inputs), None)

    # --- the file --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps the other instances of the model from the file. Without room for files, only this one knows."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(mode=0o700, exist_ok=True)
                fcntl.flock(stack.enter_context(self._file.with_suffix(".lock").open("w")), fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, state: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):
            partial = self._file.with_suffix(".new")
            partial.write_text(json.dumps({"model": self._model, "version": self._version, **state}))
            partial.replace(self._file)


def _plain(text: str) -> str:
    """The end of a text, as one line."""
    return " ".join(text.split())[-_MOST_TEXT:]
