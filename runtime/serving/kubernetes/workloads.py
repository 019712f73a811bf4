"""Running a package as pods: applied, waited for, and explained when it does not come up.

A pod that can't start says why in many places (its containers, its conditions, its Deployment). The reason is looked
up here, so that the release ends with it instead of with "timed out".
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes import guard
from shiplift.runtime.serving.kubernetes.api import Api, Object
from shiplift.runtime.serving.kubernetes.objects import (
    GRPC,
    LABEL,
    deployment,
    disruption_budget,
    package_name,
    service,
)
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore

_POLL_S = 0.5
_HOPELESS = {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError"}
_PATIENCE = {"ImagePullBackOff": 20.0, "ErrImagePull": 20.0, "CrashLoopBackOff": 0.0}


class Workloads:
    """The packages that run in the serving namespace."""

    def __init__(self, site: Site, cluster: Cluster) -> None:
        self.api = Api(cluster.serving_namespace)
        self._cluster = cluster
        self._artifacts_uri = site.artifacts_uri

    def run(self, package: Package, *, name: str = "", replicas: int = 1, extra: dict[str, str] | None = None) -> str:
        """Makes a package run with at least so many replicas, and waits until they are ready; gives its name.

        Raises:
            ServerFailed: it can't be scheduled, fetched or loaded; the message says why.
        """
        name = name or package_name(package)
        there = self.api.get("Deployment", name)
        replicas = max(replicas, int(there["spec"].get("replicas") or 0) if there else 0)
        more = extra or {}
        self.api.apply(
            deployment(
                self._cluster, package, self._artifacts_uri, name=name, replicas=replicas, extra=more
            )
        )  # fmt: skip
        self.api.apply(service(package, name=name, extra=more))
        if not more:
            self.api.apply(disruption_budget(package, name=name))
        self._wait(name, replicas)
        return name

    def remove(self, name: str) -> None:
        """Ends a package's pods; nothing there is no error."""
        self.api.delete("PodDisruptionBudget", name)
        self.api.delete("Service", name)
        self.api.delete("Deployment", name)

    def address(self, name: str) -> str:
        """A package's own gRPC address, whatever share of the traffic it has."""
        return f"{name}.{self._cluster.serving_namespace}.svc:{GRPC}"

    def check(self, package: Package, name: str, golden: Arrays) -> None:
        """Sends the golden requests to a package's own Service.

        Raises:
            GoldenMismatch: an answer is wrong.
        """
        with TritonClient(self.address(name)) as client:
            check_package(client, serving_name(package.model), package, golden)

    def pods(self, name: str) -> list[Object]:
        """The ready pods of a package."""
        return [pod for pod in self.api.find("Pod", f"{LABEL}package={name}") if _ready(pod)]

    @contextmanager
    def clients(self, name: str) -> Iterator[list[TritonClient]]:
        """A client per ready pod: counters are each server's own."""
        clients = [TritonClient(f"{pod['status']['podIP']}:{GRPC}") for pod in self.pods(name)]
        try:
            yield clients
        finally:
            for client in clients:
                client.close()

    def _wait(self, name: str, replicas: int) -> None:
        started = time.monotonic()
        while True:
            found = self.api.get("Deployment", name)
            status = (found or {}).get("status", {})
            current = found is not None and status.get("observedGeneration", 0) >= found["metadata"]["generation"]
            if current and status.get("updatedReplicas", 0) >= replicas <= status.get("availableReplicas", 0):
                return
            waited = time.monotonic() - started
            why, patience = self._problem(name, found)
            if (why and waited >= patience) or waited >= self._cluster.ready_timeout_s:
                raise ServerFailed(
                    f"{name} did not become ready in {waited:.0f} s: {why or 'its pods give no reason'}",
                    do="Mend that, then rerun the release; what served before still does.",
                )
            progress(f"waiting for {status.get('availableReplicas', 0)}/{replicas} pods of {name}")
            time.sleep(_POLL_S)

    def _problem(self, name: str, found: Object | None) -> tuple[str, float]:
        """Why it is not ready, and after how many seconds that is hopeless."""
        limit = float(self._cluster.ready_timeout_s)
        for condition in (found or {}).get("status", {}).get("conditions", []):
            if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
                return condition.get("message", "no pod may be made"), min(10.0, limit)
        for pod in self.api.find("Pod", f"{LABEL}package={name}"):
            said, patience = _pod_problem(pod, limit)
            if said:
                return f"pod {pod['metadata']['name']}: {said}", patience
        return "", limit


def _pod_problem(pod: Object, limit: float) -> tuple[str, float]:
    status = pod.get("status", {})
    for condition in status.get("conditions", []):
        if condition.get("reason") == "Unschedulable":
            return condition.get("message", "no node takes it"), limit
    for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting, last = one["state"].get("waiting", {}), one.get("lastState", {}).get("terminated")
        ended = one["state"].get("terminated") or last
        if ended and ended.get("exitCode"):
            said = " ".join(str(ended.get("message", "")).split())[-500:]
            crashed = one.get("restartCount", 0) >= 2 or ended["exitCode"] == guard.MISMATCH  # which no restart mends
            return f"{one['name']} ended with exit code {ended['exitCode']}: {said}", 0.0 if crashed else limit
        reason = waiting.get("reason", "")
        if reason in _HOPELESS or reason in _PATIENCE:
            return f"{reason}: {waiting.get('message', '')}", _PATIENCE.get(reason, 0.0)
    return "", limit


def _ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def golden_of(site: Site, package: Package) -> Arrays:
    """A package's golden requests, from the artifact store."""
    return load_npz(ArtifactStore(site.artifacts_uri).read_from_tree(package.repository, GOLDEN))
