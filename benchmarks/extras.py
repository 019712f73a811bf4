"""Packages that benchmarks compare Shiplift with, installed in folders of their own."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_RIVALS = Path(__file__).parent / "rivals"


class Missing(Exception):
    """Packages that can't be installed here."""


def extras(requirements: str, tell: Callable[[str], None]) -> Path:
    """Installs the packages pinned by a file in `rivals/`, without dependencies, on first use; returns their folder.

    Raises:
        Missing: pip can't install them.
    """
    file = _RIVALS / requirements
    pins = file.read_text()
    folder = Path(sys.prefix) / "share" / "shiplift" / f"bench-{file.stem}"
    stamp = folder / "stamp"
    if not stamp.is_file() or stamp.read_text() != pins:
        tell(f"installing the packages in {requirements} (once)")
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", str(folder), "--requirement", str(file)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Missing(f"the packages of {requirements} can't be installed: {done.stderr[-500:]}")
        stamp.write_text(pins)
    return folder
