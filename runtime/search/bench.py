"""What a bench is: a server of one search's own, on which every point is loaded in turn and measured.

Which kind there is depends on where the release runs and on the server that its target serves with. A new one is a
class and a line in `start_bench`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.measure.generator import WireProtocol
from shiplift.runtime.records.serving import Package, ServerKind
from shiplift.runtime.records.site import Cluster, Machine, Site
from shiplift.runtime.search.space import Point
from shiplift.runtime.spec.serving import Serving


class Bench(Protocol):
    """A running server that nobody but one search uses."""

    @property
    def cores(self) -> int:
        """How many cores its server may use."""

    @property
    def hardware(self) -> list[object]:
        """What its measurements are true of, as JSON: the processor's features, its cores, a GPU."""

    def serve(self, point: Point) -> str:
        """Loads a point's package under its configuration; gives the name it answers to.

        Raises:
            ServerFailed: the server can't load it.
        """

    def address(self, protocol: WireProtocol) -> str:
        """Where the server answers: `host:port`."""

    def memory_mb(self) -> float:
        """What the server uses now, in MiB."""

    def tree(self, package: Package) -> Path:
        """The package's files on this machine; whoever asks may change them."""


StartBench = Callable[[Site, tuple[Package, ...], Serving, Path], AbstractContextManager[Bench]]


def start_bench(
    site: Site, packages: tuple[Package, ...], serving: Serving, folder: Path
) -> AbstractContextManager[Bench]:
    """The bench for packages of one target, which ends with the context; `folder` is for its files.

    Raises:
        MissingTool: nothing here can run the target's server.
        ServerFailed: the server did not come up; the message says why.
        ClusterRefused: the cluster does not let this process start one.
    """
    start = _BENCHES.get((type(site.place), packages[0].server))
    if start is None:
        raise MissingTool(
            f"target {packages[0].target} is for NVIDIA's Triton image, this machine has the bundled server",
            do="Release it on a cluster, or use `server: bundled`.",
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


# On a cluster, the step's own pod runs on the target's nodes and has the bundled server; NVIDIA's needs another pod.
_BENCHES: dict[tuple[type[Machine | Cluster], ServerKind], StartBench] = {
    (Machine, "bundled"): _private_server,
    (Cluster, "bundled"): _private_server,
    (Cluster, "nvidia"): _pod_server,
}
