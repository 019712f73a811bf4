"""Production on one machine: one Triton in explicit mode, with one model folder per served name, and no downtime.

A version is first loaded next to the serving one, under a name of its own, where it must answer its golden requests.
Then the served name is reloaded in place: Triton warms up the new version while the old one answers, switches
atomically, and stays with the old one if that fails. There is no router in between, so requests pay nothing for it.
Every method can be killed at any line and called again.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shiplift.runtime.base.errors import ServerFailed, ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.serving import Endpoint, Package
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.repository import GOLDEN, install, retire
from shiplift.runtime.spec.serving import Rollout
from shiplift.runtime.store.artifacts import ArtifactStore

_BESIDE = "--next"


class Served(Record):
    """What a name serves since the last move: written after a move, read to see whether another is needed."""

    version: int
    package: str


class LocalProduction:
    """The production server of a machine. See `runtime.serving.production.Production`."""

    def __init__(self, site: Site, machine: Machine) -> None:
        self._site = site
        self._machine = machine
        self._home = Path(site.home) / "production"
        self.repository = self._home / "models"

    @contextmanager
    def lock(self, model: str) -> Iterator[None]:
        """A lock for one promotion or rollback of a model at a time; the kernel releases it if its holder dies."""
        file = self._home / "locks" / serving_name(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def endpoint(self, model: str) -> Endpoint:
        """Where a model answers."""
        return Endpoint(http=f"http://{self._machine.http}/v2/models/{serving_name(model)}", grpc=self._machine.grpc)

    def serves(self, package: Package) -> bool:
        """Whether exactly this package answers under its name."""
        name = serving_name(package.model)
        if self._served(name) != Served(version=package.version, package=package.repository.sha256):
            return False
        with TritonClient(self._machine.grpc) as client:
            return client.versions(name) == [package.version]

    def move(self, package: Package, rollout: Rollout) -> None:  # noqa: ARG002 - one server has nothing to roll out
        """Makes this package answer every request under its name, atomically.

        Raises:
            GoldenMismatch: it answers wrongly; the previous package still serves.
            ServerFailed: Triton can't load it; the previous package still serves.
        """
        name = serving_name(package.model)
        store = ArtifactStore(self._site.artifacts_uri)
        self.repository.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="shiplift-move-", dir=self._site.home) as folder:
            tree = store.fetch(package.repository, Path(folder))
            golden = load_npz(tree / GOLDEN)
            with TritonClient(self._machine.grpc) as client:
                self._beside(client, tree, package, name, golden)
                self._switch(client, tree, package, name, golden)
        write_atomically(
            self._state(name), Served(version=package.version, package=package.repository.sha256).model_dump_json()
        )

    def retire(self, model: str) -> None:
        """Unloads what was only needed for the move, and removes the files of versions that no longer serve."""
        name = serving_name(model)
        with TritonClient(self._machine.grpc) as client:
            client.unload(name + _BESIDE)
        shutil.rmtree(self.repository / (name + _BESIDE), ignore_errors=True)
        retire(self.repository, name)

    def _beside(self, client: TritonClient, tree: Path, package: Package, name: str, golden: Arrays) -> None:
        progress(f"loading version {package.version} beside the one that serves")
        beside = name + _BESIDE
        try:
            install(tree, self.repository, source=name, name=beside)
            client.load(beside)
            check_package(client, beside, package, golden)
        except ShipliftError:
            client.unload(beside)
            shutil.rmtree(self.repository / beside, ignore_errors=True)
            raise

    def _switch(self, client: TritonClient, tree: Path, package: Package, name: str, golden: Arrays) -> None:
        progress(f"moving {name} to version {package.version}")
        config = self.repository / name / "config.pbtxt"
        before = config.read_text() if config.is_file() else ""
        try:
            install(tree, self.repository, source=name, name=name)
            client.load(name)
            if client.versions(name) != [package.version]:
                raise ServerFailed(f"{name} serves {client.versions(name)} after the switch", do="Rerun the release.")
            check_package(client, name, package, golden)
        except ShipliftError:
            self._restore(client, name, before)
            raise

    def _restore(self, client: TritonClient, name: str, before: str) -> None:
        """Puts the previous configuration back, into the repository for a restart and into the server."""
        if before:
            write_atomically(self.repository / name / "config.pbtxt", before)
            client.load(name)
        else:
            client.unload(name)
            shutil.rmtree(self.repository / name, ignore_errors=True)

    def _served(self, name: str) -> Served | None:
        file = self._state(name)
        return Served.model_validate_json(file.read_text()) if file.is_file() else None

    def _state(self, name: str) -> Path:
        return self._home / "served" / f"{name}.json"
