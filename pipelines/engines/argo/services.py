"""A `TritonService`, summarized for `shiplift status`."""

from shiplift.pipelines.engines.answers import ServiceSummary
from shiplift.runtime.serving.operator.declared import Declared
from shiplift.runtime.serving.operator.resources import ConditionType, percent_by_revision

_STATES = (ConditionType.STALLED, ConditionType.READY, ConditionType.RECONCILING)  # the first one that holds is shown


def service_status(service: Declared) -> ServiceSummary:
    """What serves a model, and its most telling condition."""
    status = service.status
    condition = next(filter(None, (status.condition(kind) for kind in _STATES if status.holds(kind))), None)
    if condition is None or not service.current:
        state, reason, message = "Unknown", "NotSeen", "the operator has not looked at it since the last change"
    else:
        state, reason, message = str(condition.type), str(condition.reason), condition.message
    return ServiceSummary(
        model=service.spec.model,
        state=state,
        reason=reason,
        message=message,
        revision=status.revision,
        version=status.version,
        weights=percent_by_revision(status.weights),
        ready_pods=status.ready_replicas,
        pods=service.spec.least_replicas * max(1, len(status.groups)),
        targets=status.targets,
        baking=service.baking.sentence if service.baking and service.bakes else "",
    )
