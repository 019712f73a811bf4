"""Reacts to queues that can't wait for the autoscaler: reads them every two seconds, and raises its minimum.

The rule is `runtime.serving.scaling.burst`. It applies to services with an autoscaler and a measured capacity, while
one revision has all of the traffic: during a rollout, both revisions have enough pods for all of it anyway.
"""

import math
from dataclasses import replace

from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.operator import shares
from shiplift.runtime.serving.operator.evidence import Weights
from shiplift.runtime.serving.operator.measurements import ReadDemand
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.repair import is_right
from shiplift.runtime.serving.operator.resources import ServiceSpec
from shiplift.runtime.serving.operator.scaling.replicas import fleet_capacity, live
from shiplift.runtime.serving.scaling.burst import EVERY_S, Burst, at_least, burst_of

_MOVED = {  # the fields that contain the least number of pods
    "Deployment": ("replicas",),
    "ScaledObject": ("minReplicaCount", "fallback"),
    "HorizontalPodAutoscaler": ("minReplicas",),
}


def due(observed: Observed, weights: Weights) -> tuple[ReadDemand, ...]:
    """The reading to make now."""
    spec, readings = observed.spec, observed.evidence.demand.readings
    if spec is None or _rule(observed, spec, weights) is None or not observed.ready(spec.revision):
        return ()
    fresh = bool(readings) and observed.now - readings[-1].at < EVERY_S
    return () if fresh else (ReadDemand(revision=spec.revision),)


def again_s(observed: Observed, weights: Weights) -> float:
    """Within how many seconds to look again."""
    return EVERY_S if observed.spec and _rule(observed, observed.spec, weights) else math.inf


def judged(observed: Observed, spec: ServiceSpec) -> Observed:
    """The look with the least number of pods that the queues call for."""
    rule = _rule(observed, spec, shares.current(observed))
    if rule is None:
        return observed
    demand, now = observed.evidence.demand, max(live(observed, name) for name in observed.names(spec.revision))
    wanted = at_least(demand.readings, observed.now, now, rule)
    if wanted <= now:
        return observed
    raised = replace(demand, least=wanted, until=observed.now + rule.hold_s)
    return replace(observed, evidence=replace(observed.evidence, demand=raised))


def is_raised(observed: Observed, body: Object) -> bool:
    """Whether an object differs from the wanted one only in the least number of pods, which the operator changes."""
    live_body = observed.live.get((body["kind"], body["metadata"]["name"]))
    if live_body is None or not observed.evidence.demand.until:
        return False
    live_spec, moved = live_body["spec"], _MOVED.get(body["kind"], ())
    kept = {name: live_spec[name] for name in moved if name in live_spec}
    without = {name: value for name, value in body["spec"].items() if name not in moved}
    return any(is_right({**body, "spec": spec}, observed) for spec in (without, without | kept))


def _rule(observed: Observed, spec: ServiceSpec, weights: Weights) -> Burst | None:
    """The rule for a service; None if its queues don't count, or the wanted revision does not have all traffic."""
    most = spec.scaling.max_replicas
    if most is None or most <= spec.least_replicas or observed.activation:
        return None
    capacity = fleet_capacity(observed.groups(spec.revision))
    if capacity is None or [name for name, percent in weights.items() if percent] != [spec.revision]:
        return None
    return burst_of(capacity, most, spec.slo.p99_milliseconds)
