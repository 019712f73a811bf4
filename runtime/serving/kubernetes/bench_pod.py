"""The pod of a bench: one search's own Triton on its target's nodes, with every package and no traffic.

A Pod and nothing else: no Service names it, no route can lead to it, and its labels are none that production's objects
select. Triton loads nothing by itself, and its model-repository API is closed with a key that only the search has. The
pod's name follows from what is searched, so a killed search that runs again clears what it left; `ClusterStaging.end`
does for one that never runs again, and the pod ends itself in the end.
"""

import hashlib
import secrets
import time
from dataclasses import dataclass

from shiplift.runtime.base.errors import ServerFailed, Temporary
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.serving import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.api import Api, Conflict, Object
from shiplift.runtime.serving.kubernetes.guard import KEY
from shiplift.runtime.serving.kubernetes.objects import (
    LABEL,
    confined,
    fetch_container,
    probe,
    triton_container,
    volumes,
)
from shiplift.runtime.serving.kubernetes.workloads import pod_problem, pod_ready

BENCH = f"{LABEL}bench"
METER = 8003
_POLL_S = 0.5
_GONE_S = 120
_GRACE_S = 2  # nobody's requests are lost
_LASTS_S = 3 * 3600  # longer than a search may take: the stage's deadline is two hours


@dataclass(frozen=True)
class Running:
    """A bench's pod that answers: its address without a port, and the key to its repository."""

    host: str
    key: str


class BenchPod:
    """The pod of one search, which measures these packages of one target."""

    def __init__(self, api: Api, cluster: Cluster, packages: tuple[Package, ...], artifacts_uri: str) -> None:
        """`api` is that of the cluster's serving namespace."""
        self.name = bench_name(packages)
        self._api = api
        self._cluster = cluster
        self._packages = packages
        self._artifacts_uri = artifacts_uri

    def start(self) -> Running:
        """The pod, fresh and answering; one of that name is ended first.

        Raises:
            ServerFailed: it can't be scheduled, fetched or started; the message says why.
            ClusterRefused: this process has no right to make pods there.
            Temporary: the one of that name does not go away.
        """
        self._clear()
        key = secrets.token_hex(16)
        body = bench_pod(self._cluster, self._packages, self._artifacts_uri, name=self.name, key=key)
        try:
            self._api.create("Pod", body)
        except Conflict as error:
            raise Temporary(f"another search has just made pod {self.name}", do="Wait until it is through.") from error
        return Running(self._ready(), key)

    def end(self) -> None:
        """Deletes the pod, whatever its state; nothing there is no error."""
        self._api.delete("Pod", self.name)

    def why_ended(self) -> str:
        """Why it does not answer, as the cluster knows it; empty: it says nothing."""
        pod = self._api.get("Pod", self.name)
        return _problem(pod, 0.0)[0]

    def _clear(self) -> None:
        deadline = time.monotonic() + _GONE_S
        while self._api.get("Pod", self.name) is not None:
            if time.monotonic() > deadline:
                raise Temporary(f"pod {self.name} of a search before does not end", do="Look at its node.")
            self._api.delete("Pod", self.name)
            time.sleep(_POLL_S)

    def _ready(self) -> str:
        started = time.monotonic()
        while True:
            pod = self._api.get("Pod", self.name)
            if pod is not None and pod_ready(pod):
                address = str(pod["status"]["podIP"])
                return f"[{address}]" if ":" in address else address
            self._give_up(pod, time.monotonic() - started)
            progress(f"waiting for pod {self.name}, on which configurations are measured")
            time.sleep(_POLL_S)

    def _give_up(self, pod: Object | None, waited: float) -> None:
        limit = float(self._cluster.ready_timeout_s)
        why, patience = _problem(pod, limit)
        if waited >= limit or (why and waited >= patience):
            raise ServerFailed(
                f"pod {self.name}, to measure configurations on, did not become ready in {waited:.0f} s: "
                f"{why or 'it gives no reason'}", do="Fix that, then rerun the release; what serves still does.",
            )  # fmt: skip


def _problem(pod: Object | None, limit: float) -> tuple[str, float]:
    """Why the pod does not run, and after how many seconds that is hopeless: it is never started again by itself."""
    if pod is None:
        return "the pod is gone", 0.0
    why, patience = pod_problem(pod, limit)
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        return why or str(status.get("message") or status.get("reason") or "it failed"), 0.0
    return why, patience


def bench_name(packages: tuple[Package, ...]) -> str:
    """The one name of the pod for a search over these packages."""
    first = packages[0]
    seen = hashlib.sha256(first.target.encode())
    for package in packages:
        seen.update(package.repository.sha256.encode())
    return f"bench-{dns_name(first.model)}-{first.version}-{seen.hexdigest()[:8]}"


def bench_label(model: str, version: int) -> str:
    """What the pods of a version's searches have as the label `BENCH`."""
    return f"{dns_name(model)}-{version}"


def served_as(package: Package) -> str:
    """The name of a package in a bench's repository, where every precision of the model lies."""
    return f"{serving_name(package.model)}--{package.precision}"


def bench_pod(
    cluster: Cluster, packages: tuple[Package, ...], artifacts_uri: str, *, name: str, key: str
) -> Object:  # fmt: skip
    """The Pod: an init container fetches each package, then Triton has all of them in its repository.

    Raises:
        SpecInvalid: the packages are for NVIDIA's server, and their target names no image of it.
    """
    from shiplift.runtime.serving.kubernetes.serve import PORTS  # noqa: PLC0415 - it imports gRPC

    first, models = packages[0], [served_as(package) for package in packages]
    watched = {"readinessProbe": probe("/v2/health/live", periodSeconds=1, failureThreshold=3)}
    triton = triton_container(cluster, first, models, load=(), watched=watched, meter=f"{PORTS.host}:{METER}")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "app.kubernetes.io/name": "triton-bench",
                "app.kubernetes.io/managed-by": "shiplift",
                BENCH: bench_label(first.model, first.version),
            },
        },
        "spec": {
            **confined(first),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LASTS_S,
            "terminationGracePeriodSeconds": _GRACE_S,
            "initContainers": [
                fetch_container(cluster, one, artifacts_uri, name=f"fetch-{one.precision}", served_as=served_as(one))
                for one in packages
            ],
            "containers": [{**triton, "env": [*triton.get("env", []), {"name": KEY, "value": key}]}],
            "volumes": volumes(first),
        },
    }
