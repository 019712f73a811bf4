"""Which autoscaler a revision gets, and what it reports. Another kind of autoscaler is another entry in `_KINDS`."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import NamedTuple

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.objects.autoscalers import pod_autoscaler, scaled_object
from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import Reason, ServiceSpec
from shiplift.runtime.serving.operator.scaling.replicas import ReplicaBounds, bounds, fleet_capacity
from shiplift.runtime.serving.scaling.signal import Scaling

_NEW_S = 60.0


class Scaled(NamedTuple):
    """A group that is scaled; `groups` are all groups that share the service's traffic."""

    observed: Observed
    spec: ServiceSpec
    package: Package
    name: str
    bounds: ReplicaBounds
    groups: tuple[str, ...]


class Activity(NamedTuple):
    """What the condition `ScalingActive` says; `holds` is None if it is unknown."""

    holds: bool | None
    reason: Reason
    message: str


class AutoscalerKind(NamedTuple):
    """A kind of autoscaler: its object, the name of the HPA behind it, and what a revision lacks for it."""

    name: str
    body: Callable[[Scaled], Object]
    hpa: Callable[[str], str]
    lacks: Callable[[Observed, str], str]
    active: Reason
    signal: str


def autoscaler(
    observed: Observed, spec: ServiceSpec, package: Package, name: str, revisions: Collection[str]
) -> list[Object]:
    """The autoscaler of a group, if it should have one; `revisions` are all revisions that should exist."""
    limits = bounds(observed, spec, revisions, name)
    if limits is None:
        return []
    groups = (group for revision in revisions for group in observed.names(revision))
    scaled = Scaled(observed, spec, package, name, limits, tuple(sorted(groups)))
    return [_kind_for(observed, name)[0].body(scaled)]


def activity(observed: Observed, spec: ServiceSpec, revision: str) -> Activity | None:
    """The worst report of a revision's autoscalers, one for each group; None if it has none."""
    if spec.scaling.max_replicas is None or not revision:
        return None
    activities = [_activity(observed, name) for name in observed.names(revision)]
    order = {False: 0, None: 1, True: 2}
    return min(activities, key=lambda each: (order[each.holds], each.reason is not Reason.AT_MAXIMUM))


def _activity(observed: Observed, name: str) -> Activity:
    kind, why = _kind_for(observed, name)
    scaler = observed.live.get((kind.name, name))
    hpa = observed.live.get(("HorizontalPodAutoscaler", kind.hpa(name))) or {}
    says = _conditions(hpa)
    sees = says.get("ScalingActive", {}).get("status") == "True"
    if scaler is None or "ScalingActive" not in says or (not sees and _is_new(hpa, observed.now)):
        return Activity(None, Reason.NO_AUTOSCALER, _silent(kind, name, scaler))
    if trouble := _trouble(scaler, says):
        return Activity(False, Reason.NO_METRICS, trouble)
    least, most = hpa["spec"].get("minReplicas", 1), hpa["spec"]["maxReplicas"]
    if least < most and says.get("ScalingLimited", {}).get("reason") == "TooManyReplicas":
        do = "Raise spec.scaling.maxReplicas if nodes have room."
        return Activity(True, Reason.AT_MAXIMUM, f"all {most} pods are needed, and perhaps more. {do}")
    return Activity(True, kind.active, f"{least} to {most} pods by {kind.signal}{why and f': {why}'}")


def _kind_for(observed: Observed, name: str) -> tuple[AutoscalerKind, str]:
    """The first kind that a revision can have, and why it can't have a better one."""
    why = ""
    for kind in _KINDS:
        lacks = kind.lacks(observed, name)
        if not lacks:
            return kind, why
        why = lacks
    return _KINDS[-1], why


def _is_new(hpa: Object, now: float) -> bool:
    """Whether an autoscaler was made a moment ago, so that it may not have a value yet."""
    made = hpa["metadata"].get("creationTimestamp")
    return bool(made) and now - datetime.fromisoformat(made).timestamp() < _NEW_S


def _silent(kind: AutoscalerKind, name: str, scaler: Object | None) -> str:
    who = "KEDA" if kind.name == "ScaledObject" else "the controller manager"
    ready = _conditions(scaler or {}).get("Ready", {})
    told = f": {ready['message']}" if ready.get("status") == "False" and ready.get("message") else ""
    return f"{who} has not acted on {kind.name} {name} yet{told}. If that lasts, check that it runs, and read its log."


def _trouble(scaler: Object, says: dict[str, Object]) -> str:
    """Why the autoscaler does not see its signal; empty if it does."""
    held = "No pod is taken away meanwhile."
    if _conditions(scaler).get("Fallback", {}).get("status") == "True":
        do = "Check that it runs, scrapes the pods, and has the rules of the PrometheusRule."
        return f"KEDA gets no value from Prometheus. {held} {do}"
    active = says["ScalingActive"]
    if active["status"] == "True":
        return ""
    message = " ".join(str(active.get("message", "")).split())[:300]
    return f"the autoscaler has no metrics: {message or active.get('reason', '')}. {held}"


def _conditions(body: Object) -> dict[str, Object]:
    return {each["type"]: each for each in (body.get("status") or {}).get("conditions") or ()}


def _scaled_object(scaled: Scaled) -> Object:
    observed = scaled.observed
    capacity = fleet_capacity(observed.groups(observed.revision_of(scaled.name)))
    if capacity is None:
        raise ValueError(f"{scaled.name} has no capacity")
    scaling = Scaling(capacity=capacity, minimum=scaled.bounds.least, maximum=scaled.bounds.most)
    return scaled_object(
        scaled.package,
        name=scaled.name,
        namespace=observed.namespace,
        service=observed.name,
        revisions=scaled.groups,
        scaling=scaling,
        prometheus=observed.cluster.prometheus,
    )


def _pod_autoscaler(scaled: Scaled) -> Object:
    limits, percent = scaled.bounds, scaled.spec.scaling.target_cpu_utilization_percentage
    return pod_autoscaler(scaled.package, name=scaled.name, least=limits.least, most=limits.most, percent=percent)


def _lacks_requests(observed: Observed, name: str) -> str:
    revision = observed.revision_of(name)
    if missing := sorted({"ScaledObject", "PrometheusRule"} - observed.optional):
        return f"the cluster does not know {' and '.join(missing)}"
    if not observed.cluster.prometheus:
        return "the installation's values don't set `monitoring.prometheus`"
    measured = fleet_capacity(observed.groups(revision)) is not None
    return "" if measured else f"TritonRevision {revision} has no capacity, which a release's load test measures"


_KINDS = (
    AutoscalerKind(
        name="ScaledObject",
        body=_scaled_object,
        hpa=lambda name: f"keda-hpa-{name}",
        lacks=_lacks_requests,
        active=Reason.SCALING,
        signal="the rate of requests and the measured capacity of a pod",
    ),
    AutoscalerKind(
        name="HorizontalPodAutoscaler",
        body=_pod_autoscaler,
        hpa=lambda name: name,
        lacks=lambda *_: "",
        active=Reason.SCALING_ON_CPU,
        signal="CPU",
    ),
)
KINDS = frozenset(kind.name for kind in _KINDS)
