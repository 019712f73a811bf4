"""Checks what a sandbox wrote before the host opens it: only folders and regular files are opened.

A link could lead out of the folder, a FIFO would block its reader, and a device can do anything.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shiplift.runtime.base.errors import ExportFailed

_MAX_ENTRIES = 100_000
_MAX_DEPTH = 64


def require_regular(folder: Path, *needed: str) -> None:
    """Checks that `folder` contains only folders and regular files, and that the files in `needed` exist.

    Raises:
        ExportFailed: there is anything else, or a file is missing.
    """
    missing = (f"{name} is missing" for name in needed if not (folder / name).is_file())
    if problems := list(_unsafe_entries(folder)) or list(missing):
        raise ExportFailed(
            f"the sandbox's files can't be used: {'; '.join(problems[:5])}",
            do="Check what the model's code does when it is loaded.",
        )


def _unsafe_entries(folder: Path) -> Iterator[str]:
    """Yields why entries below `folder` must not be opened. It follows no link and opens no file."""
    pending, entries = [(str(folder), 0)], 0
    while pending:
        path, depth = pending.pop()
        for entry in os.scandir(path):
            entries += 1
            if entries > _MAX_ENTRIES:
                yield f"there are more than {_MAX_ENTRIES} files"
                return
            kind = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind) and depth < _MAX_DEPTH:
                pending.append((entry.path, depth + 1))
            elif reason := _unsafe(kind):
                yield f"{entry.name} {reason}"


def _unsafe(kind: int) -> str:
    if stat.S_ISREG(kind):
        return ""
    if stat.S_ISDIR(kind):
        return f"is nested deeper than {_MAX_DEPTH} folders"
    return "is a link" if stat.S_ISLNK(kind) else "is not a regular file"
