"""How many pods each revision of a service needs in each of its groups. All groups of a revision have the same number.

So a service is scaled in sets of one pod of each group, and a set's capacity is the sum of theirs.

If an autoscaler chooses, the operator sets the range. It writes the number itself only if the autoscaler can't: for a
new Deployment, or one with fewer pods than it must have, for example because of a queue that can't wait for the
autoscaler (`bursts.py`). During a rollout both revisions are ready for all of the traffic: the new one starts with the
old one's capacity, and the old one keeps its pods.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.operator.observed import Observed, TargetPods
from shiplift.runtime.serving.operator.resources import ServiceSpec
from shiplift.runtime.serving.operator.upkeep.surge import extra_replicas
from shiplift.runtime.serving.operator.zero.phases import leaves_autoscaler, sleeps, stays_asleep


@dataclass(frozen=True, kw_only=True)
class ReplicaBounds:
    """The range of an autoscaler; `lasting` is the least number without the pods that queues call for just now."""

    least: int
    most: int
    lasting: int


def needed(observed: Observed, spec: ServiceSpec, others: Collection[str]) -> int:
    """The pods that the wanted revision needs before it takes over traffic from the `others`."""
    if spec.scaling.max_replicas is None:
        return spec.least_replicas
    handed_over = max((_as_target(observed, spec, name) for name in others), default=0)
    return min(max(spec.least_replicas, handed_over), spec.scaling.max_replicas)


def bounds(observed: Observed, spec: ServiceSpec, revisions: Collection[str], name: str) -> ReplicaBounds | None:
    """The range of a group's autoscaler; None if it has no autoscaler. `revisions` are all that should exist."""
    revision = observed.revision_of(name)
    most = spec.scaling.max_replicas
    if most is None or leaves_autoscaler(observed, revision) or stays_asleep(observed, spec, name):
        return None
    others = set(revisions) - {revision}
    if not others or spec.revision not in revisions:
        least = spec.least_replicas
    elif revision == spec.revision:
        least = needed(observed, spec, others)
    else:  # traffic may come back at any moment, so the old revision keeps its pods
        least = max(spec.least_replicas, live(observed, name))
    least += extra_replicas(observed, name, least)
    lasting = min(least, most)
    return ReplicaBounds(least=max(lasting, 0 if others else min(most, _for_now(observed))), most=most, lasting=lasting)


def written(observed: Observed, spec: ServiceSpec, revisions: Collection[str], name: str) -> int | None:
    """The number of pods to write into a group's Deployment; None: the autoscaler writes it.

    If both wrote the field, they would undo each other's changes.
    """
    if sleeps(observed, observed.revision_of(name)) or stays_asleep(observed, spec, name):
        return 0
    scaled, now = bounds(observed, spec, revisions, name), live(observed, name)
    if scaled is None:
        wanted = observed.revision_of(name) == spec.revision
        return spec.least_replicas if wanted else max(spec.least_replicas, now)
    if ("Deployment", name) not in observed.live:
        return min(max(scaled.least, _desired(observed, name)), scaled.most)
    return scaled.least if now < scaled.least else None


def _for_now(observed: Observed) -> int:
    """How many pods the servers' queues call for; 0 if they don't matter now."""
    demand = observed.evidence.demand
    return demand.least if observed.now < demand.until else 0


def live(observed: Observed, name: str) -> int:
    """The number of pods that a group's Deployment asks for; 0 if it does not exist."""
    body = observed.live.get(("Deployment", name)) or {}
    return int(body.get("spec", {}).get("replicas") or 0)


def _as_target(observed: Observed, spec: ServiceSpec, name: str) -> int:
    """How many pods in each group of the wanted revision have the capacity of another revision's pods."""
    pods = {each: live(observed, each) for each in observed.names(name)}
    before, after = observed.groups(name), fleet_capacity(observed.groups(spec.revision))
    if after is None or fleet_capacity(before) is None:
        return max(pods.values())
    power = sum(pods[each.name] * each.capacity.within_slo_per_s for each in before if each.capacity)
    return math.ceil(power / after.within_slo_per_s - 1e-9)


def fleet_capacity(groups: Sequence[TargetPods]) -> Capacity | None:
    """The capacity of one pod of each group together; None if a group was not measured."""
    each = [group.capacity for group in groups if group.capacity]
    if not each or len(each) < len(groups):
        return None
    if len(each) == 1:
        return each[0]
    peak, within = sum(part.peak_per_s for part in each), sum(part.within_slo_per_s for part in each)
    limits = [part.p99_ms for part in each if part.p99_ms is not None]
    return Capacity(peak_per_s=peak, within_slo_per_s=within, p99_ms=min(limits, default=None))


def _desired(observed: Observed, name: str) -> int:
    """What the autoscaler last chose for a Deployment that has been deleted; 0 if that is unknown."""
    for scaler in (name, f"keda-hpa-{name}"):
        body = observed.live.get(("HorizontalPodAutoscaler", scaler)) or {}
        if desired := (body.get("status") or {}).get("desiredReplicas"):
            return int(desired)
    return 0
