"""Packages that benchmarks compare Shiplift with, in folders or environments of their own, made on first use."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_RIVALS = Path(__file__).parent / "rivals"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


class Missing(Exception):
    """Packages that can't be installed here."""


def extras(requirements: str, tell: Callable[[str], None]) -> Path:
    """Installs the packages pinned by a file in `rivals/` without what they need; returns their folder.

    They are used beside Shiplift's own packages.

    Raises:
        Missing: pip can't install them.
    """
    return _made(
        requirements,
        lambda folder, file: [
            [*_PIP, "install", "--quiet", "--no-deps", "--target", str(folder), "--requirement", str(file)],
        ],
        tell,
    )


def own_python(requirements: str, tell: Callable[[str], None]) -> Path:
    """Makes a virtual environment of the packages pinned by a file in `rivals/`; returns its Python.

    Raises:
        Missing: pip can't install them.
    """
    folder = _made(
        requirements,
        lambda folder, file: [
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            [*_PIP, "--python", str(_python(folder)), "install", "--quiet", "--requirement", str(file)],
        ],
        tell,
    )
    return _python(folder)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _made(
    requirements: str, commands: Callable[[Path, Path], Sequence[Sequence[str]]], tell: Callable[[str], None]
) -> Path:
    """The folder of a file's packages; made again when the file changes, and stamped last."""
    file = _RIVALS / requirements
    pins = file.read_text()
    folder = Path(sys.prefix) / "share" / "shiplift" / f"bench-{file.stem}"
    stamp = folder / "stamp"
    if stamp.is_file() and stamp.read_text() == pins:
        return folder
    tell(f"installing the packages in {requirements} (once)")
    shutil.rmtree(folder, ignore_errors=True)
    for command in commands(folder, file):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"the packages of {requirements} can't be installed: {done.stderr[-500:]}")
    stamp.write_text(pins)
    return folder
