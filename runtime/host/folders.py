"""Temporary folders: locked as long as their process lives, removed whatever they contain, and swept after a kill.

A folder is locked (flock(2)), so that a sweep removes only folders whose process is gone.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "shiplift-"
_open: set["ScratchFolder"] = set()


class ScratchFolder:
    """A new folder below `root`, locked until it is closed or this process ends."""

    def __init__(self, root: Path) -> None:
        self.path, self._lock = _locked_folder(root)
        self.owner = os.getpid()  # a fork inherits this object, but must not remove the folder
        _open.add(self)

    def close(self) -> None:
        """Removes the folder."""
        remove_tree(self.path)
        os.close(self._lock)
        _open.discard(self)


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """A new folder below `root`, as long as the context lasts."""
    with contextlib.closing(ScratchFolder(root)) as folder:
        yield folder.path


def close_all() -> None:
    """Removes every folder that this process has not closed: a signal can interrupt any `with` in the middle."""
    for folder in list(_open):
        if folder.owner == os.getpid():
            folder.close()


def sweep(root: Path) -> int:
    """Removes the scratch folders below `root` whose process is gone; returns how many."""
    count = 0
    for folder in root.glob(f"{_PREFIX}*"):
        lock = _try_lock(folder)
        if lock is not None:
            remove_tree(folder)
            os.close(lock)
            count += 1
    return count


def remove_tree(root: Path) -> None:
    """Removes a folder that hostile code filled: any depth, any mode, links not followed. What can't be removed stays.

    Nested folders are first moved to the top, so no path grows and nothing recurses.
    """
    if root.is_symlink() or not root.is_dir():
        return
    pending = [root]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError):
            folder.chmod(stat.S_IRWXU)
            pending += _emptied(folder, root)
    for folder in (*_folders(root), root):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _emptied(folder: Path, root: Path) -> list[Path]:
    """Removes a folder's files and moves its subfolders to the top; returns those."""
    moved = []
    with os.scandir(folder) as entries:
        for entry in list(entries):
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)  # noqa: PTH108
                    continue
                os.chmod(entry.path, stat.S_IRWXU)  # noqa: PTH101
                target = root / uuid.uuid4().hex
                os.rename(entry.path, target)  # noqa: PTH104
                moved.append(target)
    return moved


def _folders(root: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _locked_folder(root: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        lock = _try_lock(folder)
        if lock is not None and folder.is_dir():  # otherwise a sweep removed it in between
            return folder, lock


def _try_lock(folder: Path) -> int | None:
    """Locks a folder; None if another process holds it, or if it is gone or is not a folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
