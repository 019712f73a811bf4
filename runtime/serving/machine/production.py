"""Production on one machine: one Triton in explicit mode, with one model folder per served name, and no downtime.

A version is first loaded next to the serving one, under a name of its own, where it must answer its golden requests.
Then the served name is reloaded in place: Triton warms up the new version while the old one answers, switches
atomically, and keeps the old one if that fails. `NAME--tensors` follows in the same way, and both are put back if
either fails. There is no router in between that would slow down requests.
A package's member models (a pipeline's members) have names of their own: they are loaded beside the serving ones.
Those of the previous package stay loaded until the next move: its last requests can end, and a rollback loads nothing.
Every method can be killed at any line and called again.
"""

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from shiplift.runtime.base.errors import ServerFailed, ShipliftError
from shiplift.runtime.base.names import TENSORS, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.promotion import Abort, Beside, Moving
from shiplift.runtime.records.retirement import Traffic
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.serving.abort import aborted
from shiplift.runtime.serving.machine import baking as noted
from shiplift.runtime.serving.machine import moving
from shiplift.runtime.serving.machine.loading import touch
from shiplift.runtime.serving.machine.quarantine import quarantined
from shiplift.runtime.serving.machine.served import (
    forget,
    forget_served,
    member_models,
    note_member_models,
    note_served,
    served,
    served_version,
)
from shiplift.runtime.serving.machine.traffic import traffic_of
from shiplift.runtime.serving.member_models import drop_models, load_member_models
from shiplift.runtime.serving.python_environment import prepare
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, TritonClient, check_package
from shiplift.runtime.serving.triton.repository import GOLDEN, install_all, retire
from shiplift.runtime.serving.triton.repository_key import key_of
from shiplift.runtime.spec.serving_settings import Rollout
from shiplift.runtime.store.artifacts import ArtifactStore

_BESIDE = "--next"


def _what_serves(package: Package) -> tuple[object, ...]:
    return package.version, package.repository, package.capturing, package.drifting


def _unchecked() -> None:
    """Checks nothing: a move outside a promotion can't be aborted."""


