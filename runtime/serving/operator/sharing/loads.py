"""Which part of one server each service with the placement `auto` needs: its requests over its measured capacity."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.objects.names import GRPC, PACKAGE, Object, hosted_label
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.sharing.tenants import Inhabitant, placement_of
from shiplift.runtime.serving.triton.client import TritonClient

_EVERY_S = 60.0
_ANSWER_S = 3.0
_THREADS = 8
_WEIGHT = 0.3  # of a new reading, so that a short burst moves no model


class ServiceLoads:
    """The loads of services, smoothed over some minutes. They include heartbeats, which are few."""

    def __init__(self) -> None:
        self._read_at = 0.0
        self._totals: dict[str, int] = {}
        self._loads: dict[str, float] = {}

    def of(self, service: str) -> float | None:
        """The part of one server that a service needs; None if it is unknown."""
        return self._loads.get(service)

    def read(self, snapshot: Snapshot, services: Mapping[str, Inhabitant], cluster: Cluster) -> None:
        """Reads the servers' counters of services that are placed by load, once a minute."""
        now = time.monotonic()
        auto = [each for each in services.values() if placement_of(each.spec, cluster) == "auto"]
        if now - self._read_at < _EVERY_S or not auto:
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            totals = dict(
                zip((each.name for each in auto), pool.map(lambda each: _total(snapshot, each), auto), strict=True)
            )
        for each in auto:
            capacity = _capacity(snapshot, each)
            before, after = self._totals.get(each.name), totals[each.name]
            if capacity and before is not None and after is not None:
                load = max(0, after - before) / (now - self._read_at) / capacity.within_slo_per_s
                last = self._loads.get(each.name, load)
                self._loads[each.name] = last + _WEIGHT * (load - last)
        self._totals = {name: total for name, total in totals.items() if total is not None}
        self._loads = {each.name: self._loads[each.name] for each in auto if each.name in self._loads}
        self._read_at = now


def _capacity(snapshot: Snapshot, service: Inhabitant) -> Capacity | None:
    seen = snapshot.revisions.get(service.status.revision)
    return seen.capacity if seen else None


def _total(snapshot: Snapshot, service: Inhabitant) -> int | None:
    """The requests that the ready pods have counted since they loaded the model; None if a pod does not answer."""
    total = 0
    for pod in _pods(snapshot, service):
        with suppress(ShipliftError), TritonClient(f"{pod}:{GRPC}", timeout_s=_ANSWER_S) as client:
            total += client.counts(serving_name(service.spec.model)).total
            continue
        return None
    return total


def _pods(snapshot: Snapshot, service: Inhabitant) -> list[str]:
    """The addresses of the ready pods that take a service's requests."""
    if service.server:
        pods = snapshot.servers[service.server].pods.get(service.status.revision, ())
        return [pod.address for pod in pods if pod.ready and pod.address]
    return [
        diagnosis.address_of(body)
        for body in snapshot.pods.get(service.name, ())
        if _takes(body, service.status.revision)
    ]


def _takes(body: Object, revision: str) -> bool:
    labels = body["metadata"]["labels"]
    return diagnosis.is_ready(body) and (labels.get(PACKAGE) == revision or hosted_label(revision) in labels)
