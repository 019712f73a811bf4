"""The objects that should exist for a service, built by the same functions as in staging."""

from collections.abc import Iterator, Sequence

from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.serving.kubernetes.objects.activator import to_activator
from shiplift.runtime.serving.kubernetes.objects.deployment import deployment, disruption_budget, service
from shiplift.runtime.serving.kubernetes.objects.front import TIMEOUT_S, copying, front_objects
from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE, Object
from shiplift.runtime.serving.kubernetes.objects.shared import shared_service
from shiplift.runtime.serving.operator.evidence import Weights
from shiplift.runtime.serving.operator.groups.weighing import backends
from shiplift.runtime.serving.operator.hosting.moving import hosting
from shiplift.runtime.serving.operator.monitoring import seen
from shiplift.runtime.serving.operator.observed import Observed, TargetPods
from shiplift.runtime.serving.operator.resources import API_VERSION, SERVICE_KIND, ServiceSpec
from shiplift.runtime.serving.operator.scaling import autoscalers
from shiplift.runtime.serving.operator.scaling.replicas import bounds, written
from shiplift.runtime.serving.operator.upkeep.surge import extra_replicas
from shiplift.runtime.serving.operator.zero.phases import serving

_ADDRESSED = ("Service", "EndpointSlice")  # they give the gateway's address the model's name
_ROUTES = ("GRPCRoute", "HTTPRoute")
_MARGIN_S = 30.0  # for a request to wait in the server's queue, on top of its longest execution
WORKLOADS = ("Deployment", "Service", "PodDisruptionBudget", *autoscalers.KINDS)  # the kinds of a revision's objects

_AROUND = (*autoscalers.KINDS, *seen.KINDS)


def workloads(observed: Observed, spec: ServiceSpec, revisions: set[str]) -> list[Object]:
    """The objects of these revisions; none for a revision whose package is unknown, so its objects stay as they are."""
    bodies: list[Object] = []
    for name in sorted(revisions):
        for group in observed.groups(name):
            bodies += _of_group(observed, spec, name, group, revisions)
    return [_owned(body, observed) for body in bodies]


def front(observed: Observed, spec: ServiceSpec, weights: Weights) -> list[Object]:
    """The objects that lead a model's traffic to its revisions; none until a revision serves."""
    if not any(weights.values()):
        return []
    groups = [group for name in weights for group in observed.groups(name)]
    held_s = observed.cluster.activator.hold_s if observed.activation and observed.cluster.activator else 0
    limits = [group.package.needs.request_timeout_s + _MARGIN_S + held_s for group in groups]
    by_group = backends(observed, weights) if observed.cluster.gateway else weights
    bodies = front_objects(
        spec.model,
        observed.cluster,
        by_group,
        observed.address,
        policies=observed.policies,
        timeout_s=max(limits, default=TIMEOUT_S + held_s),
        several=set(filter(observed.several, weights)),
        hosts={name: hosting(observed, name).server for name in weights},
    )
    if mirror := _mirror(observed, weights):
        bodies = [copying(body, mirror) for body in bodies]
    if observed.activation:
        bodies = [_held(body, observed, weights) for body in bodies]
    nameless = observed.cluster.gateway is not None and not observed.address
    return [_owned(body, observed) for body in bodies if not (nameless and body["kind"] in _ADDRESSED)]


def _mirror(observed: Observed, weights: Weights) -> Mirror | None:
    """Who gets copies of the requests: a challenger that is there, and has no share of them anyway."""
    mirror = observed.mirror
    there = mirror and ("Service", mirror.revision) in observed.live
    return mirror if mirror and there and not weights.get(mirror.revision) and not observed.activation else None


def monitoring(observed: Observed, spec: ServiceSpec, revisions: set[str]) -> list[Object]:
    """The objects for monitoring these revisions."""
    groups = {name for revision in revisions for name in observed.names(revision)}
    return [_owned(body, observed) for body in seen.objects(observed, spec, groups)]


def surplus(observed: Observed, kept: set[str], dropped: set[str]) -> Iterator[Object]:
    """The objects of revisions that are not kept: those that this service owns, and all of the `dropped` ones."""
    for (kind, _), body in sorted(observed.live.items()):
        revision = observed.revision_of((body["metadata"].get("labels") or {}).get(PACKAGE, ""))
        if (
            kind in WORKLOADS
            and revision
            and revision not in kept
            and (revision in dropped or is_owned(body, observed))
        ):
            yield body


def obsolete(observed: Observed, kept: set[str], bodies: Sequence[Object]) -> Iterator[Object]:
    """The service's autoscaling and monitoring objects that are not among `bodies`, which are all that should exist.

    Those of a revision that is kept but whose package is unknown stay as they are.
    """
    right = {(body["kind"], body["metadata"]["name"]) for body in bodies}
    for key, body in sorted(observed.live.items()):
        revision = observed.revision_of((body["metadata"].get("labels") or {}).get(PACKAGE, ""))
        unknown = revision in kept and observed.package(revision) is None
        if key[0] in _AROUND and key not in right and is_owned(body, observed) and not unknown:
            yield body


def is_owned(body: Object, observed: Observed) -> bool:
    """Whether an object belongs to this service."""
    return any(owner.get("uid") == observed.uid for owner in body["metadata"].get("ownerReferences") or [])


def _of_group(
    observed: Observed, spec: ServiceSpec, revision: str, group: TargetPods, revisions: set[str]
) -> list[Object]:
    name, package = group.name, group.package
    common = revision if observed.several(revision) else ""
    home = hosting(observed, name)
    leads = (
        shared_service(package, group=name, server=home.server)
        if home.server
        else service(package, name=name, extra={})
    )
    if not home.own:
        return [leads]
    replicas, scaled = written(observed, spec, revisions, name), bounds(observed, spec, revisions, name)
    least = scaled.lasting if scaled else spec.least_replicas
    if replicas and scaled is None:
        replicas += extra_replicas(observed, name, replicas)
    return [
        deployment(
            observed.cluster,
            package,
            group.artifacts_uri,
            name=name,
            replicas=replicas,
            extra={},
            revision=common,
            serves=True,
        ),
        leads,
        disruption_budget(package, name=name, replicas=least),
        *autoscalers.autoscaler(observed, spec, package, name, revisions),
    ]


def _held(body: Object, observed: Observed, weights: Weights) -> Object:
    """An object of the front, with the activator in the place of missing pods."""
    if body["kind"] not in _ROUTES:
        return body
    return to_activator(body, observed.name, observed.names(serving(weights)))


def _owned(body: Object, observed: Observed) -> Object:
    owner = {"apiVersion": API_VERSION, "kind": SERVICE_KIND, "name": observed.name, "uid": observed.uid}
    metadata = {**body["metadata"], "namespace": observed.namespace, "ownerReferences": [owner]}
    return {**body, "metadata": metadata}
