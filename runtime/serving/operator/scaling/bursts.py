"""Queues that can't wait for the autoscaler: the operator reads them every two seconds, and raises its minimum.

The rule is `runtime.serving.scaling.burst`. It counts for services with an autoscaler and a measured capacity, while
one revision has all of the traffic: during a rollout both have the pods for all of it.
"""

import math
from dataclasses import replace

from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.operator import shares
from shiplift.runtime.serving.operator.evidence import Evidence, Weights
from shiplift.runtime.serving.operator.measurements import ReadDemand
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.repair import is_right
from shiplift.runtime.serving.operator.resources import ServiceSpec
from shiplift.runtime.serving.operator.scaling.replicas import fleet_capacity, live
from shiplift.runtime.serving.scaling.burst import EVERY_S, Burst, at_least, burst_of

_MOVED = {  # what the least number of pods is written into
    "Deployment": ("replicas",),
    "ScaledObject": ("minReplicaCount", "fallback"),
    "HorizontalPodAutoscaler": ("minReplicas",),
}


def due(observed: Observed, weights: Weights) -> tuple[ReadDemand, ...]:
    """The reading to make now."""
    revision = _serving(weights)
    if observed.spec is None or not revision or _rule(observed, observed.spec, revision) is None:
        return ()
    readings = observed.evidence.demand.readings
    fresh = bool(readings) and observed.now - readings[-1].at < EVERY_S
    return () if fresh or not observed.ready(revision) else (ReadDemand(revision=revision),)


def again_s(observed: Observed, weights: Weights) -> float:
    """Within how many seconds to look again."""
    revision = _serving(weights)
    reads = observed.spec is not None and revision and _rule(observed, observed.spec, revision) is not None
    return EVERY_S if reads else math.inf


def judged(observed: Observed, spec: ServiceSpec) -> Observed:
    """What was seen, with the least number of pods that the queues call for."""
    revision = _serving(shares.current(observed))
    rule = _rule(observed, spec, revision) if revision else None
    if rule is None:
        return observed
    demand, now = observed.evidence.demand, max(live(observed, name) for name in observed.names(revision))
    wanted = at_least(demand.readings, observed.now, now, rule)
    if wanted <= now:
        return observed
    evidence: Evidence = replace(
        observed.evidence, demand=replace(demand, least=wanted, until=observed.now + rule.hold_s)
    )
    return replace(observed, evidence=evidence)


def is_raised(observed: Observed, body: Object) -> bool:
    """Whether an object differs from what it should be only in the least number of pods, which the operator moves."""
    live_body = observed.live.get((body["kind"], body["metadata"]["name"]))
    if live_body is None or not observed.evidence.demand.until:
        return False
    live_spec, moved = live_body["spec"], _MOVED.get(body["kind"], ())
    kept = {name: live_spec[name] for name in moved if name in live_spec}
    without = {name: value for name, value in body["spec"].items() if name not in moved}
    return any(is_right({**body, "spec": spec}, observed) for spec in (without, without | kept))


def _serving(weights: Weights) -> str:
    """The revision with all of the traffic; empty if there is none, or more than one."""
    revisions = [name for name, percent in weights.items() if percent]
    return revisions[0] if len(revisions) == 1 else ""


def _rule(observed: Observed, spec: ServiceSpec, revision: str) -> Burst | None:
    """The rule for a service; None: its queues decide nothing."""
    most = spec.scaling.max_replicas
    if most is None or most <= spec.least_replicas or observed.activation or revision != spec.revision:
        return None
    capacity = fleet_capacity(observed.groups(revision))
    if capacity is None:
        return None
    return burst_of(capacity, most, spec.slo.p99_milliseconds)
