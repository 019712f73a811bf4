"""A pod as a bench: Triton in the target's own image on its nodes, measured from here over the cluster's network.

The pod has every package. Each trial loads one of them, with its configuration in the load request, so nothing is ever
written in the pod. Except for the model's name, `repository.reconfigure` writes the same configuration into the final
package. If a configuration kills the server, the next trial gets a fresh pod.
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
from shiplift.runtime.base.plain_http import NO_AUTHORITIES
from shiplift.runtime.measure.generator import WireProtocol
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.kubernetes.bench_pod import BenchPod, Running
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.objects.bench import METER, served_as
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.config import of_called, parse, renamed, retuned
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_METER_S = 10


class MeasuringPod(Protocol):
    """What this bench needs from a pod; see `runtime.serving.kubernetes.bench_pod.BenchPod`."""

    def start(self) -> Running:
        """Starts a fresh pod and waits until it answers."""

    def why_ended(self) -> str:
        """Why the pod does not answer."""


class PodServer:
    """A server in a pod of its own. See `runtime.search.bench.Bench`."""

    def __init__(self, pod: MeasuringPod, store: ArtifactStore, folder: Path) -> None:
        """Starts the pod; its owner ends it."""
        self._pod = pod
        self._store = store
        self._folder = folder
        self._configs: dict[tuple[str, str], str] = {}
        self._loaded: tuple[str, ...] = ()
        self._connect()
        reading = self._read_meter()
        self._cores, self._hardware = int(reading["cores"]), list(reading["hardware"])

    @property
    def cores(self) -> int:
        """The cores of the pod."""
        return self._cores

    @property
    def steady_cores(self) -> int:
        """All of them, as far as the pod tells."""
        return self._cores

    @property
    def hardware(self) -> list[object]:
        """The hardware of the pod's node."""
        return self._hardware

    def serve(self, point: Point) -> str:
        """Unloads the previous package, since a GPU's memory may not hold both, and loads this one.

        Raises:
            ServerFailed: the package can't be loaded, or it killed the server.
            Temporary: the server had died, and its pod can't be restarted.
        """
        if not self._client.live():
            self._restart()
        texts = self._texts(point)
        try:
            for model in reversed(self._loaded):
                self._client.unload(model)
            self._loaded = tuple(texts)
            self._load_member_models(point.package)
            for model, text in texts.items():
                self._client.load(model, parse(text))
        except Temporary as error:
            raise ServerFailed(self._explained(error.what), do="Leave this configuration out of `search`.") from error
        return served_as(point.package)

    def _texts(self, point: Point) -> dict[str, str]:
        """The configurations of the models to load, by their names in the pod; called models come first."""
        package, config = point.package, point.config
        tuned = {ending: of_called(config) for ending in package.called_endings} | {"": config}
        names = {ending: f"{served_as(package)}{ending}" for ending in tuned}
        texts = {ending: self._config(package, ending) for ending in tuned}
        if package.tunable:
            texts = {ending: retuned(text, tuned[ending]) for ending, text in texts.items()}
        return {names[ending]: renamed(text, names[ending]) for ending, text in texts.items()}

    def _load_member_models(self, package: Package) -> None:
        """Loads a pipeline's members, which its graph needs; they stay loaded."""
        loaded = self._client.loaded() if package.member_models else {}
        for name in package.member_models:
            if name not in loaded:
                self._client.load(name)

    def address(self, protocol: WireProtocol) -> str:
        """The pod's own address, since no Service exposes it."""
        return f"{self._running.host}:{GRPC if protocol == 'grpc' else HTTP}"

    def memory_mb(self) -> float:
        """The memory of the server and its children (proportional set size), as the pod's meter reports it.

        Raises:
            MeasurementFailed: the pod is gone.
        """
        return float(self._read_meter()["memory_mb"])

    def others_s(self) -> float | None:
        """Unknown: the pod sees its node's cores, and not which of them it could have used."""
        return None

    def tree(self, package: Package) -> Path:
        """The package, fetched from the artifact store; the pod has its own copy."""
        return self._store.fetch(package.repository, self._folder / package.variant)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def _connect(self) -> None:
        self._running = self._pod.start()
        self._loaded = ()
        self._client = TritonClient(f"{self._running.host}:{GRPC}", repository_key=self._running.key)

    def _restart(self) -> None:
        self._client.close()
        try:
            self._connect()
        except ServerFailed as error:
            raise Temporary(
                f"the measurement server ended and can't be restarted: {error.what}", do="Rerun the release later."
            ) from error

    def _config(self, package: Package, ending: str) -> str:
        """A config.pbtxt as packaged; `ending` ends the model's name."""
        key = package.variant, ending
        if key not in self._configs:
            file = f"{serving_name(package.model)}{ending}/config.pbtxt"
            self._configs[key] = self._store.read_from_tree(package.repository, file).decode()
        return self._configs[key]

    def _read_meter(self) -> dict[str, Any]:
        try:
            answer = _retrying(
                httpx.get,
                f"http://{self._running.host}:{METER}/",
                timeout=_METER_S,
                trust_env=False,
                verify=NO_AUTHORITIES,
            )
            return dict(answer.raise_for_status().json())
        except (httpx.HTTPError, ValueError) as error:
            message = self._explained(f"the meter of the measurement pod does not answer: {error}")
            raise MeasurementFailed(message, do="See the pod's events.") from error

    def _explained(self, message: str) -> str:
        """The message, with the cluster's reason if it gives one."""
        why = ""
        with contextlib.suppress(ShipliftError):  # the cluster may be silent too
            why = self._pod.why_ended()
        return f"{message} ({why})" if why else message


_retrying = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(httpx.TransportError),
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(_METER_S),
    reraise=True,
)


@contextmanager
def pod_bench(site: Site, packages: tuple[Package, ...], _: Serving, folder: Path) -> Iterator[PodServer]:
    """Runs a pod as long as the context lasts. The packages say what its server needs.

    Raises:
        ServerFailed: it did not start; the message says why.
        ClusterRefused: this process is not allowed to create it.
    """
    cluster = site.place
    if not isinstance(cluster, Cluster):
        raise ClusterUnreachable("this site is not on a cluster", do="Release on a cluster.")
    pod = BenchPod(KubernetesClient(cluster.serving_namespace), cluster, packages, site.artifacts_for_pods)
    try:
        with contextlib.closing(PodServer(pod, ArtifactStore(site.artifacts_uri), folder)) as server:
            yield server
    finally:
        with contextlib.suppress(ShipliftError):  # must not fail a finished search: `conclude` ends the pod too
            pod.end()
