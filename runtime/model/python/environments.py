"""A Python model's environment: its packages, installed once per set of packages.

Only wheels are installed, so no code of theirs runs before the sandbox does. The record of an environment has their
hashes, so that a machine which has it not yet installs the very same.
"""

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.python.pip import run_pip
from shiplift.runtime.records.model import PythonEnvironment
from shiplift.runtime.records.site import Site

_STAMP = "stamp"  # written last


def beside(server_environment: Path) -> Path:
    """The folder of all environments: next to the server's, so that every stack of an installation shares them."""
    return server_environment.with_name("environments")


def ensure(site: Site, environment: PythonEnvironment) -> Path:
    """The folder of an environment, which is made first if it isn't there.

    Raises:
        NotAdmitted: a package can't be had any more, or is another one than it was.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
    """
    root = root_of(site)
    folder = root / environment.digest
    with (root / f".{environment.digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_there(site, environment):
            _make(site, environment, folder)
    return folder


def is_there(site: Site, environment: PythonEnvironment) -> bool:
    """Whether an environment was made, as a whole."""
    return (root_of(site) / environment.digest / _STAMP).is_file()


def readable(environment: Path, *others: Path) -> list[str]:
    """What a model's process reads besides the system's libraries: its environment, the interpreter, and `others`."""
    return [str(path.resolve()) for path in (environment, Path(sys.base_prefix), *others)]


def cache_of(site: Site) -> Path:
    """The folder of the wheels that pip keeps."""
    cache = root_of(site) / ".cache"
    cache.mkdir(exist_ok=True)
    return cache


def root_of(site: Site) -> Path:
    """The folder of a site's environments."""
    root = beside(Path(site.server_environment))
    root.mkdir(parents=True, exist_ok=True)
    return root


def _make(site: Site, environment: PythonEnvironment, folder: Path) -> None:
    progress(f"installing {len(environment.wheels)} packages for the model")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
        work = folder / "work"
        work.mkdir()
        lock = work / "lock.txt"
        lock.write_text(environment.lock)
        interpreter = ["--python", str(folder / "bin" / "python")]
        options = ["--no-deps", "--no-compile", "--require-hashes", "--requirement", str(lock)]
        run_pip(site, [*interpreter, "install", *options], folder, cache=cache_of(site))
        shutil.rmtree(work)
        (folder / _STAMP).write_text(environment.lock)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
