"""Builds the bundled server's own backend, once, when its environment is made, because no wheel contains one.

The source is C and needs libc alone, so any C compiler will do: the machine's, or if there is none, the one in the
`ziglang` wheel from PyPI.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool

SOURCE = Path(__file__).parent / "backends" / "onnxruntime"
COMPILER = "ziglang==0.17.1"
_FAILED = "the ONNX Runtime backend can't be built"
FLAGS = ("-std=gnu17", "-O2", "-fPIC", "-shared", "-Wall", "-Wno-deprecated-non-prototype", "-fno-sanitize=undefined")


def build(to: Path, onnxruntime: Path) -> Path:
    """Builds Triton's backend for ONNX models in the new folder `to`; returns its library.

    `onnxruntime` is the library with ONNX Runtime's C API, which is linked beside it.

    Raises:
        MissingTool: it can't be compiled; the message quotes the compiler.
    """
    to.mkdir(parents=True)
    (to / "libonnxruntime.so").symlink_to(os.path.relpath(onnxruntime, to))  # the environment may be moved
    library = to / "libtriton_onnxruntime.so"
    sources = sorted(SOURCE.glob("*.c"))
    if program := shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        _compile([program], sources, library)
        return library
    with tempfile.TemporaryDirectory(prefix="shiplift-compiler-") as folder:
        packages = Path(folder) / "packages"
        run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target",
             packages, COMPILER],
            failed=f"{_FAILED}: pip",
            do="Install a C compiler (Debian and Ubuntu: package gcc), or let pip reach PyPI or your mirror of it.",
        )  # fmt: skip
        _compile([packages / "ziglang" / "zig", "cc", "-target", "x86_64-linux-gnu.2.31"], sources, library)
    return library


def _compile(compiler: list[str | Path], sources: list[Path], to: Path) -> None:
    run(
        [*compiler, *FLAGS, "-o", to, *sources, "-ldl", "-lpthread"],
        failed=f"{_FAILED}: {Path(compiler[0]).name}",
        do="Check that this compiler can build a shared library from C; with none on the PATH, one is downloaded.",
    )


def run(command: Sequence[str | Path], *, failed: str, do: str) -> None:
    """Runs a command that makes a part of the environment.

    Raises:
        MissingTool: it failed; the message is `failed` and the end of its standard error.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MissingTool(f"{failed}: {' '.join(result.stderr.split())[-500:]}", do=do)
