"""Production on a cluster: a promoted package gets a growing share of the traffic, and in the end all of it.

Every share is verified on the data plane and held while the servers' own counters are watched. The first failure gives
all traffic back to what served before. Old pods end after their last request. Every method can be killed at any line
and called again, because the state of the traffic is in the routes and nowhere else.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from shiplift.runtime.base.errors import CanaryFailed, ShipliftError
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.serving import Endpoint, Package
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.serving.kubernetes.front import Front
from shiplift.runtime.serving.kubernetes.lease import held
from shiplift.runtime.serving.kubernetes.objects.front import hostnames
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, HTTP, package_name
from shiplift.runtime.serving.kubernetes.workloads import Workloads, golden_of
from shiplift.runtime.serving.triton.client import Counts
from shiplift.runtime.spec.serving import Rollout

_POLL_S = 1.0
_QUIET_S = 3.0
_DRAIN_S = 60.0
_MARGIN = 0.01


class ClusterProduction:
    """The production of a cluster. See `runtime.serving.production.Production`."""

    def __init__(self, site: Site, cluster: Cluster) -> None:
        self._site = site
        self._cluster = cluster
        self._workloads = Workloads(site, cluster)

    @contextmanager
    def lock(self, model: str) -> Iterator[None]:
        """A lock for one promotion or rollback of a model at a time, in the whole cluster."""
        with held(self._workloads.api, f"shiplift-{dns_name(model)}"):
            yield

    def endpoint(self, model: str) -> Endpoint:
        """Where a model answers, with its name in the cluster's DNS."""
        host = hostnames(model, self._cluster)[1]
        return Endpoint(http=f"http://{host}:{HTTP}/v2/models/{serving_name(model)}", grpc=f"{host}:{GRPC}")

    def serves(self, package: Package) -> bool:
        """Whether this package has all the traffic, and pods to serve it."""
        name = package_name(package)
        return Front(self._cluster, package.model).weights().get(name) == 100 and bool(self._workloads.pods(name))

    def move(self, package: Package, rollout: Rollout) -> None:
        """Moves the traffic to a package, share by share."""
        golden = golden_of(self._site, package)
        name = self._workloads.run(package, replicas=rollout.replicas)
        self._workloads.check(package, name, golden)
        front = Front(self._cluster, package.model)
        before = next((other for other, weight in front.weights().items() if weight and other != name), "")
        # A sequence's requests would be spread over both versions, but only one of them has its state.
        can_split = before and self._cluster.gateway and not package.sequences
        shares = rollout.canary_percent if can_split else ()
        try:
            for percent in (*shares, 100):
                progress(f"giving {percent} % of the traffic to version {package.version}", percent / 100)
                front.set({**({before: 100 - percent} if before else {}), name: percent})
                front.wait_share(package, golden, percent)
                self._hold(package, name, before, rollout.hold_s if percent < 100 else 0)
            self._verify_moved(package, name, before, front, golden)
        except ShipliftError:
            if before:
                front.set({before: 100, name: 0})
            raise

    def retire(self, model: str) -> None:
        """Stops what no longer has traffic, after its last request."""
        front = Front(self._cluster, model)
        weights = front.weights()
        for idle in [name for name, weight in weights.items() if not weight]:
            progress(f"waiting for the last requests of {idle}")
            self._wait_quiet(idle, model)
            front.set({name: weight for name, weight in weights.items() if weight})
            self._workloads.remove(idle)

    def _hold(self, package: Package, name: str, before: str, seconds: float) -> None:
        """Watches both sides' counters for a while.

        Raises:
            CanaryFailed: the new side failed a larger share of its requests than the old one, or lost its pods.
        """
        model = serving_name(package.model)
        first_new, first_old = self._counts(name, model), self._counts(before, model)
        deadline = time.monotonic() + seconds
        while True:
            new = self._counts(name, model).since(first_new)
            old = self._counts(before, model).since(first_old)
            if new.failed_share > old.failed_share + _MARGIN:
                raise CanaryFailed(
                    f"version {package.version} failed {new.failed} of its {new.total} requests (before: {old.failed} "
                    f"of {old.total})", do="What served before has the traffic again; see the pods' logs.",
                )  # fmt: skip
            if not self._workloads.pods(name):
                raise CanaryFailed(
                    f"version {package.version} lost its pods", do="What served before has the traffic again."
                )
            if time.monotonic() >= deadline:
                return
            time.sleep(_POLL_S)

    def _verify_moved(self, package: Package, name: str, before: str, front: Front, golden: Arrays) -> None:
        """Checks that the new side's servers count the requests sent now, and the old side's don't.

        Raises:
            CanaryFailed: the old side still gets requests, or the new side gets none.
        """
        model = serving_name(package.model)
        for last_time in (False, True):
            new, old = self._counts(name, model), self._counts(before, model)
            front.wait_share(package, golden, 100)
            new_total = self._counts(name, model).since(new).total
            old_total = self._counts(before, model).since(old).total
            if new_total and not old_total:
                return
            if last_time:
                raise CanaryFailed(
                    f"after all traffic was moved, {before or 'the old side'} still counted {old_total} requests and "
                    f"{name} {new_total}", do="Check the gateway's status.",
                )  # fmt: skip
            time.sleep(_POLL_S)  # a proxy may still have had an old request in flight

    def _wait_quiet(self, name: str, model: str) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline:
            before = self._counts(name, serving_name(model))
            time.sleep(_QUIET_S)
            if self._counts(name, serving_name(model)) == before:
                return

    def _counts(self, name: str, model: str) -> Counts:
        """The counters of a package's servers since they started, summed over all pods."""
        if not name:
            return Counts()
        with self._workloads.clients(name) as clients:
            return sum((client.counts(model) for client in clients), Counts())
