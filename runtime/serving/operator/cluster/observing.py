"""Looks at services: turns the API server's answers into `Observed`.

One set of lists serves all services, so many idle ones cost no more than one. A service that has just changed is looked
at alone.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from shiplift.runtime.base.errors import ClusterRefused
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    GATEWAY,
    GRPC_ROUTE,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    INGRESS,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SCALED_OBJECT,
    SERVICE,
    TRAFFIC_POLICY,
    TRITON_REVISION,
    TRITON_SERVICE,
    ResourceKind,
)
from shiplift.runtime.serving.kubernetes.objects.names import BENCH, SERVER, Object, revision_of_group
from shiplift.runtime.serving.operator.cluster.seeing import (
    alarm_of,
    groups_ending,
    kept_of,
    pods_of,
    retired_of,
    revision_seen,
    servers_seen,
    slim,
    spec_of,
    status_seen,
    stopping_of,
    with_hosts,
)
from shiplift.runtime.serving.operator.evidence import Evidence, Key
from shiplift.runtime.serving.operator.observed import GatewaySeen, HeldRequests, Observed, RevisionSeen, ServerSeen
from shiplift.runtime.serving.operator.repair import key_of
from shiplift.runtime.serving.operator.resources import MODEL, baking_of, mirror_of

_OPTIONAL = (SCALED_OBJECT, POD_MONITOR, PROMETHEUS_RULE)
_AGAIN_S = 30.0  # before the cluster is asked again for a kind that it did not know
_MIRROR_S = 20.0  # without a sign of the shadow's process, before no requests are copied any more
_NODES_S = 5.0  # before the cluster is asked again which nodes are cordoned


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the API server answered at one moment, by model; `taken_at` is the time of the first request.

    `shared` are the Deployments of the shared `servers`.
    """

    taken_at: float
    services: dict[str, Object] = field(default_factory=dict)
    revisions: dict[str, RevisionSeen] = field(default_factory=dict)
    objects: dict[str, dict[Key, Object]] = field(default_factory=dict)
    pods: dict[str, list[Object]] = field(default_factory=dict)
    cordoned: frozenset[str] = frozenset()
    address: str = ""
    policies: bool = False
    optional: frozenset[str] = frozenset()
    servers: dict[str, ServerSeen] = field(default_factory=dict)
    shared: dict[Key, Object] = field(default_factory=dict)


