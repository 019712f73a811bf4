"""The wheels that this site has fetched, each under its SHA-256: the only thing that one install leaves for another.

A confined pip writes to folders of its own alone. What it has downloaded is hashed here, and kept only under the hash
that was asked for. So no install can put anything of its choice where another one finds it.
"""

import hashlib
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename


def keep(root: Path, downloaded: Iterable[Path], wanted: Collection[str]) -> None:
    """Copies the downloaded wheels whose SHA-256 is `wanted` into the store `root`."""
    for file in downloaded:
        if file.is_symlink() or not file.is_file() or not _is_wheel(file.name):
            continue
        digest = _digest(file)
        if digest in wanted:
            (root / digest).mkdir(parents=True, exist_ok=True)
            partial = root / digest / f".{os.getpid()}.new"
            shutil.copyfile(file, partial)
            partial.replace(root / digest / file.name)


def offer(root: Path, digests: Iterable[str], to: Path) -> set[str]:
    """Copies the wheels that the store has to the folder `to`; returns the hashes of those that it lacks."""
    lacking = set()
    for digest in digests:
        files = sorted((root / digest).glob("*.whl"))
        if files and _digest(files[0]) == digest:
            shutil.copyfile(files[0], to / files[0].name)
        else:
            lacking.add(digest)
    return lacking


def _is_wheel(name: str) -> bool:
    try:
        parse_wheel_filename(name)
    except (InvalidWheelFilename, ValueError):
        return False
    return True


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
