"""The parts of a shared server: its members, its owners, and how many pods it has."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.kubernetes.objects.shared import SharedMember
from shiplift.runtime.serving.operator.observed import RevisionSeen, ServerSeen
from shiplift.runtime.serving.operator.resources import API_VERSION, SERVICE_KIND
from shiplift.runtime.serving.operator.sharing.tenants import Inhabitant, memory_of


def shared_members(groups: Iterable[str], revisions: Mapping[str, RevisionSeen]) -> list[SharedMember]:
    """The members of a server with these groups, without those whose package is unknown."""
    seen = {group: revisions[group] for group in sorted(groups) if group in revisions}
    return [
        SharedMember(group=group, package=each.package, artifacts_uri=each.artifacts_uri, memory_mb=memory_of(each))
        for group, each in seen.items()
        if each.package
    ]


def owners_of(members: Sequence[SharedMember], services: Iterable[Object]) -> list[Object]:
    """The members' services: Kubernetes deletes a server with the last of them."""
    models = {member.package.model for member in members}
    names = {
        body["metadata"]["name"]: body["metadata"]["uid"]
        for body in services
        if (body.get("spec") or {}).get("model") in models
    }
    return [
        {"apiVersion": API_VERSION, "kind": SERVICE_KIND, "name": name, "uid": uid}
        for name, uid in sorted(names.items())
    ]


def replicas_of(homes: Collection[Inhabitant], server: ServerSeen | None) -> int:
    """How many pods a server has: as many as its services want, and one more if the only one is about to go.

    That is the case if its node is cordoned: the disruption budget forbids evicting the pod until there is another.
    """
    replicas = max((home.spec.least_replicas for home in homes), default=1)
    pods = [pod for pods in server.pods.values() for pod in pods] if server else []
    return replicas + (replicas == 1 and any(pod.cordoned for pod in pods))


def without_quantities(body: Object) -> Object:
    """An object without its quantities, which the API server spells in its own way."""
    if body["kind"] != "Deployment":
        return body
    template = body["spec"]["template"]
    pod = dict(template["spec"])
    for kind in ("containers", "initContainers"):
        pod[kind] = [{**container, "resources": {}} for container in pod[kind]]
    return {**body, "spec": {**body["spec"], "template": {**template, "spec": pod}}}