class LocalProduction:
    """The production server of a machine. See `runtime.serving.production.Production`."""

    def __init__(self, site: Site, machine: Machine) -> None:
        self._site = site
        self._machine = machine
        self._root = Path(site.home)
        self._home = self._root / "production"
        self.repository = self._home / "models"

    @contextmanager
    def lock(self, model: str) -> Iterator[None]:
        """Allows one promotion or rollback of a model at a time; the kernel releases the lock if its holder dies."""
        with self.lock_of(serving_name(model)).open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def lock_of(self, name: str) -> Path:
        """The file that is locked while a served name moves; names such as `NAME--tensors` share the lock of `NAME`."""
        file = self._home / "locks" / name.partition("--")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def client(self, *, request_id: str = "") -> TritonClient:
        """A client that may load and unload models. `request_id` is that of every inference."""
        return TritonClient(self._machine.grpc, repository_key=key_of(self.repository), request_id=request_id)

    def endpoint(self, model: str) -> Endpoint:
        """The addresses at which a model answers."""
        return Endpoint(http=f"http://{self._machine.http}/v2/models/{serving_name(model)}", grpc=self._machine.grpc)

    def serving(self, model: str) -> int:
        """The version that answers under a model's name; 0 if none does."""
        return served_version(Path(self._site.home), model)

    def quarantine(self, model: str, version: int) -> str:
        """Why a version was kept apart here once, because it crashed; empty if it never was."""
        return quarantined(Path(self._site.home), model, version)

    def serves(self, package: Package, others: Sequence[Beside] = ()) -> bool:  # noqa: ARG002 - one server
        """Whether exactly this package answers under its name."""
        name = serving_name(package.model)
        state = served(Path(self._site.home), package.model)
        if state is None or _what_serves(state.package) != _what_serves(package):
            return False
        with self.client() as client:
            return all(sorted(client.versions(name + ending)) == package.versions for ending in package.endings)

    def move(
        self,
        package: Package,
        rollout: Rollout,  # noqa: ARG002 - one server
        capacity: Capacity | None = None,  # noqa: ARG002
        others: Sequence[Beside] = (),  # noqa: ARG002
        requested_at: float | None = None,
    ) -> None:
        """Makes this package answer every request under its name, atomically.

        Raises:
            Aborted: a person ended the promotion; the previous package still serves.
            GoldenMismatch: it answers wrongly; the previous package still serves.
            ServerFailed: Triton can't load it; the previous package still serves.
        """
        name, check = serving_name(package.model), _unchecked
        if requested_at is not None:
            check = partial(self._require_not_aborted, package.model)
            moving.begin(self._root, package.model, Moving(version=package.version, requested_at=requested_at))
        check()
        store = ArtifactStore(self._site.artifacts_uri)
        self.repository.mkdir(parents=True, exist_ok=True)
        prepare(self._site, package)
        with scratch_folder(Path(self._site.home)) as folder:
            tree = store.fetch(package.repository, folder)
            golden = load_npz(tree / GOLDEN)
            with self.client(request_id=OWN_REQUESTS) as client:
                self._beside(client, tree, package, name, golden)
                check()
                self._switch(client, tree, package, name, golden, check)
        note_served(Path(self._site.home), package)

    def moving(self, model: str) -> Moving | None:
        """The promotion whose traffic moves, or that ended and is not concluded; None if there is none."""
        return moving.moving(self._root, model)

    def abort(self, model: str, order: Abort) -> Moving | None:
        """Orders that the traffic of a promotion goes back, which its process notices before its next step."""
        return moving.abort(self._root, model, order)

    def commit(self, model: str) -> None:
        """Ends the time in which a promotion can be aborted.

        Raises:
            Aborted: it was, before.
        """
        known = moving.commit(self._root, model)
        if known and known.abort:
            raise aborted(known.abort, model, known.version)

    def bake(self, baking: Baking) -> None:
        """Notes that a version is watched. The one before it has its package and its environment on this machine."""
        noted.begin(self._root, baking)

    def baking(self, model: str) -> Baking | None:
        """The last bake of a model, over or not; None if it had none."""
        return noted.baking(self._root, model)

    def baked(self, baking: Baking) -> None:
        """Notes how a bake ended, unless another one has taken its place."""
        noted.change(self._root, baking, lambda _now: baking)

    def settle(self, model: str, version: int) -> None:
        """Forgets the promotion of a version, whose release is concluded."""
        moving.forget(self._root, model, version)

    def withdraw(self, model: str) -> None:
        """Unloads a model once its last requests are answered, and removes its files.

        Nothing is noted to serve from the first line on, so no repair and no restart brings it back.
        """
        name = serving_name(model)
        names = [name + ending for ending in ("", TENSORS, _BESIDE, _BESIDE + TENSORS)]
        members = member_models(self._root, model)
        forget_served(self._root, model)
        with self.client() as client:
            drop_models(client, self.repository, [*names, *members])
        forget(self._root, model)

    def traffic(self, model: str) -> Traffic:
        """The requests that clients sent to a model lately, as the heartbeat counted them."""
        return traffic_of(self._root, model)

    def drop(self, package: Package) -> None:
        """Unloads the member models of a package that does not serve; other files of it went when it was replaced."""
        state, known = served(self._root, package.model), member_models(self._root, package.model)
        needed = state.package.member_models if state else ()
        unneeded = [name for name in known if name in package.member_models and name not in needed]
        if not unneeded:
            return
        with self.client() as client:
            drop_models(client, self.repository, unneeded)
        note_member_models(self._root, package.model, (name for name in known if name not in unneeded))

    def retire(self, model: str) -> None:
        """Unloads the models that only the move needed, and removes the files of versions that no longer serve."""
        name, state = serving_name(model), served(Path(self._site.home), model)
        unneeded = [_BESIDE, _BESIDE + TENSORS]
        if state and not state.package.graph_tensors:  # the previous version may have had them
            unneeded.append(TENSORS)
        with self.client() as client:
            drop_models(client, self.repository, [name + ending for ending in unneeded])
            self._retire_member_models(client, model)
        for served_name in (name, name + TENSORS):
            retire(self.repository, served_name)

    def declare(
        self,
        package: Package,  # noqa: ARG002 - one server
        replicas: int,  # noqa: ARG002
        capacity: Capacity | None = None,  # noqa: ARG002
        others: Sequence[Beside] = (),  # noqa: ARG002
    ) -> bool:
        """Does nothing: the server's repository survives whatever stops the server."""
        return False

    def load_again(self, name: str, *, timeout_s: float) -> None:
        """Loads a served name again from the repository, even if its files have not changed."""
        touch(self.repository / name)
        with self.client() as client:
            client.load(name, timeout_s=timeout_s)

    def _beside(self, client: TritonClient, tree: Path, package: Package, name: str, golden: Arrays) -> None:
        progress(f"loading version {package.version} beside the one that serves")
        beside, home = name + _BESIDE, Path(self._site.home)
        if package.member_models:  # noted before they are loaded: after a kill, `retire` still knows what to unload
            note_member_models(home, package.model, (*member_models(home, package.model), *package.member_models))
        new = load_member_models(client, tree, self.repository, package.member_models)
        try:
            install_all(tree, self.repository, source=name, name=beside)
            for ending in package.endings:
                client.load(beside + ending)
            check_package(client, beside, package, golden)
        except ShipliftError:
            drop_models(client, self.repository, [*new, *(beside + ending for ending in package.endings)])
            raise

    def _retire_member_models(self, client: TritonClient, model: str) -> None:
        home = Path(self._site.home)
        state, known = served(home, model), member_models(home, model)
        kept = state.kept if state else ()
        if unneeded := [name for name in known if name not in kept]:
            drop_models(client, self.repository, unneeded)
            note_member_models(home, model, (name for name in known if name in kept))

    def _require_not_aborted(self, model: str) -> None:
        """Raises `Aborted` if a person has ended the promotion."""
        known = moving.moving(self._root, model)
        if known and known.abort:
            raise aborted(known.abort, model, known.version)

    def _switch(
        self,
        client: TritonClient,
        tree: Path,
        package: Package,
        name: str,
        golden: Arrays,
        check: Callable[[], None],
    ) -> None:
        progress(f"moving {name} to version {package.version}")
        names = [name + ending for ending in package.endings]
        before = {served_name: self._config(served_name) for served_name in names}
        try:
            install_all(tree, self.repository, source=name, name=name)
            for served_name in names:
                self._load(client, served_name, package.versions)
            check_package(client, name, package, golden)
            check()
        except ShipliftError:
            for served_name in names:
                self._restore(client, served_name, before[served_name])
            raise

    def _config(self, name: str) -> str:
        """The configuration that a served name has; empty if it has none."""
        config = self.repository / name / "config.pbtxt"
        return config.read_text() if config.is_file() else ""

    def _load(self, client: TritonClient, name: str, versions: list[int]) -> None:
        client.load(name)
        if (loaded := sorted(client.versions(name))) != versions:
            raise ServerFailed(f"{name} serves {loaded} after the switch, not {versions}", do="Rerun the release.")

    def _restore(self, client: TritonClient, name: str, before: str) -> None:
        """Puts the previous configuration back, into the repository for a restart and into the server."""
        if before:
            write_atomically(self.repository / name / "config.pbtxt", before)
            client.load(name)
        else:
            drop_models(client, self.repository, [name])
