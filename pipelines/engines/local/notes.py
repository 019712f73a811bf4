"""Notes in a release's folder, by which its process, the dispatcher and `shiplift cancel` talk to each other.

Python handles a signal between two of its own instructions. A process that hangs in a library's C code never gets
there, so the stage that it is in, the stage's time limit, and how the release has to end are on disk as well.
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
    """The stage that a release's process is in, and the latest time at which it must end (`time.monotonic`, s).

    A stage that moves traffic or concludes the release is not `cancellable`.
    """

    stage: str
    deadline_s: int
    until: float
    cancellable: bool

    @property
    def late(self) -> DeadlineExceeded:
        """The error of a process that is still in the stage after that time."""
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
        """Notes that this process begins a stage."""
        position = Position(
            stage=stage.name,
            deadline_s=stage.at.deadline_s,
            until=time.monotonic() + stage.at.deadline_s + GRACE_S,
            cancellable=not stage.at.shielded,
        )
        self._write(position)

    def conclude(self, stage: Stage) -> None:
        """Notes that this process begins the last stage, which can't be cancelled."""
        self.enter(stage)
        if position := self.position():
            self._write(position.model_copy(update={"cancellable": False}))

    def position(self) -> Position | None:
        """The stage that the release's process is in; None before the first."""
        text = _read(self._position)
        return Position.model_validate_json(text) if text else None

    def begin(self) -> None:
        """Forgets the position of an earlier process of this release."""
        self._position.unlink(missing_ok=True)

    def cancel(self) -> None:
        """Notes that the release was cancelled."""
        write_atomically(self._cancelled, "")

    def abort(self, failure: Failure) -> None:
        """Notes that a person aborted the release, and how it has to end."""
        self.end_with(failure)
        self.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether the release was cancelled."""
        return self._cancelled.exists()

    def end_with(self, failure: Failure) -> None:
        """Notes how the release has to end: from now on, only its last stage runs."""
        write_atomically(self._failure, failure.model_dump_json())

    def ordered(self) -> Failure | None:
        """How the release has to end, if something else than a cancel says so."""
        text = _read(self._failure)
        return Failure.model_validate_json(text) if text else None

    def failure(self) -> Failure | None:
        """How the release has to end; None if it may continue."""
        if ordered := self.ordered():
            return ordered
        return Failure.of(Cancelled("the release was cancelled", do=RESUME)) if self.cancelled else None

    def clear(self) -> None:
        """Removes all notes: the release has ended, or is queued again."""
        for file in (self._position, self._cancelled, self._failure):
            file.unlink(missing_ok=True)

    def _write(self, position: Position) -> None:
        with contextlib.suppress(StorageFull):  # the stage itself reports a full disk, with a better message
            write_atomically(self._position, position.model_dump_json())


def _read(file: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""
