"""The installed package as one digest: it identifies the code of this process, for results that only that code made.

The digest is the same wherever the same files are installed: from a wheel, in a checkout whose rooms are links, in
every image and pod. It covers the files' names and contents, and the Python version, since the server's environment is
built for that. It leaves out bytecode, which follows from the sources, and hidden files, which editors write.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import shiplift

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@functools.cache
def package_digest() -> str:
    """The SHA-256, in hex, of the package as it was when this process first asked (about 50 ms)."""
    return digest_of(Path(shiplift.__file__).parent)


def digest_of(package: Path) -> str:
    """The SHA-256, in hex, of the files below a package's folder, and of the version of Python."""
    lines = sorted(f"{name} {hashlib.sha256(body).hexdigest()}\n" for name, body in _files(package))
    return hashlib.sha256("".join((f"Python {_PYTHON}\n", *lines)).encode()).hexdigest()


def _files(package: Path) -> Iterator[tuple[str, bytes]]:
    """Each file's path below the package, with slashes, and its content."""
    for folder, folders, names in os.walk(package, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        below = Path(folder).relative_to(package).as_posix()
        for name in names:
            if not name.startswith("."):
                yield f"{below}/{name}", Path(folder, name).read_bytes()
