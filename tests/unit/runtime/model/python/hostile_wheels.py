"""Wheels as nobody publishes them on purpose, written into a folder that pip takes for an index."""

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel(
    to: Path, name: str, files: Mapping[str, str] | None = None, *, metadata: str = "", called: str | None = None
) -> Path:
    """Writes the wheel `name-1.0` with these files, and more lines of metadata. `called`: what its metadata call it."""
    info = f"{name}-1.0.dist-info"
    every = {f"{name}.py": "VALUE = 1\n"} | dict(files or {})
    every[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {called or name}\nVersion: 1.0\n{metadata}"
    every[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: hostile\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    every[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*every, f"{info}/RECORD"))
    path = to / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for at, text in every.items():
            archive.writestr(at, text)
    return path


def source(to: Path, name: str, setup: str) -> Path:
    """Writes the source package `name-1.0` with this `setup.py`."""
    path = to / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for at, text in (("setup.py", setup), ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")):
            entry = tarfile.TarInfo(f"{name}-1.0/{at}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path
