"""Keeps all models' captured rows within their limits, and doubts a clock that jumps."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.capture.folder import CaptureFolder

_JUMP_S = 3600.0  # a clock that moves by more at once is not believed
_TRUST_S = 3600.0  # for as long


class Tidier:
    """Tidies the folders of `root`. `clock` is the wall clock, and `steady` one that never jumps."""

    def __init__(
        self, root: Path, *, clock: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._clock, self._steady = root, clock, steady
        self._seen: tuple[float, float] | None = None
        self._trusted_at = 0.0

    def watch_clock(self) -> None:
        """Notices a wall clock that jumps: until it has kept its time, no row is deleted for its age."""
        now = self._clock(), self._steady()
        if self._seen and abs((now[0] - self._seen[0]) - (now[1] - self._seen[1])) > _JUMP_S:
            self._trusted_at = now[1] + _TRUST_S
        self._seen = now

    def tidy(self) -> dict[str, str]:
        """Keeps every folder to its limits, also those of models that are captured no more; returns what failed."""
        failed = {}
        for folder in self._folders():
            try:
                folder.tidy(age=self._steady() >= self._trusted_at)
            except (ShipliftError, OSError) as error:
                failed[folder.path.name] = what_failed(error)
        return failed

    def _folders(self) -> list[CaptureFolder]:
        with suppress(FileNotFoundError):
            return [CaptureFolder(entry, self._clock) for entry in self._root.iterdir() if entry.is_dir()]
        return []


def what_failed(error: ShipliftError | OSError) -> str:
    """What an error says, in a few words."""
    return error.what if isinstance(error, ShipliftError) else error.strerror or type(error).__name__
