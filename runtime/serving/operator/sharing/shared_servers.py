"""Keeps the shared servers of a namespace as placement wants them: makes, repairs and removes them.

It writes only the servers themselves. Each service moves separately, by its Service.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog
from pydantic import ValidationError

from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import DEPLOYMENT, POD_DISRUPTION_BUDGET, POD_MONITOR, ResourceKind
from shiplift.runtime.serving.kubernetes.objects.names import SERVER
from shiplift.runtime.serving.kubernetes.objects.shared import (
    digests_of,
    selected_server,
    server_name,
    server_objects,
)
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.declared import of_object
from shiplift.runtime.serving.operator.observed import ServerSeen
from shiplift.runtime.serving.operator.repair import covers, key_of
from shiplift.runtime.serving.operator.sharing.loads import ServiceLoads
from shiplift.runtime.serving.operator.sharing.making import owners_of, replicas_of, shared_members, without_quantities
from shiplift.runtime.serving.operator.sharing.placing import PlacementLimits, PlacementPlan, Tenant, place
from shiplift.runtime.serving.operator.sharing.tenants import Inhabitant, placed_servers, tenants_of

_UNUSED_S = 15.0  # before an unused server is removed, so that proxies can follow the endpoints
_BARRED_S = 3600.0  # before a set whose server did not start is tried again


class SharedServers:
    """The shared servers of one namespace."""

    def __init__(self, api: KubernetesClient, cluster: Cluster) -> None:
        self._api, self._cluster = api, cluster
        self._loads = ServiceLoads()
        self._unused_since: dict[str, float] = {}
        self._barred: dict[frozenset[str], float] = {}  # until when
        self._log = structlog.get_logger()

    def keep(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Does what placement wants; returns the server of each group, empty for pods of its own."""
        now = time.time()
        services = self._services(snapshot)
        tenants = tenants_of(services, snapshot.revisions, self._cluster, now)
        self._bar(snapshot, tenants, now)
        plan = self._plan(snapshot, tenants, now)
        if plan.create:
            self._make(snapshot, services, tenants, plan.create)
        self._remove(plan.unused, now)
        self._repair(snapshot, services, tenants, plan.unused)
        return plan.assigned

    def _services(self, snapshot: Snapshot) -> dict[str, Inhabitant]:
        services = {}
        for name, body in snapshot.services.items():
            with suppress(ValidationError):  # the spec is invalid: the service's status says so
                declared = of_object(body)
                live = snapshot.objects.get(name, {}).get(("Service", declared.status.revision)) or {}
                services[name] = Inhabitant(
                    name=name,
                    spec=declared.spec,
                    status=declared.status,
                    server=self._at(snapshot, live, declared.status.revision),
                    load=self._loads.of(name),
                )
        self._loads.read(snapshot, services, self._cluster)
        return services

    def _at(self, snapshot: Snapshot, live: Object, revision: str) -> str:
        server = selected_server(live, revision) if live else ""
        return server if server in snapshot.servers else ""

    def _plan(self, snapshot: Snapshot, tenants: Sequence[Tenant], now: float) -> PlacementPlan:
        sharing = self._cluster.sharing
        limits = PlacementLimits(memory_mb=sharing.memory_mb, models=sharing.models)
        usable = {name: each for name, each in snapshot.servers.items() if frozenset(each.digests) not in self._barred}
        plan = place(tenants, placed_servers(usable), limits, now, self._barred)
        at = {tenant.at for tenant in tenants}
        failed = frozenset(snapshot.servers.keys() - usable.keys() - at)
        return PlacementPlan(assigned=plan.assigned, create=plan.create, unused=plan.unused | failed)

    # --- servers that don't start ---

    def _bar(self, snapshot: Snapshot, tenants: Sequence[Tenant], now: float) -> None:
        """Gives up servers that serve nothing because no pod has become ready in time, and bars their sets."""
        self._barred = {groups: until for groups, until in self._barred.items() if until > now}
        at = {tenant.at for tenant in tenants}
        for name, server in snapshot.servers.items():
            if name not in at and self._is_dead(server, now):
                self._barred[frozenset(server.digests)] = now + _BARRED_S
                self._log.warning("failed", part="shared server", server=name, error="no pod became ready")

    def _is_dead(self, server: ServerSeen, now: float) -> bool:
        ready = any(pod.ready for pods in server.pods.values() for pod in pods)
        return not ready and now - server.made_at > self._cluster.ready_timeout_s

    # --- objects ---

    def _make(
        self, snapshot: Snapshot, services: Mapping[str, Inhabitant], tenants: Sequence[Tenant], groups: frozenset[str]
    ) -> None:
        bodies = self._bodies(snapshot, services, tenants, groups)
        for body in bodies:
            self._api.apply(body)
        if bodies:
            self._log.info("acts", part="shared server", makes=bodies[0]["metadata"]["name"], groups=sorted(groups))

    def _repair(
        self,
        snapshot: Snapshot,
        services: Mapping[str, Inhabitant],
        tenants: Sequence[Tenant],
        unused: frozenset[str],
    ) -> None:
        """Restores edited or deleted objects of the servers that are used and whose packages are all known."""
        live = dict(snapshot.shared)
        for kind in self._kinds(snapshot)[1:] if snapshot.servers else ():
            live |= {key_of(body): body for body in self._api.each(kind, SERVER)}
        for name in sorted(snapshot.servers.keys() - unused):
            bodies = self._bodies(snapshot, services, tenants, frozenset(snapshot.servers[name].digests))
            for body in bodies:
                right = covers(live.get(key_of(body)), without_quantities(body))
                if body["metadata"]["name"] == name and not right:
                    self._log.info("acts", part="shared server", repairs=f"{body['kind']}/{name}")
                    self._api.apply(body)

    def _remove(self, unused: frozenset[str], now: float) -> None:
        self._unused_since = {name: self._unused_since.get(name, now) for name in unused}
        for name, since in list(self._unused_since.items()):
            if now - since >= _UNUSED_S:
                self._log.info("acts", part="shared server", removes=name)
                for kind in (DEPLOYMENT, POD_DISRUPTION_BUDGET, POD_MONITOR):
                    with suppress(ShipliftError):  # without the kind, nothing is left; else the owners clean up
                        self._api.delete(kind, name)
                del self._unused_since[name]

    def _bodies(
        self, snapshot: Snapshot, services: Mapping[str, Inhabitant], tenants: Sequence[Tenant], groups: frozenset[str]
    ) -> list[Object]:
        """The objects of a server; empty if one of its packages is no longer known."""
        members = shared_members(groups, snapshot.revisions)
        if len(members) < len(groups):
            return []
        name = server_name(digests_of(members))
        homes = [services[tenant.service] for tenant in tenants if tenant.group in groups]
        live = snapshot.shared.get(("Deployment", name)) or {}
        return server_objects(
            self._cluster,
            members,
            replicas=replicas_of(homes, snapshot.servers.get(name)),
            owners=live.get("metadata", {}).get("ownerReferences") or owners_of(members, snapshot.services.values()),
            monitored="PodMonitor" in snapshot.optional,
        )

    def _kinds(self, snapshot: Snapshot) -> list[ResourceKind]:
        return [DEPLOYMENT, POD_DISRUPTION_BUDGET, *([POD_MONITOR] if "PodMonitor" in snapshot.optional else [])]
