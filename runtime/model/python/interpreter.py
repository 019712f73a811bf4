"""An interpreter that needs only the machine's C library, as a folder: a layer runs on it in any image.

Servers run in images with another Python, or none. So an environment that travels brings the interpreter for which its
packages were chosen, with the standard library and the system's libraries that both need.
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
# Leaves out what a server never imports: tests, windows, and tools to build or install.
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
# Part of glibc, which must be the machine's own, because glibc and its loader belong together.
_GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|anl|BrokenLocale|nss_\w+))\.so")
_NEEDED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def copy_interpreter(to: Path) -> None:
    """Copies this Python into the new folder `to`, as `bin/python3.x` and `lib`.

    Raises:
        MissingTool: `ldd`, which lists the libraries that Python needs, is not installed.
    """
    binary, library = to / "bin" / PYTHON, to / "lib"
    binary.parent.mkdir(parents=True)
    shutil.copyfile(_executable(), binary)
    binary.chmod(0o755)
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, library / PYTHON, ignore=_UNNEEDED)
    # The links are copied as files: a distribution links some modules to places outside.
    for name, at in _libraries(binary, *sorted((library / PYTHON / "lib-dynload").glob("*.so"))):
        shutil.copyfile(at, library / name)


def _executable() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _libraries(*programs: Path) -> Iterator[tuple[str, str]]:
    """The libraries other than glibc that these programs load: their names, and their paths on this machine."""
    ldd = shutil.which("ldd")
    if ldd is None:
        raise MissingTool("`ldd` is not installed here", do="Install glibc's tools (Debian and Ubuntu: libc-bin).")
    result = subprocess.run([ldd, *map(str, programs)], capture_output=True, text=True, check=False)
    found = dict(_NEEDED.findall(result.stdout))
    yield from sorted((name, at) for name, at in found.items() if not _GLIBC.match(name))
