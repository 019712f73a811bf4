"""Atomic file writes: after a kill or a full disk, the old or the new file is there, never half of one."""

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiplift.runtime.base.errors import StorageFull

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def room_for(content: str, folder: Path) -> Iterator[None]:
    """Turns a full disk into an error that says what was being written, and where.

    Raises:
        StorageFull: no space or quota is left.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFull(
            f"no space is left in {folder} while writing {content}",
            do="Free some space, then run the same command again.",
        ) from error


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds the lock `file` alone; the kernel releases it if its holder dies. The file stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, body: str | bytes, *, mode: int = 0o644) -> None:
    """Replaces `path` with `body` atomically.

    Raises:
        StorageFull: no space is left.
    """
    with room_for(path.name, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body.encode() if isinstance(body, str) else body)
            Path(partial).chmod(mode)
            Path(partial).replace(path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
