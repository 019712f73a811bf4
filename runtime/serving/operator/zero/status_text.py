"""What the status says about a service that may be scaled to zero."""

from typing import NamedTuple

from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import Activation, Reason, ServiceSpec
from shiplift.runtime.serving.operator.upkeep import fronts
from shiplift.runtime.serving.operator.zero import phases

_UNREAD_S = 60.0


class ConditionText(NamedTuple):
    """What a condition says; `holds` is None if it is unknown."""

    holds: bool | None
    reason: Reason
    message: str


def available(observed: Observed) -> ConditionText | None:
    """Whether requests get answers although no pod runs; None if pods answer them, or should."""
    if observed.activation is Activation.ASLEEP and observed.spec is not None:
        wrong = phases.obstacle(observed, observed.spec) or fronts.problem(observed, observed.evidence)
        if wrong:
            return ConditionText(False, Reason.NO_ACTIVATOR, f"no pod runs, and {wrong}")
        return ConditionText(True, Reason.SCALED_TO_ZERO, "no pod runs; the next request is held until one is ready")
    patience_s = observed.cluster.ready_timeout_s
    waited = observed.now - (observed.evidence.traffic.since or observed.now)
    if observed.activation is Activation.WAKING and waited < patience_s:
        return ConditionText(None, Reason.WAKING, "requests are held until a pod is ready")
    return None


def activity(observed: Observed, spec: ServiceSpec) -> ConditionText | None:
    """What the condition `ScalingActive` says about scaling to zero; None: it is about the autoscaler instead."""
    if not spec.scaling.to_zero:
        return None
    if wrong := phases.obstacle(observed, spec):
        return ConditionText(False, Reason.NO_ACTIVATOR, f"it is not scaled to zero: {wrong}")
    traffic = observed.evidence.traffic
    unread = traffic.counters is None and observed.now - max(traffic.read_at, traffic.since) > _UNREAD_S
    if observed.activation is Activation.AWAKE and unread and traffic.since:
        do = "Check that the operator can reach its pods"
        return ConditionText(
            False, Reason.NO_METRICS, f"it is not scaled to zero: the pods' counters can't be read. {do}."
        )
    if observed.activation is Activation.ASLEEP:
        return ConditionText(True, Reason.SCALED_TO_ZERO, "no pods until a request comes")
    if spec.scaling.max_replicas is not None:
        return None
    return ConditionText(True, Reason.SCALING, f"no pods after {spec.scaling.idle_seconds:g} s without a request")
