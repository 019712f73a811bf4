"""The objects of a shared server: one Triton with the models of several services.

Its set of packages is its identity and never changes: another set means another server beside it. Each model has its
own label on the pods, by which its Service selects them. A model that can't be fetched or loaded is left out; the
others serve.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.deployment import around, beside_server, ports
from shiplift.runtime.serving.kubernetes.objects.names import (
    LABEL,
    METRICS,
    PACKAGE,
    SERVER,
    SERVICES,
    Object,
    hosted_label,
    labels,
)
from shiplift.runtime.serving.kubernetes.objects.pods import (
    captures,
    confined_container,
    fetch_packages_container,
    triton_container,
    volumes,
)

MEMBERS = f"{LABEL}members"  # an annotation: the digest of each member's package, as JSON
_SCRAPE = "5s"


@dataclass(frozen=True, kw_only=True)
class SharedMember:
    """A revision's group on a shared server; `memory_mb` is its expected memory."""

    group: str
    package: Package
    artifacts_uri: str
    memory_mb: float


def server_name(digests: Mapping[str, str]) -> str:
    """The name of the server with these packages, by group."""
    text = json.dumps(dict(sorted(digests.items())))
    return f"shared-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def digests_of(members: Sequence[SharedMember]) -> dict[str, str]:
    """The digest of each member's package."""
    return {member.group: member.package.repository.sha256 for member in sorted(members, key=lambda each: each.group)}


def server_objects(
    cluster: Cluster, members: Sequence[SharedMember], *, replicas: int, owners: Sequence[Object], monitored: bool
) -> list[Object]:
    """All objects of a shared server except its Services, which belong to the members.

    `owners` are the members' services: Kubernetes deletes the server with the last of them. `monitored`: the cluster
    knows PodMonitors.
    """
    name = server_name(digests_of(members))
    bodies = [_deployment(cluster, name, members, replicas), _budget(name, replicas)]
    if monitored:
        bodies.append(_monitor(name, members, cluster.monitoring_labels))
    for body in bodies:
        body["metadata"] |= {"namespace": cluster.serving_namespace, "ownerReferences": list(owners)}
    return bodies


def _labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "triton", "app.kubernetes.io/managed-by": "shiplift", SERVER: name}


def _deployment(cluster: Cluster, name: str, members: Sequence[SharedMember], replicas: int) -> Object:
    first = members[0].package
    pod_labels = _labels(name) | {hosted_label(member.group): name for member in members}
    services = ",".join(sorted({dns_name(member.package.model) for member in members}))
    notes = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS), SERVICES: services}
    pod = {
        **confined_container(first),
        **around(first, {SERVER: name}),
        "initContainers": [fetch_packages_container(cluster, [(m.package, m.artifacts_uri) for m in members])],
        "containers": [_triton(cluster, members)],
        "volumes": volumes(first),
    }
    pod = captures(cluster, [member.package for member in members], pod)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": _labels(name),
            "annotations": {MEMBERS: json.dumps(digests_of(members))},
        },
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {SERVER: name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
            "template": {"metadata": {"labels": pod_labels, "annotations": notes}, "spec": pod},
        },
    }


def _triton(cluster: Cluster, members: Sequence[SharedMember]) -> Object:
    """The server. It requests memory for all of its models, and the CPU of one server, since their loads are small."""
    packages = [member.package for member in members]
    names = [serving_name(package.model) for package in packages]
    load = [name for package in packages for name in (*package.member_models, serving_name(package.model))]
    ready = "/v2/health/ready"
    probes, beside = beside_server(cluster, packages, startup=ready, ready=ready)
    body = triton_container(cluster, packages[0], names, load=load, probes=probes, beside=[*beside, "--shared"])
    limit = cluster.sharing.memory_mb
    wanted = min(limit, max(256, round(sum(member.memory_mb for member in members))))
    body["resources"]["requests"]["memory"] = f"{wanted}Mi"
    body["resources"]["limits"]["memory"] = f"{limit}Mi"
    return body


def _budget(name: str, replicas: int) -> Object:
    least = {"maxUnavailable": 1} if replicas > 1 else {"minAvailable": 1}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": _labels(name)},
        "spec": {
            **least,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {SERVER: name}},
        },
    }


def _monitor(name: str, members: Sequence[SharedMember], extra: Mapping[str, str]) -> Object:
    """Gives each model's series the labels that they have on the model's own pods, so queries work for both."""
    relabelings = [
        {
            "sourceLabels": ["model"],
            "regex": serving_name(member.package.model),
            "action": "replace",
            "targetLabel": label.translate(_SPELLED),
            "replacement": value,
        }
        for member in members
        for label, value in labels(member.package, member.group).items()
        if label.startswith(LABEL)
    ]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": name, "labels": {**extra, **_labels(name)}},
        "spec": {
            "selector": {"matchLabels": {SERVER: name}},
            "podTargetLabels": [SERVER],
            "podMetricsEndpoints": [{"port": "metrics", "interval": _SCRAPE, "metricRelabelings": relabelings}],
        },
    }


_SPELLED = str.maketrans("./-", "___")  # as Prometheus spells labels


def shared_service(package: Package, *, group: str, server: str) -> Object:
    """The Service of a group whose requests a shared server takes."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": group, "labels": labels(package, group)},
        "spec": {"selector": {hosted_label(group): server}, "ports": ports()},
    }


def selected_server(body: Object, group: str) -> str:
    """The shared server whose pods a Service selects for a group; empty if it selects the group's own pods."""
    return str((body.get("spec", {}).get("selector") or {}).get(hosted_label(group), ""))


def selects_own(body: Object, group: str) -> bool:
    """Whether a Service selects a group's own pods, which serve nothing else."""
    selector: Collection[tuple[str, str]] = (body.get("spec", {}).get("selector") or {}).items()
    return (PACKAGE, group) in selector
