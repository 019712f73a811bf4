"""The bundled server's environment: a venv of its own, made on first use and named by the digest of its sources.

nvidia-pytriton contains a real tritonserver with its Python backend, and tritonclient's wheel contains perf_analyzer.
Both run outside a container once their libraries can be found, which this module arranges. The backends for ONNX models
(ONNX Runtime, OpenVINO) and for trees (treelite) are built next to Python's.
"""

import ctypes.util
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.serving.triton.building import native, patches
from shiplift.runtime.serving.triton.requirements import REQUIREMENTS

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_LIBPYTHON = f"libpython{PYTHON}.so.1.0"


@dataclass(frozen=True)
class ServerEnvironment:
    """An environment at `root`. `others` is the folder of Python models' environments; by default it is beside it."""

    root: Path
    others: Path | None = None

    @property
    def environments(self) -> Path:
        """The folder of the environments of Python models."""
        return self.others or self.root.with_name("environments")

    @property
    def site(self) -> Path:
        """The folder of its packages; a `model.py` adds it to its own path."""
        return self.root / "lib" / f"python{PYTHON}" / "site-packages"

    @property
    def tritonserver(self) -> Path:
        """The server's executable."""
        return self.site / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        """The folder of the backends: ours, and Python's with its stub for this version of Python."""
        return self.root / "backends"

    @property
    def capture_library(self) -> Path:
        """The library that is preloaded into a server whose requests are captured."""
        return self.root / native.CAPTURE.file

    @property
    def requests_library(self) -> Path:
        """The library that is preloaded into every server, and refuses requests that would end it."""
        return self.root / native.REQUESTS.file

    @property
    def caches(self) -> Path:
        """The folder of the response cache's implementation."""
        return self.site / "pytriton" / "tritonserver" / "caches"

    @property
    def perf_analyzer(self) -> Path:
        """The load generator's executable."""
        return self.root / "bin" / "perf_analyzer"

    @property
    def library_path(self) -> str:
        """LD_LIBRARY_PATH for both executables."""
        return os.pathsep.join([str(self.root / "libraries"), str(self.site / "nvidia_pytriton.libs")])

    @property
    def ready(self) -> bool:
        """Whether it is complete: its stamp is written last."""
        return (self.root / "stamp").is_file()


def default_root() -> Path:
    """The default place, inside the pipeline's own environment: every stack shares it, and it is removed with it."""
    sources = [file.read_bytes() for file in (REQUIREMENTS, Path(patches.__file__), *native.sources())]
    tools = " ".join((native.COMPILER, *native.FLAGS, PYTHON)).encode()
    digest = hashlib.sha256(b"".join(sources) + tools).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "shiplift" / f"server-{digest}"


def ensure(root: Path, tell: Callable[[str], None] = lambda _: None) -> ServerEnvironment:
    """The environment at `root`, which is made first if it isn't there (about 20 s and 600 MB).

    Raises:
        MissingTool: this machine can't have one; the message says what is missing.
    """
    environment = ServerEnvironment(root)
    if environment.ready:
        return environment
    if problem := unsupported():
        raise MissingTool(problem, do="See `shiplift doctor`; on other machines use NVIDIA's Triton image.")
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / f".{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not environment.ready:
            tell("making the bundled server's environment (once, about 20 s)")
            _make(environment)
    return environment


def unsupported() -> str:
    """Why the bundled server can't run on this machine; empty if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"the bundled Triton exists for Linux x86-64, this is {platform.system()} {platform.machine()}"
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < (2, 35):
        return f"the bundled Triton needs glibc 2.35 or newer, this is {libc or 'another libc'} {version}"
    if libpython() is None:
        return f"the bundled Triton needs {_LIBPYTHON} (Debian and Ubuntu: package libpython{PYTHON})"
    return ""


def libpython() -> Path | None:
    """The shared library of this Python, against which Triton's stub is linked."""
    folders = [sysconfig.get_config_var("LIBDIR") or "", f"{sys.base_prefix}/lib", "/usr/lib/x86_64-linux-gnu"]
    for folder in (*folders, "/usr/lib64", "/usr/local/lib"):
        if (library := Path(folder) / _LIBPYTHON).is_file():
            return library
    return Path(_LIBPYTHON) if ctypes.util.find_library(f"python{PYTHON}") else None


def _make(environment: ServerEnvironment) -> None:
    root = environment.root
    shutil.rmtree(root, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(root)])
    _run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(root / "bin" / "python"),
            "install",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--requirement",
            str(REQUIREMENTS),
        ]
    )
    bundled = environment.site / "pytriton" / "tritonserver"
    python = environment.backends / "python"
    shutil.copytree(bundled / "backends" / "python", python)
    shutil.copytree(bundled / "python_backend_stubs" / PYTHON, python, dirs_exist_ok=True)
    for program in (environment.tritonserver, python / "triton_python_backend_stub"):
        program.chmod(0o755)
    patches.apply(patches.TRITONSERVER, environment.tritonserver)
    patches.apply(patches.LIBRARY, next((environment.site / "nvidia_pytriton.libs").glob("libtritonserver-*.so")))
    native.build_all(environment.backends, environment.site)
    _link_libraries(environment)
    (root / "stamp").write_text(REQUIREMENTS.read_text())


def _link_libraries(environment: ServerEnvironment) -> None:
    """Links libraries under their plain names, which perf_analyzer looks for; the wheel's names contain a hash."""
    at = environment.root / "libraries"
    at.mkdir()
    bundled = environment.site / "nvidia_pytriton.libs"
    for plain, pattern in (("libb64.so.0d", "libb64-*.so.0d"), ("libcudart.so.12", "libcudart-*.so.12*")):
        (at / plain).symlink_to(next(bundled.glob(pattern)))
    own = libpython()
    if own is not None and own.is_absolute() and not str(own).startswith(("/usr/lib", "/lib")):
        (at / _LIBPYTHON).symlink_to(own)


def _run(command: list[str]) -> None:
    native.run(
        command,
        failed=f"{Path(command[0]).name} {command[2]} failed",
        do="Check that PyPI, or your mirror of it, can be reached, then run the same command again.",
    )


if __name__ == "__main__":
    ensure(Path(sys.argv[1]) if len(sys.argv) > 1 else default_root(), print)
