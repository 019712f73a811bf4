"""Folders with untrusted content: only regular files are opened, and depth, names and numbers have limits.

A link in a model's folder would lead elsewhere; a FIFO, a socket or a device could block its reader for ever.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Irregular(ValueError):
    """A path that must not be opened, or a folder beyond its limits. `str()` says which, and the limit."""


@dataclass(frozen=True, kw_only=True)
class TreeLimits:
    """How many files and folders a tree may have, how deep it may be, and how long a path in it may be."""

    entries: int = 20_000
    depth: int = 32
    path_chars: int = 1024


DEFAULT_LIMITS = TreeLimits()


@dataclass(frozen=True, kw_only=True)
class TreeFile:
    """A regular file of a tree: its name relative to the tree's root, with `/`, and its size in bytes."""

    name: str
    path: Path
    size_bytes: int


def regular_files(root: Path, limits: TreeLimits = DEFAULT_LIMITS) -> list[TreeFile]:
    """The files below a folder, sorted by name.

    Raises:
        Irregular: there is anything but regular files and folders, or the tree exceeds its limits.
    """
    files: list[TreeFile] = []
    pending: list[tuple[Path, str]] = [(root, "")]
    entries = 0
    while pending:
        folder, prefix = pending.pop()
        for entry in _entries(folder):
            name = prefix + entry.name
            entries += 1
            check_path(name, limits)
            if entries > limits.entries:
                raise Irregular(f"it has more than {limits.entries} files and folders")
            mode = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(mode.st_mode):
                pending.append((Path(entry.path), f"{name}/"))
            elif stat.S_ISREG(mode.st_mode):
                files.append(TreeFile(name=name, path=Path(entry.path), size_bytes=mode.st_size))
            else:
                raise Irregular(f"{name} is {_kind(mode.st_mode)}")
    return sorted(files, key=lambda file: Path(file.name))


def check_path(name: str, limits: TreeLimits = DEFAULT_LIMITS) -> None:
    """Checks that a relative path is short and shallow enough, and stays inside its tree.

    Raises:
        Irregular: it is not.
    """
    parts = name.split("/")
    if len(parts) > limits.depth:
        raise Irregular(f"{name[:60]}... is {len(parts)} folders deep, the limit is {limits.depth}")
    if len(name) > limits.path_chars:
        raise Irregular(f"{name[:60]}... has {len(name)} characters, the limit is {limits.path_chars}")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts) or not name.isprintable():
        raise Irregular(f"{name[:200]!r} is not a plain path")


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading. It never waits, and never follows a link at the path itself.

    Raises:
        Irregular: the path is not a regular file.
        FileNotFoundError: there is none.
    """
    try:
        descriptor = os.open(path, _OPEN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Irregular(f"{path.name} can't be opened: {error.strerror}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise Irregular(f"{path.name} is {_kind(mode)}")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """The bytes of a regular file.

    Raises:
        Irregular: the path is not a regular file, or the file is larger than the limit.
    """
    with open_regular(path) as file:
        body = file.read(limit_bytes + 1)
        if len(body) > limit_bytes:
            size = os.fstat(file.fileno()).st_size
            raise Irregular(f"{path.name} has {size} bytes, the limit is {limit_bytes}")
    return body


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        yield from entries


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for matches, name in kinds if matches(mode)), "a device")
