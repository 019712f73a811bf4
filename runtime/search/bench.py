"""The protocol of a bench: a server that only one search uses, on which each point is loaded and measured in turn.

The kind of bench depends on where the release runs and on the target's server. To add a kind, write a class and add a
line to `_BENCHES`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.measure.generator import WireProtocol
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.serving import ServerKind
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.search.space import Point
from shiplift.runtime.spec.serving_settings import Serving


class Bench(Protocol):
    """A running server that only one search uses."""

    @property
    def cores(self) -> int:
        """The number of cores that the server may use."""

    @property
    def steady_cores(self) -> int:
        """How many of them compute at full speed all the time. See `runtime.host.processor`."""

    @property
    def hardware(self) -> list[object]:
        """The hardware for which its measurements are valid, as JSON: CPU features, cores, a GPU."""

    def serve(self, point: Point) -> str:
        """Loads a point's package with its configuration and returns the name under which it is served.

        Raises:
            ServerFailed: the server can't load it.
        """

    def address(self, protocol: WireProtocol) -> str:
        """The server's address: `host:port`."""

    def memory_mb(self) -> float:
        """The memory that the server uses now, in MiB."""

    def others_s(self) -> float | None:
        """The CPU seconds that others have used so far on the server's cores; None if that is unknown."""

    def tree(self, package: Package) -> Path:
        """The package's files on this machine; the caller may change them."""


StartBench = Callable[[Site, tuple[Package, ...], Serving, Path], AbstractContextManager[Bench]]


def start_bench(
    site: Site, packages: tuple[Package, ...], serving: Serving, folder: Path
) -> AbstractContextManager[Bench]:
    """Starts a bench for packages of one target; it ends with the context. `folder` is for its files.

    Raises:
        MissingTool: this place can't run the target's server.
        ServerFailed: the server did not start; the message says why.
        ClusterRefused: the cluster does not allow this process to start one.
    """
    start = _BENCHES.get((type(site.place), packages[0].server))
    if start is None:
        raise MissingTool(
            f"target {packages[0].target} needs NVIDIA's Triton image, this machine has the bundled server",
            do="Release on a cluster, or use `server: bundled`.",
        )
    return start(site, packages, serving, folder)


def _private_server(
    site: Site, packages: tuple[Package, ...], serving: Serving, folder: Path
) -> AbstractContextManager[Bench]:
    from shiplift.runtime.search.private_server import private_bench  # noqa: PLC0415 - these import this module

    return private_bench(site, packages, serving, folder)


def _pod_server(
    site: Site, packages: tuple[Package, ...], serving: Serving, folder: Path
) -> AbstractContextManager[Bench]:
    from shiplift.runtime.search.pod_server import pod_bench  # noqa: PLC0415

    return pod_bench(site, packages, serving, folder)


# On a cluster, the step's own pod runs on the target's nodes and has the bundled server. NVIDIA's needs another pod.
_BENCHES: dict[tuple[type[Machine | Cluster], ServerKind], StartBench] = {
    (Machine, "bundled"): _private_server,
    (Cluster, "bundled"): _private_server,
    (Cluster, "nvidia"): _pod_server,
}
