"""Reads what single objects in the API server's answers say about a service."""

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.objects.deployment import DRAIN_S
from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE, Object, group_name, hosted_label
from shiplift.runtime.serving.kubernetes.objects.shared import MEMBERS
from shiplift.runtime.serving.operator.observed import (
    Observed,
    PodSeen,
    RetiredPod,
    RevisionSeen,
    ServerSeen,
    TargetPods,
)
from shiplift.runtime.serving.operator.resources import (
    MODEL,
    GroupSpec,
    RevisionSpec,
    ServiceSpec,
    ServiceStatus,
    baking_of,
    promotion_of,
    status_of,
)
from shiplift.runtime.serving.operator.upkeep.retirement import RETIRED


def kept_of(body: Object, spec: ServiceSpec | None) -> str:
    """The revision to which the traffic may go back, by an abort or after an alarm; empty if there is none."""
    promotion, baking = promotion_of(body), baking_of(body)
    kept = promotion.keeps(spec.revision) if promotion and spec else ""
    awaited = baking and spec and baking.active and baking.package == spec.revision
    return kept or (baking.before if baking and awaited else "")


def alarm_of(body: Object, spec: ServiceSpec | None) -> str:
    """Why the revision that a service wants has to give its traffic back; empty unless an alarm ended its bake."""
    baking = baking_of(body)
    raised = baking and spec and baking.state in ("alarmed", "rolled back") and baking.package == spec.revision
    return baking.reason if baking and raised else ""


def pods_of(bodies: Iterable[Object], cordoned: Collection[str]) -> dict[str, tuple[PodSeen, ...]]:
    """The pods by group, without those that are ending."""
    pods: dict[str, list[PodSeen]] = {}
    for body in bodies:
        meta = body["metadata"]
        revision = meta["labels"].get(PACKAGE)
        if "deletionTimestamp" not in meta and revision:
            pods.setdefault(revision, []).append(_pod(body, cordoned))
    return {name: tuple(sorted(seen, key=lambda pod: pod.name)) for name, seen in pods.items()}


def groups_ending(bodies: Iterable[Object], now: float) -> frozenset[str]:
    """The groups with a pod that is ending and still answers: it gets the requests until another pod is ready."""
    return frozenset(
        body["metadata"]["labels"][PACKAGE]
        for body in bodies
        if body["metadata"]["labels"].get(PACKAGE) and diagnosis.passes_probes(body) and _ending_since(body, now) < 0
    )


def stopping_of(bodies: Iterable[Object], now: float) -> dict[str, str]:
    """The pods whose server is shutting down and which a Service may still select: by name, the group of each."""
    return {
        body["metadata"]["name"]: body["metadata"]["labels"][PACKAGE]
        for body in bodies
        if body["metadata"]["labels"].get(PACKAGE) and 0 <= _ending_since(body, now) < math.inf
    }


def _ending_since(body: Object, now: float) -> float:
    """How many seconds ago a pod's server got SIGTERM; negative before that, and infinite if the pod stays.

    Kubernetes notes when the pod will be killed. Its deletion began the grace period before that, and SIGTERM follows
    once the pod has announced its end for `DRAIN_S`.
    """
    meta = body["metadata"]
    if "deletionTimestamp" not in meta:
        return math.inf
    killed_at = datetime.fromisoformat(meta["deletionTimestamp"]).timestamp()
    return float(now - (killed_at - meta["deletionGracePeriodSeconds"] + DRAIN_S))


def servers_seen(
    deployments: Iterable[Object], pods: Iterable[Object], cordoned: Collection[str]
) -> dict[str, ServerSeen]:
    """The shared servers, without those that are ending."""
    alive = [body for body in pods if "deletionTimestamp" not in body["metadata"]]
    return {
        body["metadata"]["name"]: _server(body, alive, cordoned)
        for body in deployments
        if "deletionTimestamp" not in body["metadata"]
    }


