"""Staging on a cluster: the challenger's own Deployment and Service, next to the champion's and without traffic.

A challenger that passes its gates is not deployed again: production moves traffic to the same pods.
"""

import time

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.measurement import Tuned
from shiplift.runtime.records.serving import Deployment, Endpoint, Package, ServerPods, Staged
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.front import Front
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, POD, POD_METRICS
from shiplift.runtime.serving.kubernetes.objects.names import BENCH, HTTP, LABEL, METRICS, bench_label, package_name
from shiplift.runtime.serving.kubernetes.workloads import Workloads, golden_of
from shiplift.runtime.spec.serving import Serving

_COMPARED_WITH = f"{LABEL}compared-with"
_UNITS = {"Ki": 1 / 1024, "Mi": 1, "Gi": 1024, "": 1 / 1024**2}


class ClusterStaging:
    """The staging pods of a model version. See `runtime.serving.staging.Staging`."""

    def __init__(self, site: Site, cluster: Cluster, model: str, version: int) -> None:
        self._site = site
        self._cluster = cluster
        self._model = model
        self._version = version
        self._workloads = Workloads(site, cluster)

    def start(self, tuned: Tuned, serving: Serving) -> Deployment:  # noqa: ARG002 - the package says it all
        """Starts the challenger's pods and waits until they answer their golden requests correctly."""
        started, package = time.monotonic(), tuned.package
        progress("starting the challenger's pods")
        try:
            name = self._workloads.run(package)
            seconds = time.monotonic() - started
            self._workloads.check(package, name, golden_of(self._site, package))
        except BaseException:
            self.end()
            raise
        host = f"{name}.{self._cluster.serving_namespace}.svc"
        return Deployment(
            package=package,
            endpoint=self._endpoint(name, package.model),
            metrics=f"http://{host}:{METRICS}/metrics",
            load_seconds=seconds,
            workload=ServerPods(name=name, tuned_memory_mb=tuned.best.memory_mb),
        )

    def beside(self, deployment: Deployment, package: Package) -> Staged:  # noqa: ARG002 - it needs pods of its own
        """Serves the champion's package on extra pods, because production's have users, which would be unfair to it."""
        extra = {_COMPARED_WITH: f"{dns_name(self._model)}-{self._version}"}
        name = self._workloads.run(package, name=f"{package_name(package)}-twin", extra=extra)
        return Staged(model=serving_name(package.model), endpoint=self._endpoint(name, package.model))

    def memory_mb(self, deployment: Deployment) -> float | None:
        """The memory of a server in MiB: from the metrics API if there is one, else as measured in tuning."""
        servers = deployment.workload
        if not isinstance(servers, ServerPods):
            raise ServerFailed("the staging server has no pods on this cluster", do="Rerun the release.")
        if not self._workloads.api.serves(POD_METRICS):
            return servers.tuned_memory_mb or None
        pods = self._workloads.api.find(POD_METRICS, f"{LABEL}package={servers.name}")
        used = [_mib(container["usage"]["memory"]) for pod in pods for container in pod["containers"]]
        return sum(used) / len(pods) if used else servers.tuned_memory_mb or None

    def end(self) -> None:
        """Removes this version's pods unless production needs them, the champion's extra pods, and its benches."""
        api, in_production = self._workloads.api, Front(self._cluster, self._model).names()
        own = f"{LABEL}model={dns_name(self._model)},{LABEL}version={self._version},!{_COMPARED_WITH}"
        twins = f"{_COMPARED_WITH}={dns_name(self._model)}-{self._version}"
        for selector in (own, twins):
            for body in api.find(DEPLOYMENT, selector):
                if body["metadata"]["name"] not in in_production:
                    self._workloads.remove(body["metadata"]["name"])
        for pod in api.find(POD, f"{BENCH}={bench_label(self._model, self._version)}"):
            api.delete(POD, pod["metadata"]["name"])

    def _endpoint(self, name: str, model: str) -> Endpoint:
        host = f"{name}.{self._cluster.serving_namespace}.svc"
        return Endpoint(
            http=f"http://{host}:{HTTP}/v2/models/{serving_name(model)}", grpc=self._workloads.address(name)
        )


def _mib(quantity: str) -> float:
    number = quantity.rstrip("KMGi")
    return float(number) * _UNITS[quantity.removeprefix(number)]
