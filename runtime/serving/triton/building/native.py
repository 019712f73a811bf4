"""Builds the bundled server's own backends when its environment is made, because no wheel contains them.

A backend is a folder of `backends`; `common` has what they share. What Triton loads is the same for all: it starts a
worker for each model, and that has the engine. The source is C and needs libc alone, so any C compiler will do: the
machine's, or else the one in the `ziglang` wheel from PyPI.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.serving.triton.building import patches

COMMON = Path(__file__).parent.parent / "backends" / "common"
COMPILER = "ziglang==0.17.1"
FLAGS = ("-std=gnu17", "-O2", "-Wall", "-Wno-deprecated-non-prototype", "-fno-sanitize=undefined")
LIBRARIES = ("-ldl", "-lm", "-lpthread")
_WORKER = "model_worker"


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A backend: its folder, its engine's name, and the path of the engine's library in the environment's packages."""

    source: Path
    engine: str
    library: str

    @property
    def name(self) -> str:
        """Its name in config.pbtxt."""
        return self.source.name

    @property
    def programs(self) -> dict[str, tuple[str | Path, ...]]:
        """What it consists of, by file name: the sources and flags of what Triton loads, and of a model's worker."""
        return {
            f"libtriton_{self.name}.so": (COMMON / "backend.c", "-fPIC", "-shared"),
            _WORKER: (self.source / "engine.c",),
        }

    @property
    def links(self) -> str:
        """The name under which the backend opens the engine's library, in its own folder."""
        return Path(self.library).name.split(".so")[0] + ".so"


BACKENDS = (
    Backend(
        source=Path(__file__).parent.parent / "backends" / "onnxruntime",
        engine="ONNX Runtime",
        library="onnxruntime/capi/libonnxruntime.so.*",
    ),
    Backend(
        source=Path(__file__).parent.parent / "backends" / "openvino",
        engine="OpenVINO",
        library="openvino/libs/libopenvino_c.so.*",
    ),
    Backend(
        source=Path(__file__).parent.parent / "backends" / "trees",
        engine="treelite",
        library="treelite/lib/libtreelite.so",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Preloaded:
    """A library that the server is started with: the only source, and the compiler's further words."""

    source: Path
    file: str
    does: str
    words: tuple[str, ...] = ()


CAPTURE = Preloaded(source=COMMON.with_name("capture"), file="libshiplift_capture.so", does="captures requests")
REQUESTS = Preloaded(
    source=COMMON.with_name("requests"),
    file="libshiplift_requests.so",
    does="refuses requests",
    words=(
        f"-DQUESTIONS={patches.QUESTIONS:#x}",
        f"-DSLOTS={patches.SLOTS:#x}",
        f'-DMARK="{patches.MARK.decode()}"',
    ),
)


def sources() -> list[Path]:
    """Every file that the backends and the preloaded libraries are built from, in a fixed order."""
    folders = (COMMON, *(backend.source for backend in BACKENDS), CAPTURE.source, REQUESTS.source)
    return [file for folder in folders for file in sorted(folder.glob("*.[ch]"))]


def build_all(to: Path, packages: Path) -> None:
    """Builds every backend into a new folder of its own in `to`; `packages` is the environment's site-packages.

    Raises:
        MissingTool: one can't be compiled, or its engine's library is missing; the message quotes the compiler.
    """
    with _compiler() as command:
        for backend in BACKENDS:
            build(backend, to / backend.name, packages, command)
        for library in (CAPTURE, REQUESTS):
            build_preloaded(library, to.parent, command)


def build(backend: Backend, to: Path, packages: Path, compiler: Sequence[str | Path]) -> None:
    """Builds a backend and its worker in the new folder `to`, with its engine's library linked beside them.

    Raises:
        MissingTool: it can't be compiled, or its engine's library is missing; the message quotes the compiler.
    """
    engine = next(packages.glob(backend.library), None)
    if engine is None:
        raise MissingTool(
            f"{backend.engine}'s library {backend.library} is not among the packages of the server's environment",
            do="Make the environment again with `make setup`.",
        )
    to.mkdir(parents=True)
    (to / backend.links).symlink_to(os.path.relpath(engine, to))  # the environment may be moved
    for name, words in backend.programs.items():
        run(
            [*compiler, *FLAGS, *words, "-o", to / name, *LIBRARIES],
            failed=f"the {backend.engine} backend can't be built: {Path(compiler[0]).name}",
            do="Check that this compiler can build a shared library from C; with none on the PATH, one is downloaded.",
        )


def build_preloaded(library: Preloaded, to: Path, compiler: Sequence[str | Path]) -> None:
    """Builds a library that is preloaded into the server, in the folder `to`.

    Raises:
        MissingTool: it can't be compiled; the message quotes the compiler.
    """
    source = library.source / f"{library.source.name}.c"
    run(
        [*compiler, *FLAGS, *library.words, source, "-fPIC", "-shared", "-o", to / library.file, *LIBRARIES],
        failed=f"the library that {library.does} can't be built: {Path(compiler[0]).name}",
        do="Check that this compiler can build a shared library from C; with none on the PATH, one is downloaded.",
    )


@contextmanager
def _compiler() -> Iterator[list[str | Path]]:
    """The command of this machine's C compiler, or of one that is downloaded and then removed.

    Raises:
        MissingTool: this machine has no compiler, and none can be downloaded.
    """
    if program := shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        yield [program]
        return
    with tempfile.TemporaryDirectory(prefix="shiplift-compiler-") as folder:
        packages = Path(folder) / "packages"
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--target",
                packages,
                COMPILER,
            ],
            failed="the server's backends can't be built: pip",
            do="Install a C compiler (Debian and Ubuntu: package gcc), or let pip reach PyPI or your mirror of it.",
        )
        yield [packages / "ziglang" / "zig", "cc", "-target", "x86_64-linux-gnu.2.35"]


def run(command: Sequence[str | Path], *, failed: str, do: str) -> None:
    """Runs a command that makes a part of the environment.

    Raises:
        MissingTool: it failed; the message is `failed` and the end of its standard error.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise MissingTool(f"{failed}: {' '.join(result.stderr.split())[-500:]}", do=do)
