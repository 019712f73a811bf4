"""The life cycle of a bench's pod: it is created fresh, awaited, and deleted whatever happens.

Its name depends only on what is searched, so a killed search that runs again deletes the pod that it left behind. If it
never runs again, `ClusterStaging.end` deletes the pod, or at the latest its own deadline ends it.
"""

import secrets
import time
from dataclasses import dataclass

from shiplift.runtime.base.errors import ServerFailed, Temporary
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import POD
from shiplift.runtime.serving.kubernetes.objects.bench import bench_name, bench_pod

_POLL_S = 0.5
_GONE_S = 120


@dataclass(frozen=True)
class Running:
    """A bench's pod that is ready: its address without a port, and the key to its repository."""

    host: str
    key: str


class BenchPod:
    """The pod of a search, which measures these packages of one target."""

    def __init__(
        self, client: KubernetesClient, cluster: Cluster, packages: tuple[Package, ...], artifacts_uri: str
    ) -> None:
        """`client` must be for the cluster's serving namespace."""
        self.name = bench_name(packages)
        self._client = client
        self._cluster = cluster
        self._packages = packages
        self._artifacts_uri = artifacts_uri

    def start(self) -> Running:
        """Creates the pod, after deleting any of the same name, and waits until it is ready.

        Raises:
            ServerFailed: it can't be scheduled, fetched or started; the message says why.
            ClusterRefused: this process may not create pods there.
            Temporary: the old pod does not go away.
        """
        self._clear()
        key = secrets.token_hex(16)
        body = bench_pod(self._cluster, self._packages, self._artifacts_uri, name=self.name, key=key)
        try:
            self._client.create(body)
        except Conflict as error:
            raise Temporary(
                f"another search has just created pod {self.name}", do="Wait until it is done, then try again."
            ) from error
        return Running(self._ready(), key)

    def end(self) -> None:
        """Deletes the pod, whatever its state; does nothing if there is none."""
        self._client.delete(POD, self.name)

    def why_ended(self) -> str:
        """Why the pod no longer answers, according to the cluster; empty if the cluster gives no reason."""
        pod = self._client.get(POD, self.name)
        why = diagnosis.of_pod(pod) if pod else None
        return why.sentence if why else "" if pod else "the pod is gone"

    def _clear(self) -> None:
        deadline = time.monotonic() + _GONE_S
        while self._client.delete(POD, self.name):
            if time.monotonic() > deadline:
                raise Temporary(
                    f"pod {self.name} of an earlier search has not ended after {_GONE_S} s", do="Check its node."
                )
            time.sleep(_POLL_S)

    def _ready(self) -> str:
        started = time.monotonic()
        while True:
            pod = self._client.get(POD, self.name)
            if pod is not None and diagnosis.is_ready(pod):
                return diagnosis.address_of(pod)
            self._check_patience(pod, time.monotonic() - started)
            progress(f"waiting for pod {self.name}, on which configurations are measured")
            time.sleep(_POLL_S)

    def _check_patience(self, pod: Object | None, waited: float) -> None:
        """Raises `ServerFailed` if it makes no sense to wait any longer."""
        why = diagnosis.of_pod(pod) if pod else None
        patience = diagnosis.patience_s(why, self._cluster.ready_timeout_s, restarts=False)
        if pod is not None and waited < patience:
            return
        sentence = why.sentence if why else "it gives no reason" if pod else "it was deleted"
        raise ServerFailed(
            f"pod {self.name}, for measuring configurations, did not become ready in {waited:.0f} s: {sentence}",
            do=f"{why.do if why else 'See `kubectl describe pod`.'} Then rerun the release; production goes on.",
        )
