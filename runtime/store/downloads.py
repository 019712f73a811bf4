"""Downloads what authors logged, within limits: sizes, numbers and depths are checked before bytes are fetched.

A store's listing gives the size of each file. The size is checked again after each download, since it may have changed.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.files import DEFAULT_LIMITS, Irregular, TreeLimits, check_path

_PARALLEL = 4


class Listed(Protocol):
    """A file or folder in a store: its path from the store's root, and its size in bytes if known."""

    path: str
    is_dir: bool
    file_size: int | None


class Artifacts(Protocol):
    """The methods of MLflow's artifact repositories that are used here."""

    def list_artifacts(self, path: str | None) -> list[Listed]:
        """The files and folders directly below a path."""

    def _download_file(self, remote_file_path: str, local_path: str) -> None:
        """Downloads one file."""


@dataclass(kw_only=True)
class _Budget:
    """How much may be downloaded, and how much has been announced or received."""

    limit_mb: float
    used_bytes: int = 0

    def use(self, size: int) -> None:
        """Counts bytes.

        Raises:
            NotAdmitted: they exceed the limit.
        """
        self.used_bytes += size
        if self.used_bytes > self.limit_mb * 2**20:
            raise NotAdmitted(
                f"the version's files have at least {self.used_bytes / 2**20:.0f} MiB, this site's limit is "
                f"{self.limit_mb:.0f} MiB",
                do="Register a smaller model, or ask the owner of this site to raise `policy.max_size_mb`.",
            )


def tree(artifacts: Artifacts, to: Path, *, limit_mb: float, limits: TreeLimits = DEFAULT_LIMITS) -> Path:
    """Downloads every file into the folder `to`, which is returned.

    Raises:
        NotAdmitted: the files are too large, too many, nested too deep, or not plain files.
    """
    to.mkdir(parents=True, exist_ok=True)
    try:
        names = list(_names(artifacts, _Budget(limit_mb=limit_mb), limits))
        received = _Budget(limit_mb=limit_mb)
        with ThreadPoolExecutor(_PARALLEL) as pool:
            for size in pool.map(lambda name: _fetch(artifacts, name, to / name), names):
                received.use(size)
    except (Irregular, OSError) as error:
        if isinstance(error, ConnectionError | TimeoutError):
            raise
        raise NotAdmitted(f"the version's files can't be fetched: {error}", do="Log the model again.") from error
    return to


def file(artifacts: Artifacts, path: str, to: Path, *, limit_mb: float) -> Path | None:
    """Downloads one file into the folder `to`; None if there is no file at that path.

    Raises:
        NotAdmitted: it is too large.
    """
    folder = path.rpartition("/")[0]
    listed = next((entry for entry in artifacts.list_artifacts(folder or None) if entry.path == path), None)
    if listed is None or listed.is_dir:
        return None
    target = to / Path(path).name
    for size in (listed.file_size or 0, _fetch(artifacts, path, target) if _within(listed, limit_mb) else 0):
        if size > limit_mb * 2**20:
            raise NotAdmitted(
                f"{path} has {size / 2**20:.0f} MiB, the limit is {limit_mb:.0f} MiB", do="Log a smaller file."
            )
    return target


def _within(listed: Listed, limit_mb: float) -> bool:
    return (listed.file_size or 0) <= limit_mb * 2**20


def _names(artifacts: Artifacts, budget: _Budget, limits: TreeLimits) -> Iterator[str]:
    """The files by path; a folder's files come before those of its subfolders."""
    pending: list[str | None] = [None]
    entries = 0
    while pending:
        for entry in artifacts.list_artifacts(pending.pop()):
            entries += 1
            check_path(entry.path, limits)
            if entries > limits.entries:
                raise Irregular(f"there are more than {limits.entries} files and folders")
            if entry.is_dir:
                pending.append(entry.path)
            else:
                budget.use(entry.file_size or 0)
                yield entry.path


def _fetch(artifacts: Artifacts, name: str, target: Path) -> int:
    target.parent.mkdir(parents=True, exist_ok=True)
    artifacts._download_file(name, str(target))
    return target.lstat().st_size
