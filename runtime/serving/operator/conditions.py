"""A service's status: what is true now, in Kubernetes' terms. It changes only if something that it says has changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE, Object
from shiplift.runtime.serving.operator.evidence import Weights
from shiplift.runtime.serving.operator.groups import status_text
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, ServiceStatus, StatusCondition, Weight
from shiplift.runtime.serving.operator.scaling.autoscalers import activity
from shiplift.runtime.serving.operator.step import RolloutStep, why_not_ready
from shiplift.runtime.serving.operator.upkeep import fronts, latency
from shiplift.runtime.serving.operator.upkeep.heartbeat import LIMIT
from shiplift.runtime.serving.operator.zero import status_text as zero

_CHECK_ROUTES = "The routes were written again: check their status, the gateway's, and routes of others for this model"
_TOLD = (
    ConditionType.READY,
    ConditionType.STALLED,
    ConditionType.AVAILABLE,
    ConditionType.VERIFIED,
    ConditionType.SCALING_ACTIVE,
)
_LEADING = ("Service", "EndpointSlice", "GRPCRoute", "HTTPRoute", "Ingress", "BackendTrafficPolicy")


@dataclass(frozen=True, kw_only=True)
class KubernetesEvent:
    """A Kubernetes Event on the service, for people to read."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, kw_only=True)
class Saying:
    """What a condition says."""

    holds: bool | None
    reason: Reason
    message: str = ""


def observed_status(observed: Observed, step: RolloutStep, *, repaired: Sequence[Object]) -> ServiceStatus:
    """The status after a step; `repaired` are the objects that are being restored."""
    serving = max(step.weights, key=lambda name: (step.weights[name], name), default="")
    package, pods = observed.package(serving), observed.pods_of(serving)
    wanted = observed.spec.revision if observed.spec else ""
    groups = status_text.group_statuses(observed, serving)
    before = observed.status
    return ServiceStatus(
        observed_generation=observed.generation,
        revision=serving,
        version=package.version if package else 0,
        weights=tuple(Weight(revision=name, percent=percent) for name, percent in sorted(step.weights.items())),
        weight=step.weights.get(wanted, 0),
        replicas=len(pods),
        ready_replicas=len(observed.ready(serving)),
        selector=status_text.selector(observed, serving, PACKAGE) if serving else "",
        previous_revision=before.revision if before.revision not in ("", serving) else before.previous_revision,
        failed_revision=step.failed,
        groups=groups,
        targets=status_text.in_words(groups),
        activation=observed.activation,
        p99_milliseconds=latency.told(observed, step.evidence),
        client_requests_per_minute=latency.clients_told(observed, step.evidence),
        conditions=tuple(_conditions(observed, step, repaired)),
    )


def unusable(observed: Observed) -> ServiceStatus:
    """The status of a service whose spec is invalid: what served before still serves."""
    sayings = {
        ConditionType.READY: Saying(holds=False, reason=Reason.INVALID_SPEC, message=observed.problem),
        ConditionType.RECONCILING: Saying(holds=False, reason=Reason.IDLE),
        ConditionType.STALLED: Saying(holds=True, reason=Reason.INVALID_SPEC, message=observed.problem),
    }
    kept = [each for each in observed.status.conditions if each.type not in sayings]
    conditions = (*(_condition(observed, kind, saying) for kind, saying in sayings.items()), *kept)
    return observed.status.model_copy(
        update={"observed_generation": observed.generation, "conditions": conditions, "failed_revision": ""}
    )


def leads_traffic(body: Object) -> bool:
    """Whether a wrong object of this kind may have lost requests although pods were ready."""
    return body["kind"] in _LEADING


def events_of(before: ServiceStatus, after: ServiceStatus) -> tuple[KubernetesEvent, ...]:
    """An event for each condition that changed, and for each new stage of a rollout."""
    events = []
    for condition in after.conditions:
        was = before.condition(condition.type)
        told = condition.type in _TOLD or condition.status == "True"
        changed = was is None or (was.status, was.reason) != (condition.status, condition.reason)
        if told and changed and (was is not None or condition.status == "True"):
            bad = condition.status == ("True" if condition.type is ConditionType.STALLED else "False")
            warning = bad and condition.type not in (ConditionType.READY, ConditionType.RECONCILING)
            message = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
            events.append(KubernetesEvent(reason=condition.reason, message=message, warning=warning))
    return tuple(event for event in events if event.reason != Reason.IDLE)


def _conditions(observed: Observed, step: RolloutStep, repaired: Sequence[Object]) -> list[StatusCondition]:
    ready, available = _ready(observed, step, repaired), _available(observed, step.weights)
    sayings = {
        ConditionType.READY: ready,
        ConditionType.RECONCILING: _reconciling(observed, step, repaired),
        ConditionType.STALLED: Saying(
            holds=step.stalled,
            reason=step.reason if step.stalled else Reason.IDLE,
            message=step.message if step.stalled else "",
        ),
        ConditionType.AVAILABLE: available,
        ConditionType.VERIFIED: _verified(observed, step.weights),
        **_scaling(observed, step.weights),
    }
    return [_condition(observed, kind, saying) for kind, saying in sayings.items()]


