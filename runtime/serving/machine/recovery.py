"""Repairs of what production serves on this machine: a model is loaded again, installed again, or unloaded.

Each repair holds the lock of the served name, and does nothing while a promotion or a rollback holds it.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.serving.machine.production import LocalProduction
from shiplift.runtime.serving.member_models import load_member_models
from shiplift.runtime.serving.python_environment import prepare
from shiplift.runtime.serving.triton.client import check_package
from shiplift.runtime.serving.triton.repository import GOLDEN, install_all
from shiplift.runtime.store.artifacts import ArtifactStore


def reload_stuck(site: Site, machine: Machine, name: str, *, timeout_s: float) -> None:
    """Gives a served name new instances; the old ones stay until their executions end, if ever.

    Does nothing while a promotion or a rollback of the model is under way, because that does the same.

    Raises:
        ServerFailed: Triton can't load it, or not in time.
    """
    with _unless_it_moves(site, machine, name) as place:
        if place:
            place.load_again(name, timeout_s=timeout_s)


def reinstall(site: Site, machine: Machine, package: Package, *, timeout_s: float) -> None:
    """Serves a package again from the artifact store, whatever happened to the server's copy of it.

    Does nothing while a promotion or a rollback of the model is under way.

    Raises:
        ServerFailed: Triton can't load it, or not in time.
        ArtifactCorrupt: the store no longer has it.
        GoldenMismatch: it still answers wrongly.
    """
    name = serving_name(package.model)
    with _unless_it_moves(site, machine, name) as place, scratch_folder(Path(site.home)) as folder:
        if place:
            tree = ArtifactStore(site.artifacts_uri).fetch(package.repository, folder)
            prepare(site, package, tree)
            with place.client() as client:
                load_member_models(client, tree, place.repository, package.member_models)
                install_all(tree, place.repository, source=name, name=name)
                for ending in package.endings:
                    place.load_again(name + ending, timeout_s=timeout_s)
                check_package(client, name, package, load_npz(tree / GOLDEN))


def moves(home: Path, name: str) -> bool:
    """Whether a promotion or a rollback of a served name is under way."""
    file = home / "production" / "locks" / name
    if not file.is_file():
        return False
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def unload_stuck(site: Site, machine: Machine, name: str) -> None:
    """Stops serving a name until the server's next start; running executions go on, but no new ones can begin.

    Does nothing while a promotion or a rollback of the model is under way.

    Raises:
        ServerFailed: Triton can't unload it.
    """
    with _unless_it_moves(site, machine, name) as place:
        if place:
            with place.client() as client:
                client.unload(name)


@contextmanager
def _unless_it_moves(site: Site, machine: Machine, name: str) -> Iterator[LocalProduction | None]:
    """Holds the lock of a served name; None if a promotion or a rollback holds it."""
    place = LocalProduction(site, machine)
    with place.lock_of(name).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield place