def with_hosts(observed: Observed) -> Observed:
    """A look whose `pods` are those of the shared server, for each group that is on one."""
    names = {name for kind, name in observed.live if kind == "Service"} | {observed.status.revision}
    hosts = {name: host for name in names if (host := observed.host(name))}
    shared = {name: observed.servers[host].pods.get(name, ()) for name, host in hosts.items()}
    return replace(observed, own=observed.pods, pods={**observed.pods, **shared})


def _server(body: Object, pods: Sequence[Object], cordoned: Collection[str]) -> ServerSeen:
    meta = body["metadata"]
    digests: dict[str, str] = json.loads((meta.get("annotations") or {}).get(MEMBERS) or "{}")
    made = meta.get("creationTimestamp")

    def taking(group: str) -> tuple[PodSeen, ...]:
        label = hosted_label(group)
        own = [each for each in pods if each["metadata"]["labels"].get(label) == meta["name"]]
        return tuple(sorted((_pod(each, cordoned) for each in own), key=lambda pod: pod.name))

    return ServerSeen(
        name=meta["name"],
        digests=digests,
        made_at=datetime.fromisoformat(made).timestamp() if made else 0.0,
        pods={group: taking(group) for group in digests},
    )


def _pod(body: Object, cordoned: Collection[str]) -> PodSeen:
    ready = diagnosis.is_ready(body)
    return PodSeen(
        name=body["metadata"]["name"],
        ready=ready,
        runs=diagnosis.has_started(body),
        address=diagnosis.address_of(body),
        problem=None if ready else diagnosis.of_pod(body),
        cordoned=(body.get("spec") or {}).get("nodeName") in cordoned,
    )


def retired_of(bodies: Iterable[Object]) -> tuple[RetiredPod, ...]:
    """The pods that were taken off the route and are not ending yet."""
    retired = []
    for body in bodies:
        meta = body["metadata"]
        since = meta["labels"].get(RETIRED, "")
        if since and PACKAGE not in meta["labels"] and "deletionTimestamp" not in meta:
            retired.append(RetiredPod(name=meta["name"], since=float(since) if since.isdecimal() else 0.0))
    return tuple(sorted(retired, key=lambda pod: pod.name))


def revision_seen(body: Object) -> RevisionSeen:
    """A `TritonRevision`, usable or not."""
    meta = body["metadata"]
    created = meta.get("creationTimestamp")
    seen = RevisionSeen(
        history_of=(meta.get("labels") or {}).get(MODEL, ""),
        created_at=datetime.fromisoformat(created).timestamp() if created else 0.0,
    )
    try:
        spec = RevisionSpec.model_validate(body.get("spec") or {})
        capacity = spec.capacity.record if spec.capacity else None
        return replace(
            seen,
            package=spec.parsed(),
            artifacts_uri=spec.artifacts_uri,
            capacity=capacity,
            others=tuple(_group(meta["name"], each, spec.artifacts_uri) for each in spec.other_groups or ()),
        )
    except ValidationError as error:
        return replace(seen, problem=first(error))


def _group(revision: str, spec: GroupSpec, artifacts_uri: str) -> TargetPods:
    package = Package.model_validate(spec.package)
    return TargetPods(
        name=group_name(revision, package.target),
        package=package,
        artifacts_uri=spec.artifacts_uri or artifacts_uri,
        capacity=spec.capacity.record if spec.capacity else None,
    )


def spec_of(body: Object) -> tuple[ServiceSpec | None, str]:
    """A service's spec and an empty text, or None and why the spec is invalid."""
    name = body["metadata"]["name"]
    try:
        spec = ServiceSpec.model_validate(body.get("spec") or {})
    except ValidationError as error:
        return None, f"the spec is invalid: {first(error)}. Correct it."
    if name != dns_name(spec.model):
        return None, f"the service of model {spec.model!r} must be named {dns_name(spec.model)}. Create it under that."
    return spec, ""


def status_seen(body: Object) -> ServiceStatus:
    """A service's status; empty if it was made invalid from outside."""
    try:
        return status_of(body)
    except ValidationError:
        return ServiceStatus()


def first(error: ValidationError) -> str:
    """The first problem of several, with its field."""
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"


def slim(body: Object) -> Object:
    """An object without its `managedFields`, which take a third of its size."""
    metadata: dict[str, Any] = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": metadata}
