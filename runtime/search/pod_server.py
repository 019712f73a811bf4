"""A pod as a bench: Triton in the target's own image and on its nodes, measured from here over the cluster's network.

The pod has every package, and each trial loads one with its configuration given in the request, so that nothing is ever
written there. What is given is what `repository.reconfigure` writes into the final package, under another model name. A
server that a configuration kills is started anew for the next one.
"""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx
import tenacity

from shiplift.runtime.base.errors import ClusterUnreachable, MeasurementFailed, ServerFailed, ShipliftError, Temporary
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.measure.generator import WireProtocol
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.kubernetes.bench_pod import BenchPod, Running
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.objects.bench import METER, served_as
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.config import parse, renamed, retuned
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_METER_S = 10


class Pod(Protocol):
    """What this bench needs of a pod; see `runtime.serving.kubernetes.bench_pod.BenchPod`."""

    def start(self) -> Running:
        """The pod, fresh and answering."""

    def why_ended(self) -> str:
        """Why it does not answer."""


class PodServer:
    """A server in a pod of its own. See `runtime.search.bench.Bench`."""

    def __init__(self, pod: Pod, store: ArtifactStore, folder: Path) -> None:
        """Starts the pod; whoever made it ends it."""
        self._pod = pod
        self._store = store
        self._folder = folder
        self._configs: dict[Precision, str] = {}
        self._loaded = ""
        self._connect()
        told = self._told()
        self._cores, self._hardware = int(told["cores"]), list(told["hardware"])

    @property
    def cores(self) -> int:
        """Those of the pod."""
        return self._cores

    @property
    def hardware(self) -> list[object]:
        """The pod's node."""
        return self._hardware

    def serve(self, point: Point) -> str:
        """Loads a package after the one before is gone: two of them may not fit into a GPU's memory.

        Raises:
            ServerFailed: it can't be loaded, or the server died of it.
            Temporary: the server died, and its pod can't be started again.
        """
        if not self._client.live():
            self._restart()
        model = served_as(point.package)
        text = renamed(retuned(self._config(point.package), point.config), model)
        try:
            if self._loaded:
                self._client.unload(self._loaded)
            self._loaded = model
            self._client.load(model, parse(text))
        except Temporary as error:
            raise ServerFailed(self._lost(error.what), do="Leave this configuration out of `search`.") from error
        return model

    def address(self, protocol: WireProtocol) -> str:
        """The pod's own address: nothing else leads to it."""
        return f"{self._running.host}:{GRPC if protocol == 'grpc' else HTTP}"

    def memory_mb(self) -> float:
        """The server's and its children's memory, as proportional set size, as the pod's meter tells it.

        Raises:
            MeasurementFailed: the pod is gone.
        """
        return float(self._told()["memory_mb"])

    def tree(self, package: Package) -> Path:
        """The package from the artifact store: the pod has a copy of its own."""
        return self._store.fetch(package.repository, self._folder / package.precision)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _connect(self) -> None:
        self._running = self._pod.start()
        self._loaded = ""
        self._client = TritonClient(f"{self._running.host}:{GRPC}", repository_key=self._running.key)

    def _restart(self) -> None:
        self._client.close()
        try:
            self._connect()
        except ServerFailed as error:
            raise Temporary(
                f"the server to measure on ended, and can't be started again: {error.what}", do="Try again later."
            ) from error

    def _config(self, package: Package) -> str:
        """The package's config.pbtxt as packaged."""
        if package.precision not in self._configs:
            file = f"{serving_name(package.model)}/config.pbtxt"
            self._configs[package.precision] = self._store.read_from_tree(package.repository, file).decode()
        return self._configs[package.precision]

    def _told(self) -> dict[str, Any]:
        try:
            answer = _patiently(httpx.get, f"http://{self._running.host}:{METER}/", timeout=_METER_S, trust_env=False)
            return dict(answer.raise_for_status().json())
        except (httpx.HTTPError, ValueError) as error:
            raise MeasurementFailed(self._lost(f"its meter does not answer: {error}"), do="See its events.") from error

    def _lost(self, what: str) -> str:
        """What happened, with what the cluster knows of it."""
        why = ""
        with contextlib.suppress(ShipliftError):  # it may not answer either
            why = self._pod.why_ended()
        return f"{what} ({why})" if why else what


_patiently = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(_METER_S),
    reraise=True,
)


@contextmanager
def pod_bench(site: Site, packages: tuple[Package, ...], _: Serving, folder: Path) -> Iterator[PodServer]:
    """A pod for as long as the context lasts; what its server needs, its packages say.

    Raises:
        ServerFailed: it did not come up; the message says why.
        ClusterRefused: this process has no right to make it.
    """
    cluster = site.place
    if not isinstance(cluster, Cluster):
        raise ClusterUnreachable("this site is no cluster", do="Release it on a cluster.")
    pod = BenchPod(KubernetesClient(cluster.serving_namespace), cluster, packages, site.artifacts_uri)
    try:
        with contextlib.closing(PodServer(pod, ArtifactStore(site.artifacts_uri), folder)) as server:
            yield server
    finally:
        with contextlib.suppress(ShipliftError):  # a search that is done does not fail for this: `conclude` ends it too
            pod.end()
