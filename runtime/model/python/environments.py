"""A Python model's environment: its packages, installed once per set of packages.

Only wheels are installed, so none of their code runs before the sandbox does, and what they bring is inspected. The
record of an environment has their hashes, so that a machine without the environment installs exactly the same. On a
cluster it is installed once per release, and the release's other pods get it as a layer (`layers.py`).
"""

import fcntl
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.python import inspection, layers, wheels
from shiplift.runtime.model.python.pip import run_pip
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import PythonEnvironment, PythonModel
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.artifacts import ArtifactStore

_LOCKED = ("--no-deps", "--require-hashes")
_STAMP = "inspected.json"  # written last: what the packages brought


def ensure(site: Site, environment: PythonEnvironment, layer: Path | None = None) -> Path:
    """The folder of an environment. If it does not exist, it is made, from its `layer` if there is one.

    Raises:
        NotAdmitted: a package is no longer available, or has changed.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
        ArtifactCorrupt, StorageFull: the layer can't be unpacked.
    """
    root = root_of(site)
    folder = root / environment.digest
    with (root / f".{environment.digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_there(site, environment):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        if layer:
            return layers.unpack(layer, folder)
        _make(site, environment, folder)
    return folder


def ensure_for(site: Site, model: PythonModel, store: ArtifactStore) -> Path:
    """The folder of a model's environment. If it does not exist, it is made, from the model's layer if it has one.

    Raises:
        NotAdmitted, Temporary, NotConfined, ArtifactCorrupt, StorageFull: as `ensure`.
    """
    if model.layer is None or is_there(site, model.environment):
        return ensure(site, model.environment)
    with scratch_folder(root_of(site)) as folder:
        return ensure(site, model.environment, store.fetch(model.layer, folder / "layer"))


def packed(site: Site, environment: PythonEnvironment, store: ArtifactStore) -> Artifact | None:
    """Stores the layer of an existing environment; None if environments don't travel.

    Raises:
        StorageFull: no space is left.
    """
    if not site.place.layers:
        return None
    progress("packing the model's environment")
    with scratch_folder(root_of(site)) as folder:
        return store.put_file(layers.pack(root_of(site) / environment.digest, folder / "layer"))


def is_there(site: Site, environment: PythonEnvironment) -> bool:
    """Whether an environment was made completely."""
    return (root_of(site) / environment.digest / _STAMP).is_file()


def readable(environment: Path, *others: Path) -> list[str]:
    """What a model's process reads besides the system's libraries: its environment, the interpreter, and `others`."""
    return [str(path.resolve()) for path in (environment, Path(sys.base_prefix), *others)]


def root_of(site: Site) -> Path:
    """The folder of a site's environments."""
    site.environments.mkdir(parents=True, exist_ok=True)
    return site.environments


def fetch(site: Site, environment: PythonEnvironment, work: Path) -> Path:
    """Fetches the wheels of an environment, which are kept for the next one; returns their folder, below `work`.

    Raises:
        NotAdmitted: a package is no longer available, or has changed.
        Temporary: the index can't be reached.
        NotConfined: the kernel refuses to confine pip.
    """
    folder, store = work / "wheels", root_of(site) / ".wheels"
    folder.mkdir()
    lacking = wheels.offer(store, [wheel.sha256 for wheel in environment.wheels], folder)
    if lacking:
        missing = [wheel for wheel in environment.wheels if wheel.sha256 in lacking]
        lock = work / "missing.txt"
        lock.write_text(environment.model_copy(update={"wheels": tuple(missing)}).lock)
        run_pip(site, ["download", *_LOCKED, "--dest", str(folder), "--requirement", str(lock)], work)
        wheels.keep(store, sorted(folder.iterdir()), lacking)
    return folder


def _make(site: Site, environment: PythonEnvironment, folder: Path) -> None:
    progress(f"installing {len(environment.wheels)} packages for the model")
    folder.mkdir()
    try:
        if site.place.layers:
            layers.make_portable(folder)
        else:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
        before = inspection.seen(folder)
        work = folder / "work"
        work.mkdir()
        offered, lock = fetch(site, environment, work), work / "lock.txt"
        lock.write_text(environment.lock)
        options = ["--no-compile", "--ignore-installed", "--prefix", str(folder), "--find-links", str(offered)]
        run_pip(site, ["install", *_LOCKED, *options, "--requirement", str(lock)], folder, offline=True)
        shutil.rmtree(work)
        _inspect(folder, before, environment)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _inspect(folder: Path, before: inspection.Seen, environment: PythonEnvironment) -> None:
    found = inspection.inspect(folder, before)
    progress(
        f"installed {found.files:,} files, {found.size_bytes >> 20} MiB, {len(found.native)} of them native libraries"
    )
    (folder / _STAMP).write_text(json.dumps({"lock": environment.lock, **asdict(found)}, indent=1))
