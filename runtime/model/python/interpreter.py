"""An interpreter that needs nothing of the machine but its C library, as a folder: what a layer runs on in any image.

Servers run in images with another Python, or none. So an environment that travels brings the interpreter that its
packages were chosen for, with the standard library and the system's libraries that both need.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Without what a server never imports: tests, windows, and how to build or install.
_UNNEEDED = shutil.ignore_patterns(
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "_tkinter*",
    "_test*",
    "*.a",
)
# Part of glibc, which has to be the machine's own: it and its loader are one.
_GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|anl|BrokenLocale|nss_\w+))\.so")
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def copy_interpreter(to: Path) -> None:
    """Copies this Python into the new folder `to`, as `bin/python3.x` and `lib`.

    Raises:
        MissingTool: `ldd` is not there, which says which libraries it needs.
    """
    binary, library = to / "bin" / PYTHON, to / "lib"
    binary.parent.mkdir(parents=True)
    shutil.copyfile(_executable(), binary)
    binary.chmod(0o755)
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, library / PYTHON, ignore=_UNNEEDED)
    # Copied as files: a distribution links some modules to places outside.
    for name, at in _libraries(binary, *sorted((library / PYTHON / "lib-dynload").glob("*.so"))):
        shutil.copyfile(at, library / name)


def _executable() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _libraries(*programs: Path) -> Iterator[tuple[str, str]]:
    """What these programs load that is not glibc: names, and where this machine has them."""
    ldd = shutil.which("ldd")
    if ldd is None:
        raise MissingTool("`ldd` is not installed here", do="Install glibc's tools (Debian and Ubuntu: libc-bin).")
    result = subprocess.run([ldd, *map(str, programs)], capture_output=True, text=True, check=False)
    found = dict(_NEEDED.findall(result.stdout))
    yield from sorted((name, at) for name, at in found.items() if not _GLIBC.match(name))
