"""Notes in a release's folder that its process, the dispatcher and `shiplift cancel` leave each other.

A signal is handled between two lines of Python. A process that is busy elsewhere, in a library's C code, never handles
it, so what a release's process is doing, until when it may, and how it has to end are also on disk.
"""

import contextlib
import time
from pathlib import Path

from shiplift.pipelines.engines.interruption import GRACE_S
from shiplift.pipelines.graph import Stage
from shiplift.runtime.base.errors import Cancelled, DeadlineExceeded, StorageFull
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure

RESUME = "`shiplift release` resumes it."


class Position(Record):
    """The stage that a release's process is in, and when that has to be over at the latest (`time.monotonic`, s).

    A stage that is not `cancellable` moves traffic or concludes the release.
    """

    stage: str
    deadline_s: int
    until: float
    cancellable: bool

    @property
    def late(self) -> DeadlineExceeded:
        """The error of a process that is still there after its time."""
        return DeadlineExceeded(
            f"stage {self.stage} took over {self.deadline_s} s and did not stop by itself: its process was killed",
            do="See the release's log.",
        )


class Notes:
    """The notes about one release, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._position, self._cancelled, self._failure = (
            folder / name for name in ("position.json", "cancelled", "failure.json")
        )

    def enter(self, stage: Stage) -> None:
        """Notes that this process begins with a stage."""
        position = Position(
            stage=stage.name,
            deadline_s=stage.at.deadline_s,
            until=time.monotonic() + stage.at.deadline_s + GRACE_S,
            cancellable=not stage.at.shielded,
        )
        self._write(position)

    def conclude(self, stage: Stage) -> None:
        """Notes that this process begins with the last stage, which can't be cancelled."""
        self.enter(stage)
        if position := self.position():
            self._write(position.model_copy(update={"cancellable": False}))

    def position(self) -> Position | None:
        """Where the release's process is; None before its first stage."""
        text = _read(self._position)
        return Position.model_validate_json(text) if text else None

    def begin(self) -> None:
        """Forgets where an earlier process of this release was."""
        self._position.unlink(missing_ok=True)

    def cancel(self) -> None:
        """Notes that somebody wants the release to end."""
        write_atomically(self._cancelled, "")

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants the release to end."""
        return self._cancelled.exists()

    def end_with(self, failure: Failure) -> None:
        """Notes how the release has to end: no process runs another stage of it, but the last."""
        write_atomically(self._failure, failure.model_dump_json())

    def failure(self) -> Failure | None:
        """How the release has to end; None if it may go on."""
        if text := _read(self._failure):
            return Failure.model_validate_json(text)
        return Failure.of(Cancelled("the release was cancelled", do=RESUME)) if self.cancelled else None

    def clear(self) -> None:
        """Removes all notes: the release has ended, or is queued anew."""
        for file in (self._position, self._cancelled, self._failure):
            file.unlink(missing_ok=True)

    def _write(self, position: Position) -> None:
        with contextlib.suppress(StorageFull):  # what needs the space says so
            write_atomically(self._position, position.model_dump_json())


def _read(file: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""
