"""What a `TritonService` says: its conditions, their reasons, and the Kubernetes Events on it."""

import inspect
import re
from collections.abc import Mapping

from docs.generator.markdown import table
from docs.generator.sources import called, calls, keyword, text
from shiplift.runtime.serving.operator.resources import ConditionType, Reason

_REASONS: Mapping[Reason, str] = {
    Reason.SERVING: "The wanted revision serves, which was verified.",
    Reason.STARTING: "Pods of the revision start.",
    Reason.CANARY: "The new revision gets its share of the traffic, and that share is verified.",
    Reason.HOLDING: "The new revision has its share and is watched.",
    Reason.MOVING: "Traffic moves: to the new revision, or back.",
    Reason.DRAINING: "All traffic has moved; the old revision's pods finish their requests.",
    Reason.REPAIRING: "Objects that were edited or deleted by hand are written again.",
    Reason.IDLE: "There is nothing to do.",
    Reason.NO_PODS: "No pod is ready.",
    Reason.NO_REVISION: "`spec.revision` names no `TritonRevision`. Create it, or name another.",
    Reason.INVALID_REVISION: "The `TritonRevision` can't be used; the message says why. Name another.",
    Reason.INVALID_SPEC: "The service's spec is not valid; the message names the field.",
    Reason.START_FAILED: "Pods of the revision can't start; the message says what to do.",
    Reason.WRONG_ANSWERS: "A pod answered its golden request wrongly, or not at all.",
    Reason.BAKE_ALARM: "an alarm ended the bake of the revision; the one before it has the traffic",
    Reason.ROUTE_FAILED: "A route or the gateway does not answer. Check their status.",
    Reason.CANARY_FAILED: "The new revision failed requests from its share; the old one has all traffic again.",
    Reason.TRAFFIC_NOT_MOVED: "The data plane does not give the revision its share. Check the routes and the gateway.",
    Reason.ANSWERS_CHECKED: "The last golden requests were answered correctly.",
    Reason.NOT_CHECKED: "No golden request was answered yet, or the heartbeat is off.",
    Reason.SCALING: "The autoscaler sees its signal; or the service is scaled to zero when it is idle.",
    Reason.SCALING_ON_CPU: "An HPA scales on CPU, because KEDA, Prometheus or the capacity is missing.",
    Reason.AT_MAXIMUM: "The autoscaler wants more pods than `maxReplicas`.",
    Reason.NO_METRICS: "The metrics that the autoscaler needs can't be read.",
    Reason.NO_AUTOSCALER: "The autoscaler has not reported yet. Check that KEDA, or the HPA's controller, runs.",
    Reason.SCALED_TO_ZERO: "No pod runs. The next request is held until one is ready.",
    Reason.WAKING: "A request came: pods start, and requests are held.",
    Reason.NO_ACTIVATOR: "The activator does not answer, so the service is not scaled to zero.",
}
_EVENT = "KubernetesEvent"
_EVENTS = {
    "DeletedByHand": "Someone deleted the service. It is declared again; the message says how to retire its model.",
    "Retiring": "Someone deleted the service with the annotation `shiplift.dev/retire`: its model is retired.",
    "Moved": "The service moved to another server: its own, or a shared one.",
    "Isolated": "The model went wrong on a shared server, and got its own pods.",
    "PodReplaced": "A pod answered wrongly, was frozen, or is about to be evicted, and was replaced.",
    "StatusRefused": "The API server refused the status that the operator wrote.",
}


def conditions() -> str:
    """A table of the types of conditions."""
    meanings = dict(re.findall(r"`([A-Z_]+)`: ([^.;`]+)", inspect.getdoc(ConditionType) or ""))
    rows = [[f"`{each.value}`", meanings[each.name].strip().replace("\n", " ") + "."] for each in ConditionType]
    return table(["Condition", "True means"], rows)


def reasons() -> str:
    """A table of the reasons; a change of a condition is an Event with its reason."""
    return table(["Reason", "Meaning"], [[f"`{each.value}`", _REASONS[each]] for each in Reason])


def other_events() -> str:
    """A table of the Events that are no condition's reason."""
    return table(["Event", "Meaning"], [[f"`{name}`", _EVENTS[name]] for name in sorted(event_names())])


def event_names() -> set[str]:
    """The reasons that the operator's code writes out."""
    return {text(keyword(call, "reason")) for _, call in calls(_EVENT) if called(call) == _EVENT} - {""}
