"""Runs packages as pods: applies them, waits for them, and explains why they don't become ready.

The pods are diagnosed during the wait, so a release fails with the reason instead of "timed out", and fails at once if
waiting can't help.
"""

import time

import tenacity

from shiplift.runtime.base.errors import ServerFailed, Temporary
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.diagnosis import Diagnosis
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, POD, POD_DISRUPTION_BUDGET, SERVICE
from shiplift.runtime.serving.kubernetes.objects.deployment import deployment, service
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, PACKAGE, package_name
from shiplift.runtime.serving.kubernetes.objects.pods import is_captured
from shiplift.runtime.serving.kubernetes.objects.shared import selected_server
from shiplift.runtime.serving.triton.client import OWN_REQUESTS, TritonClient, check_package
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore

_POLL_S = 0.5
_DESCRIBE = "See `kubectl describe pods`."


class Workloads:
    """The packages that run in the serving namespace."""

    def __init__(self, site: Site, cluster: Cluster) -> None:
        self.api = KubernetesClient(cluster.serving_namespace)
        self._cluster = cluster
        self._artifacts_uri = site.artifacts_uri

    def run(
        self,
        package: Package,
        *,
        name: str = "",
        replicas: int = 1,
        extra: dict[str, str] | None = None,
        revision: str = "",
    ) -> str:
        """Runs a package with at least this many replicas, and waits until they are ready; returns its name.

        `revision` is the revision that this is a group of, if it has several groups. A package that production serves
        from a shared server already runs there, and is left alone; so are pods whose requests production captures.

        Raises:
            ServerFailed: it can't be scheduled, fetched or loaded; the message says why.
        """
        name = name or package_name(package)
        if (leads := self.api.get(SERVICE, name)) and selected_server(leads, name):
            return name
        current = self.api.get(DEPLOYMENT, name)
        replicas = max(replicas, int(current["spec"].get("replicas") or 0) if current else 0)
        if current and is_captured(current):
            self._wait(name, replicas)
            return name
        labels = extra or {}
        self.api.apply(
            deployment(
                self._cluster,
                package,
                self._artifacts_uri,
                name=name,
                replicas=replicas,
                extra=labels,
                revision=revision,
            )
        )
        self.api.apply(service(package, name=name, extra=labels))
        self._wait(name, replicas)
        return name

    def remove(self, name: str) -> None:
        """Removes a package's pods; does nothing if there are none."""
        self.api.delete(POD_DISRUPTION_BUDGET, name)
        self.api.delete(SERVICE, name)
        self.api.delete(DEPLOYMENT, name)

    def address(self, name: str) -> str:
        """A package's own gRPC address, whatever its share of the traffic."""
        return f"{name}.{self._cluster.serving_namespace}.svc:{GRPC}"

    def check(self, package: Package, name: str, golden: Arrays) -> None:
        """Sends the golden requests to a package's own Service; a refused connection is tried again for a while.

        Raises:
            GoldenMismatch: an answer is wrong.
            Temporary: nothing answers.
        """
        _with_retries(_check, self.address(name), package, golden)

    def _wait(self, name: str, replicas: int) -> None:
        started = time.monotonic()
        while True:
            body = self.api.get(DEPLOYMENT, name)
            status = (body or {}).get("status", {})
            current = body is not None and status.get("observedGeneration", 0) >= body["metadata"]["generation"]
            if current and status.get("updatedReplicas", 0) >= replicas <= status.get("availableReplicas", 0):
                return
            waited = time.monotonic() - started
            where, why = self._problem(name, body)
            if waited >= diagnosis.patience_s(why, self._cluster.ready_timeout_s):
                raise ServerFailed(
                    f"{name} did not become ready in {waited:.0f} s: "
                    + (f"{where}{why.sentence}" if why else "its pods give no reason"),
                    do=f"{why.do if why else _DESCRIBE} Then rerun the release; the previous version still serves.",
                )
            progress(f"waiting for {status.get('availableReplicas', 0)}/{replicas} pods of {name}")
            time.sleep(_POLL_S)

    def _problem(self, name: str, body: Object | None) -> tuple[str, Diagnosis | None]:
        """The pod with the worst problem, as a prefix for a message, and why it is not ready."""
        if refused := diagnosis.of_deployment(body or {}):
            return "", refused
        pods = self.api.find(POD, f"{PACKAGE}={name}")
        reasons = [(f"pod {pod['metadata']['name']}: ", why) for pod in pods if (why := diagnosis.of_pod(pod))]
        return min(reasons, key=lambda reason: reason[1].prospect, default=("", None))


def _check(address: str, package: Package, golden: Arrays) -> None:
    with TritonClient(address, request_id=OWN_REQUESTS) as client:
        check_package(client, serving_name(package.model), package, golden)


# A Service may lead nowhere for a moment after its pod is ready: nodes learn of endpoints one by one.
_with_retries = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(Temporary),
    wait=tenacity.wait_fixed(0.5),
    stop=tenacity.stop_after_delay(15),
    reraise=True,
)


def golden_of(package: Package, artifacts_uri: str) -> Arrays:
    """A package's golden requests, from the artifact store."""
    return load_npz(ArtifactStore(artifacts_uri).read_from_tree(package.repository, GOLDEN))
