"""Staging on one machine: a release's own bundled server, started by `deploy` and used by `load_test`.

It is a child of the release's process and dies with it. Its folder also records the process, so that the release's last
stage can stop it and remove the folder whatever happened before.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.host.processes import kill, memory_mb
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.deployment import ONE_TARGET, Deployment, Endpoint, ServerProcess, Staged
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.machine.server import start_private, survived
from shiplift.runtime.serving.member_models import load_member_models
from shiplift.runtime.serving.python_environment import prepare
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository import GOLDEN, install, install_all
from shiplift.runtime.serving.triton.repository_key import key_of
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_BESIDE = "--champion"


class LocalStaging:
    """The staging server of a model version."""

    def __init__(self, site: Site, model: str, version: int) -> None:
        self._site = site
        self._environment = ServerEnvironment(Path(site.server_environment), site.environments)
        self._store = ArtifactStore(site.artifacts_uri)
        self.folder = Path(site.home) / "staging" / f"{serving_name(model)}-{version}"
        self._state = self.folder / "process.json"

    def start(self, tuned: tuple[Tuned, ...], serving: Serving, rollout: Rollout) -> Deployment:  # noqa: ARG002 - one server
        """Starts a fresh server with one model, after stopping any old one. See `runtime.serving.staging.Staging`."""
        self.end()
        package = tuned[0].package
        prepare(self._site, package)
        progress("starting the staging server")
        features = Features(
            rate_limiter=serving.rate_limiter is not None, allow_without=self._site.sandbox.allow_without, captures=True
        )
        server = start_private(self._environment, self.folder / "models", features, log=self.folder / "triton.log")
        name = serving_name(package.model)
        try:
            write_atomically(self._state, server.process.model_dump_json())
            tree = self._store.fetch(package.repository, self.folder / "package")
            install_all(tree, server.repository, source=name, name=name)
            with survived(server), TritonClient(server.grpc, repository_key=server.key) as client:
                progress("loading and warming the model")
                load_member_models(client, tree, server.repository, package.member_models)
                seconds = sum(client.load(name + ending) for ending in package.endings)
                golden = load_npz(tree / GOLDEN)
                check_package(client, name, package, golden)
        except BaseException:
            kill(server.process)  # it may not be recorded yet
            self.end()
            raise
        return Deployment(
            package=package,
            endpoint=Endpoint(http=f"http://{server.http}/v2/models/{name}", grpc=server.grpc),
            metrics=server.metrics,
            load_seconds=seconds,
            workload=ServerProcess(process=server.process, repository=str(server.repository)),
            left_out=dict.fromkeys((other.target for other in tuned[1:]), ONE_TARGET),
        )

    @contextmanager
    def beside(self, deployment: Deployment, package: Package) -> Iterator[Staged]:
        """Serves another package on the same server under a name of its own; both end with the release."""
        prepare(self._site, package)
        name = serving_name(package.model)
        tree = self._store.fetch(package.repository, self.folder / "beside")
        repository = Path(_server(deployment).repository)
        install(tree, repository, source=name, name=name + _BESIDE)
        with TritonClient(deployment.endpoint.grpc, repository_key=key_of(repository)) as client:
            load_member_models(client, tree, repository, package.member_models)
            client.load(name + _BESIDE)
        yield Staged(model=name + _BESIDE, endpoint=deployment.endpoint)

    def memory_mb(self, deployment: Deployment) -> float | None:
        """The memory of the server and its children in MiB, as proportional set size.

        Raises:
            ServerFailed: the server is gone.
        """
        return memory_mb(worker(_server(deployment).process.pid))

    def end(self) -> None:
        """Stops the server, if there is one, and removes its folder."""
        if self._state.is_file():
            kill(Process.model_validate_json(self._state.read_text()))
        shutil.rmtree(self.folder, ignore_errors=True)


def _server(deployment: Deployment) -> ServerProcess:
    if not isinstance(deployment.workload, ServerProcess):
        raise ServerFailed("the staging server has no process on this machine", do="Rerun the release.")
    return deployment.workload
