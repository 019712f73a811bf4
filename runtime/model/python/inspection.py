"""What wheels put into an environment: nothing but packages, in their place, and not too much.

A wheel's `.data` folder can name any path below the environment, such as the interpreter itself. Whatever starts there
runs before the confinement, so wheels may add files, but change none that were there before. Files that Python runs by
itself at its start (`.pth`, `sitecustomize`, `usercustomize`) are removed: nobody needs them, since the process of a
model starts without `site`.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shiplift.runtime.base.errors import NotAdmitted
from shiplift.runtime.base.text import printable

MOST_FILES = 100_000
_PACKAGES = re.compile(r"lib/python3\.\d+/site-packages/.")
_RESERVED = re.compile(r"python/|lib64(/|$)|lib/python3|pyvenv\.cfg$|bin/(python|pip|activate)", re.IGNORECASE)
_STARTED = re.compile(r"site-packages/([^/]+\.pth|(site|user)customize(\.[^/]+)?(/.*)?)$", re.IGNORECASE)
_NATIVE = re.compile(r"\.so(\.\d+)*$")
_DO = (
    "Log the model without the package, or with a version of it that is installed as usual: "
    "`log_model(..., pip_requirements=['NAME==VERSION'])`."
)
Seen = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class InstalledFiles:
    """What packages added to an environment. `native` are the libraries that are no Python."""

    files: int
    size_bytes: int
    native: tuple[str, ...]


def seen(environment: Path) -> Seen:
    """Every file, link and folder of an environment, with what changes when it is written or replaced."""
    return {name: _state(path) for name, path in _walk(environment)}


def inspect(environment: Path, before: Seen) -> InstalledFiles:
    """Checks what was added since `before`, removes what Python would run at its start, and says what is there.

    Raises:
        NotAdmitted: a file of the environment's own was changed, or something else than files was added, or to a place
            that is not for packages, or too many files.
    """
    files, size, native = 0, 0, []
    for name, path in _walk(environment):
        if name in before:
            continue
        state = path.lstat()
        _check_place(name, state.st_mode)
        if _STARTED.search(name) and not stat.S_ISDIR(state.st_mode):
            path.unlink()
            continue
        files, size = files + 1, size + state.st_size
        check_count(files)
        if _NATIVE.search(name):
            native.append(name)
    _check_unchanged(environment, before)
    return InstalledFiles(files=files, size_bytes=size, native=tuple(sorted(native)))


def check_count(files: int) -> None:
    """Checks the number of an environment's files.

    Raises:
        NotAdmitted: there are too many.
    """
    if files > MOST_FILES:
        raise NotAdmitted(
            f"the model's packages have over {MOST_FILES:,} files",
            do="Log it with fewer packages: `log_model(..., pip_requirements=['NAME==VERSION'])`.",
        )


def _check_place(name: str, mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise NotAdmitted(f"a package installs {_shown(name)}, which is not a file", do=_DO)
    if not _PACKAGES.match(name) and _RESERVED.match(name):
        raise NotAdmitted(f"a package installs {_shown(name)}, which is the interpreter's place", do=_DO)


def _check_unchanged(environment: Path, before: Seen) -> None:
    for name, state in before.items():
        path = environment / name
        if not os.path.lexists(path) or (_state(path) != state and not stat.S_ISDIR(path.lstat().st_mode)):
            raise NotAdmitted(f"a package replaces {_shown(name)}, which is the environment's own", do=_DO)


def _shown(name: str) -> str:
    return repr(printable(str(PurePosixPath(name)), limit=100))


def _state(path: Path) -> tuple[int, ...]:
    state = path.lstat()
    return state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _walk(environment: Path) -> Iterator[tuple[str, Path]]:
    """Every path below a folder, by its name in it; links are not followed."""
    for root, folders, files in os.walk(environment):
        for name in (*folders, *files):
            path = Path(root, name)
            yield path.relative_to(environment).as_posix(), path
