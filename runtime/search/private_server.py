"""The bundled server as a bench: a child process, with the packages' trees beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.confinement.watch import worker
from shiplift.runtime.host.cpu_time import others_s
from shiplift.runtime.host.processes import memory_mb
from shiplift.runtime.host.processor import steady_cores, usable_cores
from shiplift.runtime.measure.generator import WireProtocol
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Site
from shiplift.runtime.search.calibration.keeping import this_hardware
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.machine.server import Server, private_server, survived
from shiplift.runtime.serving.member_models import load_member_models
from shiplift.runtime.serving.python_environment import prepare
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository import install, reconfigure
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore


@dataclass(frozen=True, kw_only=True)
class PrivateServer:
    """A private bundled server. See `runtime.search.bench.Bench`."""

    server: Server
    client: TritonClient
    trees: dict[str, Path]

    @property
    def cores(self) -> int:
        """The cores that this process may use."""
        return usable_cores()

    @property
    def steady_cores(self) -> int:
        """The whole cores of its quota that are about as fast as the fastest."""
        return steady_cores()

    @property
    def hardware(self) -> list[object]:
        """This machine's processor."""
        return this_hardware()

    def serve(self, point: Point) -> str:
        """Reloads the model in place.

        Raises:
            ServerFailed: the package can't be loaded, or it ended the server.
        """
        name = serving_name(point.package.model)
        tree = self.tree(point.package)
        if point.package.tunable:
            reconfigure(tree, name, point.config)
        install(tree, self.server.repository, source=name, name=name)
        with survived(self.server):
            load_member_models(self.client, tree, self.server.repository, point.package.member_models)
            self.client.load(name)
        return name

    def address(self, protocol: WireProtocol) -> str:
        """Its address on the loopback interface."""
        return self.server.grpc if protocol == "grpc" else self.server.http

    def memory_mb(self) -> float:
        """The memory of the server and its children (proportional set size)."""
        return memory_mb(worker(self.server.process.pid))

    def others_s(self) -> float | None:
        """What neither the server nor its clients here used. See `runtime.host.cpu_time`."""
        return others_s(self.server.process.pid)

    def tree(self, package: Package) -> Path:
        """The package, with the configuration that was served last."""
        return self.trees[package.variant]


@contextmanager
def private_bench(site: Site, packages: tuple[Package, ...], serving: Serving, folder: Path) -> Iterator[PrivateServer]:
    """Runs a private server as long as the context lasts.

    Raises:
        ServerFailed: it did not start.
    """
    progress("starting a server to measure on")
    store = ArtifactStore(site.artifacts_uri)
    trees = {package.variant: store.fetch(package.repository, folder / package.variant) for package in packages}
    for package in packages:
        prepare(site, package, trees[package.variant])
    environment = ServerEnvironment(Path(site.server_environment), site.environments)
    features = Features(rate_limiter=serving.rate_limiter is not None, allow_without=site.sandbox.allow_without)
    with (
        private_server(environment, folder / "models", features, log=folder / "triton.log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        yield PrivateServer(server=server, client=client, trees=trees)
