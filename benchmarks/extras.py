"""Packages that a benchmark compares Shiplift with: in folders of their own, never in the environment of either."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_RIVALS = Path(__file__).parent / "rivals"


class Missing(Exception):
    """Packages that can't be had here."""


def extras(requirements: str, tell: Callable[[str], None]) -> Path:
    """The folder of the packages that a file in `rivals/` pins, without their dependencies; made on first use.

    Raises:
        Missing: pip can't get them.
    """
    file = _RIVALS / requirements
    wanted = file.read_text()
    folder = Path(sys.prefix) / "share" / "shiplift" / f"bench-{file.stem}"
    stamp = folder / "stamp"
    if not stamp.is_file() or stamp.read_text() != wanted:
        tell(f"installing what {requirements} names (once)")
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run(
            [*words, "--target", str(folder), "--requirement", str(file)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Missing(f"the packages of {requirements} can't be installed: {done.stderr[-500:]}")
        stamp.write_text(wanted)
    return folder