def _ready(observed: Observed, step: RolloutStep, repaired: Sequence[Object]) -> Saying:
    if not step.moved:
        return Saying(holds=False, reason=step.reason, message=step.message)
    available = _available(observed, step.weights)
    if not available.holds or available.reason is Reason.SCALED_TO_ZERO:
        return available
    wrong = _verified(observed, step.weights)
    if wrong.holds is False:
        return wrong
    if any(map(leads_traffic, repaired)):
        return Saying(holds=False, reason=Reason.REPAIRING, message=_repairing(repaired))
    if problem := fronts.problem(observed, step.evidence):
        return Saying(holds=False, reason=Reason.ROUTE_FAILED, message=f"{problem}. {_CHECK_ROUTES}")
    revision = next(name for name, percent in step.weights.items() if percent)
    missing = status_text.without_pods(observed, revision)
    message = f"{revision} answers all requests{missing and f', but {missing}'}"
    return Saying(holds=True, reason=Reason.SERVING, message=message)


def _reconciling(observed: Observed, step: RolloutStep, repaired: Sequence[Object]) -> Saying:
    if repaired:
        return Saying(holds=True, reason=Reason.REPAIRING, message=_repairing(repaired))
    if step.stalled or step.reason is Reason.SCALED_TO_ZERO:
        return Saying(holds=False, reason=Reason.IDLE)
    if step.moved and step.reason is Reason.SERVING:
        least = observed.spec.least_replicas if observed.spec else 1
        groups = [group for name, percent in step.weights.items() if percent for group in observed.names(name)]
        short = {group: ready for group in groups if (ready := len(observed.ready_in(group))) < least}
        if short:
            return Saying(holds=True, reason=Reason.STARTING, message=_short(short, least, groups))
        if problem := fronts.problem(observed, step.evidence):
            return Saying(holds=True, reason=Reason.ROUTE_FAILED, message=problem)
        return Saying(holds=False, reason=Reason.IDLE)
    return Saying(holds=True, reason=step.reason, message=step.message)


def _short(ready: dict[str, int], least: int, groups: Sequence[str]) -> str:
    """How many pods are ready, by group if there are several."""
    where = [f"{count} of {least} pods{f' of {group}' if len(groups) > 1 else ''}" for group, count in ready.items()]
    return f"{' and '.join(where)} are ready"


def _available(observed: Observed, weights: Weights) -> Saying:
    serving = [name for name, percent in weights.items() if percent]
    if not serving:
        return Saying(holds=False, reason=Reason.NO_PODS, message="nothing serves")
    if told := zero.available(observed):
        return Saying(**told._asdict())
    if any(observed.ready(name) for name in serving):
        return Saying(holds=True, reason=Reason.SERVING, message=f"{' and '.join(serving)} has ready pods")
    if any(group in observed.ending for name in serving for group in observed.names(name)):
        message = f"the last pod of {' and '.join(serving)} is ending, and answers until another one is ready"
        return Saying(holds=True, reason=Reason.SERVING, message=message)
    why = why_not_ready(observed, serving[0])
    reason = f": {why.sentence}. {why.do}" if why else ""
    return Saying(holds=False, reason=Reason.NO_PODS, message=f"no pod of {' or '.join(serving)} is ready{reason}")


def _verified(observed: Observed, weights: Weights) -> Saying:
    """What the heartbeats say. Between the first miss and the limit, the condition stays as it was."""
    if observed.spec is None or not observed.spec.heartbeat.interval_seconds:
        return Saying(holds=None, reason=Reason.NOT_CHECKED, message="the heartbeat is off")
    pods = [pod.name for name, percent in weights.items() if percent for pod in observed.ready(name)]
    beats = [beat for pod in pods if (beat := observed.evidence.beats.get(pod))]
    failing = [beat for beat in beats if beat.misses >= LIMIT]
    if beats and len(failing) == len(pods):
        return Saying(holds=False, reason=Reason.WRONG_ANSWERS, message=failing[0].message)
    if beats and all(beat.misses == 0 for beat in beats):
        return Saying(holds=True, reason=Reason.ANSWERS_CHECKED, message="the last golden requests were answered right")
    before = observed.status.condition(ConditionType.VERIFIED)
    if before is None or before.status == "Unknown" or not pods:
        return Saying(holds=None, reason=Reason.NOT_CHECKED, message="no golden request was answered yet")
    return Saying(holds=before.status == "True", reason=before.reason, message=before.message)


def _scaling(observed: Observed, weights: Weights) -> dict[ConditionType, Saying]:
    """What the autoscaler of the revision with most of the traffic says; empty without an autoscaler."""
    main = max(weights, key=lambda name: (weights[name], name), default="")
    spec = observed.spec
    said = (zero.activity(observed, spec) or activity(observed, spec, main)) if spec else None
    if said is None:
        return {}
    return {ConditionType.SCALING_ACTIVE: Saying(holds=said.holds, reason=said.reason, message=said.message)}


def _repairing(repaired: Sequence[Object]) -> str:
    names = [f"{body['kind']} {body['metadata']['name']}" for body in repaired]
    return f"restored after a change from outside: {', '.join(names)}"


def _condition(observed: Observed, kind: ConditionType, saying: Saying) -> StatusCondition:
    before = observed.status.condition(kind)
    status = "Unknown" if saying.holds is None else str(saying.holds)
    since = before.last_transition_time if before and before.status == status else ""
    return StatusCondition(
        type=kind,
        status=status,
        reason=saying.reason,
        message=saying.message,
        observed_generation=observed.generation,
        last_transition_time=since or datetime.fromtimestamp(observed.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
