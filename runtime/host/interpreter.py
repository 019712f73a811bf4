"""This interpreter's files: what a confined process has to read to run the same Python."""

import functools
import sys
import sysconfig
from pathlib import Path

import shiplift


@functools.cache
def python_paths() -> tuple[Path, ...]:
    """The interpreter, its packages, those that .pth files name, and our own (an editable install is elsewhere)."""
    ours = Path(shiplift.__file__).parent
    site = {Path(p) for p in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())}
    named = {Path(p) for p in sys.path if Path(p).name in {"site-packages", "dist-packages"}}
    return (*site, *named, ours, *(room.resolve() for room in ours.iterdir() if room.is_dir()))