class Observer:
    """Looks at the services of one namespace."""

    def __init__(
        self,
        api: KubernetesClient,
        cluster: Cluster,
        arrivals: Callable[[str], HeldRequests] = lambda _: HeldRequests(),
        gateway: Callable[[], GatewaySeen] = GatewaySeen,
    ) -> None:
        """`arrivals`: the activator's report on a service; `gateway`: whether the gateway takes connections."""
        self._api, self._arrivals, self._gateway = api, arrivals, gateway
        self.gateway_address = ""  # as it was seen last
        self._cluster = cluster
        self._revisions: dict[tuple[str, str], RevisionSeen] = {}  # by name and version of the object
        self._known: dict[
            ResourceKind, tuple[bool, float]
        ] = {}  # whether the cluster knows a kind, and when it was asked
        self._may_read_nodes = True
        self._cordoned_nodes, self._cordoned_at = frozenset[str](), 0.0
        self._sharing = True  # whether there may be shared servers: without any, they are not asked for each time
        self._mirrors: dict[str, tuple[Mirror, float]] = {}  # who gets copies, and when that was seen to change
        self.assigned: Mapping[str, str] = {}  # the server that placement wants for each group

    @property
    def written(self) -> list[ResourceKind]:
        """The kinds of objects that the operator writes on this cluster."""
        kinds = [DEPLOYMENT, SERVICE, POD_DISRUPTION_BUDGET, ENDPOINT_SLICE, HORIZONTAL_POD_AUTOSCALER]
        kinds += [kind for kind in _OPTIONAL if self._serves(kind)]
        kinds += [CONFIG_MAP] if self._serves(PROMETHEUS_RULE) else []
        if self._cluster.gateway is None:
            return [*kinds, INGRESS] if self._cluster.ingress else kinds
        policies = [TRAFFIC_POLICY] if self._serves(TRAFFIC_POLICY) else []
        return [*kinds, GRPC_ROUTE, HTTP_ROUTE, *policies]

    def everything(self) -> Snapshot:
        """All services of the namespace."""
        taken_at = time.time()
        services = {body["metadata"]["name"]: body for body in self._api.each(TRITON_SERVICE, page=200)}
        bodies = list(self._api.each(TRITON_REVISION, page=200))
        revisions = {body["metadata"]["name"]: self._revision(body) for body in bodies}
        self._revisions = {_version_of(body): revisions[body["metadata"]["name"]] for body in bodies}
        self._sharing = True
        return self._snapshot(taken_at, services, revisions, MODEL)

    def alone(self, name: str) -> Snapshot:
        """One service; the snapshot is empty if it does not exist."""
        taken_at = time.time()
        body = self._api.get(TRITON_SERVICE, name)
        if body is None:
            return Snapshot(taken_at=taken_at)
        seen = self._snapshot(taken_at, {name: body}, {}, f"{MODEL}={name}")
        status = body.get("status") or {}
        names = {(body.get("spec") or {}).get("revision", ""), status.get("revision", "")}
        running = {name for kind, name in seen.objects.get(name, {}) if kind == "Deployment"}
        names |= {revision_of_group(each) for each in running}
        bodies = {each["metadata"]["name"]: each for each in self._api.each(TRITON_REVISION, f"{MODEL}={name}")}
        others = [self._api.get(TRITON_REVISION, each) for each in sorted(names - bodies.keys() - {""})]
        bodies |= {
            body["metadata"]["name"]: body for body in others if body
        }  # not written by a promotion, so without the label
        return replace(seen, revisions={each: self._revision(body) for each, body in bodies.items()})

    def observed(self, snapshot: Snapshot, name: str, evidence: Evidence) -> Observed | None:
        """One service as a snapshot shows it; None if it was deleted."""
        body = snapshot.services.get(name)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return None
        meta = body["metadata"]
        spec, problem = spec_of(body)
        pods, now = snapshot.pods.get(name, []), time.time()
        seen = Observed(
            name=name,
            namespace=meta["namespace"],
            uid=meta["uid"],
            generation=meta["generation"],
            cluster=self._cluster,
            spec=spec,
            problem=problem,
            status=status_seen(body),
            revisions=snapshot.revisions,
            live=snapshot.objects.get(name, {}),
            pods=pods_of(pods, snapshot.cordoned),
            servers=snapshot.servers,
            assigned=self.assigned,
            retired=retired_of(pods),
            ending=groups_ending(pods, now),
            stopping=stopping_of(pods, now),
            address=snapshot.address,
            gateway=self._gateway(),
            policies=snapshot.policies,
            optional=snapshot.optional,
            arrivals=self._arrivals(name),
            evidence=evidence,
            kept=kept_of(body, spec),
            alarm=alarm_of(body, spec),
            baking=baking_of(body),
            mirror=self._mirror(name, body),
            now=now,
        )
        return with_hosts(seen)

    def reread(self, observed: Observed, applied: Iterable[Object]) -> Observed:
        """A service with the objects that were just applied, read again: a whole look takes ten times as long."""
        live = dict(observed.live)
        for body in applied:
            kind, name, namespace = self._api.locate(body)
            if seen := self._api.get(kind, name, namespace):
                live[key_of(seen)] = slim(seen)
        return with_hosts(replace(observed, live=live, pods=observed.own))

    def _mirror(self, name: str, body: Object) -> Mirror | None:
        """Who gets copies of a service's requests, as long as the shadow's process shows that it lives."""
        mirror, now = mirror_of(body), time.monotonic()
        if mirror is None:
            self._mirrors.pop(name, None)
            return None
        known = self._mirrors.get(name)
        if known is None or known[0] != mirror:
            self._mirrors[name] = known = mirror, now
        return mirror if now - known[1] < _MIRROR_S else None

    def _snapshot(
        self, taken_at: float, services: dict[str, Object], revisions: dict[str, RevisionSeen], selector: str
    ) -> Snapshot:
        seen = Snapshot(
            taken_at=taken_at,
            services=services,
            revisions=revisions,
            cordoned=self._cordoned(),
            address=self._address(),
            policies=self._cluster.gateway is not None and self._serves(TRAFFIC_POLICY),
            optional=frozenset(kind.name for kind in _OPTIONAL if self._serves(kind)),
        )
        for kind in self.written:
            for body in self._api.each(kind, selector, page=200):
                seen.objects.setdefault(body["metadata"]["labels"][MODEL], {})[key_of(body)] = slim(body)
        for body in self._api.each(POD, f"{selector},!{BENCH}", page=200):
            seen.pods.setdefault(body["metadata"]["labels"][MODEL], []).append(slim(body))
        shared = {key_of(body): slim(body) for body in self._shared(DEPLOYMENT)}
        self._sharing = bool(shared)
        pods = [slim(body) for body in self._shared(POD)] if shared else []
        return replace(seen, servers=servers_seen(shared.values(), pods, seen.cordoned), shared=shared)

    def _shared(self, kind: ResourceKind) -> list[Object]:
        """The objects of this kind that belong to shared servers."""
        return list(self._api.each(kind, SERVER, page=200)) if self._sharing else []

    def _revision(self, body: Object) -> RevisionSeen:
        return self._revisions.get(_version_of(body)) or revision_seen(body)

    def _cordoned(self) -> frozenset[str]:
        """The nodes that take no more pods, as before maintenance; empty if this process may not read nodes."""
        if not self._may_read_nodes or time.monotonic() - self._cordoned_at < _NODES_S:
            return self._cordoned_nodes
        try:
            nodes = self._api.each(NODE, fields="spec.unschedulable=true")
            self._cordoned_nodes = frozenset(node["metadata"]["name"] for node in nodes)
        except ClusterRefused as error:  # an installation without the ClusterRole: everything else works
            self._may_read_nodes = False
            structlog.get_logger().warning("failed", part="nodes", error=str(error))
        self._cordoned_at = time.monotonic()
        return self._cordoned_nodes

    def _address(self) -> str:
        gateway = self._cluster.gateway
        if gateway is None:
            return ""
        body = self._api.get(GATEWAY, gateway.name, gateway.namespace) or {}
        addresses = (body.get("status") or {}).get("addresses") or []
        self.gateway_address = str(addresses[0]["value"]) if addresses else ""
        return self.gateway_address

    def _serves(self, kind: ResourceKind) -> bool:
        """Whether the cluster knows a kind. An unknown one is asked for again now and then: it may be installed."""
        knows, asked_at = self._known.get(kind, (False, 0.0))
        if not knows and (not asked_at or time.monotonic() - asked_at > _AGAIN_S):
            knows = self._api.serves(kind)
            self._known[kind] = (knows, time.monotonic())
        return knows


def _version_of(body: Object) -> tuple[str, str]:
    return body["metadata"]["name"], str(body["metadata"].get("resourceVersion", ""))
