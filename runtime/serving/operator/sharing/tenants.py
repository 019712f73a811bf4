"""Which services may share a server, and what they need there, from their specs, status and measurements."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.operator.observed import RevisionSeen, ServerSeen
from shiplift.runtime.serving.operator.resources import ConditionType, ServiceSpec, ServiceStatus
from shiplift.runtime.serving.operator.sharing.placing import SharedServer, Tenant

_PROVEN_S = 30.0  # how long a service must have been Ready before its model may join others
# With `auto`, as a part of one server's capacity. The gap keeps a model from moving back and forth.
_JOINS_LOAD, _STAYS_LOAD = 0.1, 0.3
_UNMEASURED_MB, _OF_ITS_FILES = 256.0, 2.0  # a model's expected memory without a load test: a base, and per file size


@dataclass(frozen=True, kw_only=True)
class Inhabitant:
    """A service as placement sees it; `load` is None if it is unknown."""

    name: str
    spec: ServiceSpec
    status: ServiceStatus
    server: str = ""
    load: float | None = None


def tenants_of(
    services: Mapping[str, Inhabitant], revisions: Mapping[str, RevisionSeen], cluster: Cluster, now: float
) -> list[Tenant]:
    """The serving revision of each service, if its package is known."""
    tenants = []
    for _, each in sorted(services.items()):
        revision = each.status.revision
        seen = revisions.get(revision)
        if seen is not None and seen.package is not None:
            tenants.append(_tenant(each, revision, seen, cluster, now))
    return tenants


def placement_of(spec: ServiceSpec, cluster: Cluster) -> str:
    """A service's placement: its own, else the installation's."""
    return spec.placement or cluster.sharing.placement


def why_own(spec: ServiceSpec, seen: RevisionSeen, cluster: Cluster) -> str:
    """Why a revision needs its own pods whatever its load; empty if it may share."""
    package = seen.package
    reasons = (
        (placement_of(spec, cluster) == "own", "its placement is `own`"),
        (spec.production, "it is for production"),
        (spec.scaling.max_replicas is not None, "an autoscaler chooses the number of its pods"),
        (spec.scaling.to_zero, "it is scaled to zero"),
        (bool(seen.others), "several targets serve it"),
        (
            package is None or package.server != "bundled" or package.nodes.gpus,
            "its target has its own server or a GPU",
        ),
        (package is not None and package.python_environment is not None, "it runs Python in an environment of its own"),
        (package is not None and package.stateful, "it serves sequences, whose state is on one server"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def memory_of(seen: RevisionSeen) -> float:
    """The memory that a model is expected to use, in MiB: as its load test measured, or as its files suggest."""
    if seen.capacity and seen.capacity.memory_mb:
        return seen.capacity.memory_mb
    size = seen.package.repository.size_bytes / 2**20 if seen.package else 0.0
    return _UNMEASURED_MB + _OF_ITS_FILES * size


def placed_servers(servers: Mapping[str, ServerSeen]) -> list[SharedServer]:
    """The shared servers as placement knows them."""
    return [
        SharedServer(name=name, members=frozenset(each.digests), made_at=each.made_at) for name, each in servers.items()
    ]


def _tenant(each: Inhabitant, revision: str, seen: RevisionSeen, cluster: Cluster, now: float) -> Tenant:
    wanted = each.spec.revision == revision
    auto = placement_of(each.spec, cluster) == "auto"
    may = not why_own(each.spec, seen, cluster) and each.status.isolated_revision != revision
    load = each.load if each.load is not None else (1.0 if auto else 0.0)
    return Tenant(
        group=revision,
        service=each.name,
        flavor=_flavor(each.spec, seen),
        memory_mb=memory_of(seen),
        load=load,
        at=each.server,
        may_join=may and wanted and _is_proven(each.status, now) and not (auto and load > _JOINS_LOAD),
        may_stay=may and not (auto and each.load is not None and load > _STAYS_LOAD),
    )


def _flavor(spec: ServiceSpec, seen: RevisionSeen) -> str:
    """How a server for this revision must be started, apart from its models."""
    package = seen.package
    if package is None:
        return ""
    needs = package.needs
    parts = [package.nodes.model_dump(mode="json"), needs.rate_limiter, needs.flags, spec.least_replicas]
    return json.dumps(parts, sort_keys=True)


def _is_proven(status: ServiceStatus, now: float) -> bool:
    ready = status.condition(ConditionType.READY)
    if ready is None or ready.status != "True" or not ready.last_transition_time:
        return False
    only = [weight.percent for weight in status.weights if weight.percent] == [100]
    return only and now - datetime.fromisoformat(ready.last_transition_time).timestamp() >= _PROVEN_S
