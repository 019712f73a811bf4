"""Why a pod does not run, and what could still change that: one table of reasons for all code that waits for pods.

Kubernetes gives the reasons in many places: the pod's phase, the scheduler's condition, what the containers wait for,
how they last ended. The prospect decides how long the code waits; the sentence and the advice are for people.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from shiplift.runtime.base.names import bracketed
from shiplift.runtime.guest.pod import guard
from shiplift.runtime.serving.kubernetes.objects.names import STAGES

Object = Mapping[str, Any]
_MAX_RESTARTS = 2  # a container that failed three times in a row will fail again
_RETRIES_S = 20.0  # how long to wait for the cluster's own retries
_MAX_MESSAGE = 500  # characters of a container's last output


class Prospect(IntEnum):
    """What could still make a pod run, the worst first."""

    NOTHING = 0  # waiting does not help
    RETRY = 1  # the cluster's own retries: a registry may come back, a quota may be freed
    NODE = 2  # a suitable node, if one is added or labelled
    ROOM = 3  # room on a suitable node, when other pods end
    RESTART = 4  # the container is restarted, or another pod replaces this one
    TIME = 5  # it is starting


@dataclass(frozen=True, kw_only=True)
class PodReason:
    """What a reason means and what to do; `means` is a template for the container, its image and how it ended."""

    prospect: Prospect
    means: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a pod does not run: `reason` and `message` are Kubernetes', `means` is the reason in plain English."""

    reason: str
    message: str
    means: str
    prospect: Prospect
    do: str

    def __str__(self) -> str:
        """In Kubernetes' terms: `ErrImagePull: no such host`."""
        return f"{self.reason}: {self.message or self.means}"

    @property
    def sentence(self) -> str:
        """In plain English: `image x of container main can't be pulled (ErrImagePull): no such host`."""
        reason = "" if self.reason in _UNINFORMATIVE else f" ({self.reason})"
        return f"{self.means}{reason}{': ' if self.message else ''}{self.message}"


_NOTHING, _RETRY, _NODE, _ROOM, _RESTART, _TIME = Prospect
_DESCRIBE = "See `kubectl describe pod`."
_PULL = "Fix the image's name, or give the nodes access to its registry."
_CONFIGURE = "Fix what its configuration names: a Secret, a ConfigMap, a volume, a command."
_LOG = "See the container's log."
_AGAIN = "If it happens again, see `kubectl describe node`."
_IMAGE, _CONTAINER = "image {image} of container {container}", "container {container}"

# By subject: what containers wait for, how they ended, what happened to the pod, its scheduling, its creation.
_TABLE: tuple[tuple[str, Prospect, str, str], ...] = (
    ("InvalidImageName", _NOTHING, f"{_IMAGE} has an invalid name", _PULL),
    ("ErrImageNeverPull", _NOTHING, f"{_IMAGE} is not on the node and must not be pulled", "Load it into the node."),
    ("SignatureValidationFailed", _NOTHING, f"{_IMAGE} lacks the signature the node requires", "Sign the image."),
    ("ErrImagePull", _RETRY, f"{_IMAGE} can't be pulled", _PULL),
    ("ImagePullBackOff", _RETRY, f"{_IMAGE} can't be pulled", _PULL),
    ("RegistryUnavailable", _RETRY, f"{_IMAGE} can't be pulled: its registry does not answer", _PULL),
    ("ImageInspectError", _RETRY, f"{_IMAGE} can't be read on its node", _AGAIN),
    ("CreateContainerConfigError", _NOTHING, f"{_CONTAINER} can't be configured", _CONFIGURE),
    ("CreateContainerError", _NOTHING, f"{_CONTAINER} can't be created", _CONFIGURE),
    ("RunContainerError", _RETRY, f"{_CONTAINER} can't be started", _CONFIGURE),
    ("PreCreateHookError", _RETRY, f"{_CONTAINER} can't be created", _CONFIGURE),
    ("PreStartHookError", _RETRY, f"{_CONTAINER} can't be started", _CONFIGURE),
    ("PostStartHookError", _RETRY, f"the start hook of {_CONTAINER} failed", _LOG),
    ("CrashLoopBackOff", _NOTHING, f"{_CONTAINER} keeps exiting", _LOG),
    ("ContainerCreating", _TIME, f"{_CONTAINER} is waiting for its image, volumes and network", _DESCRIBE),
    ("PodInitializing", _TIME, f"{_CONTAINER} is waiting for the init containers", _DESCRIBE),
    ("NotReady", _TIME, f"{_CONTAINER} is running but not ready", _LOG),
    ("Error", _RESTART, "{container} ended with exit code {code}", _LOG),
    ("OOMKilled", _RESTART, "{container} was killed at its memory limit, {memory}", "Raise its memory limit."),
    ("ContainerCannotRun", _RESTART, f"{_CONTAINER} can't be started", _CONFIGURE),
    ("StartError", _RESTART, f"{_CONTAINER} can't be started", _CONFIGURE),
    ("Evicted", _RESTART, "the pod's node ran out of a resource and evicted it", _AGAIN),
    ("Preempting", _RESTART, "a pod of higher priority took its place", "Wait for room, or raise its priority."),
    ("NodeLost", _RESTART, "the pod's node does not answer", _AGAIN),
    ("NodeShutdown", _RESTART, "the pod's node was shut down", _AGAIN),
    ("Terminated", _RESTART, "the pod's node was shut down", _AGAIN),
    ("UnexpectedAdmissionError", _RESTART, "the pod's node could not provide what it requests", _AGAIN),
    ("NodeAffinity", _RESTART, "the pod's node does not match its node selector", "Label a node to match."),
    ("DeadlineExceeded", _RESTART, "the pod exceeded its deadline", "Raise the deadline."),
    ("Unschedulable", _NODE, "no node can take the pod", "Label or add a node to match, or change what it asks for."),
    ("SchedulerError", _RETRY, "the scheduler could not place the pod", _DESCRIBE),
    ("SchedulingGated", _TIME, "the pod is held back by its scheduling gates", "See who sets them: a queue, a quota."),
    ("FailedCreate", _RETRY, "its pods can't be created", "See `kubectl describe replicaset`."),
)
REASONS = {name: PodReason(prospect=prospect, means=means, do=do) for name, prospect, means, do in _TABLE}
_UNINFORMATIVE = ("Error", "NotReady")  # they add nothing to the sentence
# Some reasons mean several things, which the message tells apart; the first phrase that occurs in it counts.
_PHRASES: tuple[tuple[str, str, Prospect, str], ...] = (
    ("Unschedulable", "Insufficient ", _ROOM, "Wait for room, add a node, or lower what it requests."),
    ("Unschedulable", "persistentvolumeclaim", _NODE, "Create the volume that it claims."),
    ("Unschedulable", "untolerated taint", _NODE, "Give the target the toleration, or remove the taint."),
    ("CreateContainerConfigError", "failed to sync ", _RETRY, _AGAIN),  # a busy node has not fetched it yet
    ("CreateContainerConfigError", "secret ", _NOTHING, "Create that Secret in the pod's namespace."),
    ("CreateContainerConfigError", "configmap ", _NOTHING, "Create that ConfigMap in the pod's namespace."),
    ("FailedCreate", "exceeded quota", _RETRY, "Raise the quota, or stop what uses it up."),
    ("FailedCreate", "violates PodSecurity", _NOTHING, "Lower the namespace's Pod Security level."),
    ("FailedCreate", "service account", _RETRY, "Run `shiplift install`, which creates it."),
)


_NO_FACTS = {"container": "?", "image": "?", "code": "?", "memory": "?"}


def of_pod(pod: Object) -> Diagnosis | None:
    """The worst reason why a pod does not run; None if it runs, has succeeded, or is being deleted."""
    status = pod.get("status") or {}
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return None
    reasons = _reasons(pod, status)
    if status.get("phase") == "Failed":  # this pod never runs again; its controller creates another
        reasons = (replace(reason, prospect=Prospect.RESTART) for reason in reasons)
    return min(reasons, key=lambda reason: reason.prospect, default=None)


def patience_s(why: Diagnosis | None, limit_s: float, *, restarts: bool = True) -> float:
    """How many seconds to wait for pods with this problem: at most `limit_s`, and 0 if waiting can't help.

    Without `restarts`, a container that ended is not started again, and no other pod replaces this one.
    """
    if why is None:
        return limit_s
    if why.prospect is Prospect.NOTHING or (why.prospect is Prospect.RESTART and not restarts):
        return 0.0
    return min(_RETRIES_S, limit_s) if why.prospect is Prospect.RETRY else limit_s


def is_ready(pod: Object) -> bool:
    """Whether a pod takes requests and is not being deleted."""
    return passes_probes(pod) and not _ends(pod)


def passes_probes(pod: Object) -> bool:
    """Whether a pod is ready; it may still be while it is being deleted."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def has_started(pod: Object) -> bool:
    """Whether all containers of a pod run and have passed their startup probe, and it is not being deleted."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return all(each.get("started") for each in containers) and bool(containers) and not _ends(pod)


def _ends(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def address_of(pod: Object) -> str:
    """A pod's address in the form for URLs; empty if it has none yet."""
    return bracketed(str((pod.get("status") or {}).get("podIP", "")))


def of_deployment(body: Object) -> Diagnosis | None:
    """Why a Deployment's pods can't be created; None if they can."""
    for condition in (body.get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return of_refusal(condition.get("message", ""))
    return None


def of_refusal(message: str) -> Diagnosis:
    """Why a pod could not be created, from the cluster's message to its creator."""
    return _diagnosis("FailedCreate", message)


def _reasons(pod: Object, status: Object) -> Iterator[Diagnosis]:
    if status.get("reason"):
        yield _diagnosis(status["reason"], status.get("message"))
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") in REASONS:
            yield _diagnosis(condition["reason"], f"{_requested_node(pod)}{condition.get('message') or ''}")
    spec = pod.get("spec") or {}
    specs = {container["name"]: container for container in _items(spec, "initContainers", "containers")}
    for container in _items(status, "initContainerStatuses", "containerStatuses"):
        if diagnosis := _of_container(container, specs.get(container["name"], {})):
            yield diagnosis


def _items(body: Object, *fields: str) -> Iterator[Object]:
    for field in fields:
        yield from body.get(field) or []


def _of_container(status: Object, spec: Object) -> Diagnosis | None:
    if status.get("ready"):
        return None
    state = status.get("state") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
    facts = {
        "container": status["name"],
        "image": status.get("image") or spec.get("image") or "?",
        "code": str(ended.get("exitCode")),
        "memory": ((spec.get("resources") or {}).get("limits") or {}).get("memory", "none of its own"),
    }
    if ended.get("exitCode"):
        reason = ended["reason"] if ended.get("reason") in REASONS else "Error"
        final = status.get("restartCount", 0) >= _MAX_RESTARTS or ended["exitCode"] == guard.MISMATCH
        message = " ".join((ended.get("message") or "").split())[-_MAX_MESSAGE:]
        diagnosis = _diagnosis(reason, message, facts)
        return replace(diagnosis, prospect=Prospect.NOTHING) if final else diagnosis
    if waiting := state.get("waiting"):
        return _diagnosis(waiting.get("reason") or "Waiting", waiting.get("message"), facts)
    return _diagnosis("NotReady", "", facts) if "running" in state else None


def _diagnosis(reason: str, message: str | None, facts: Mapping[str, str] = _NO_FACTS) -> Diagnosis:
    entry = _entry(reason)
    message = " ".join((message or "").split())
    special = next((row[2:] for row in _PHRASES if row[0] == reason and row[1] in message), None)
    prospect, do = special or (entry.prospect, entry.do)
    return Diagnosis(reason=reason, message=message, means=entry.means.format_map(facts), prospect=prospect, do=do)


def _entry(reason: str) -> PodReason:
    """The table's entry for a reason; a pod with an unknown reason is taken to be starting."""
    if reason.startswith("OutOf"):  # OutOfcpu, OutOfnvidia.com/gpu: another pod was faster
        return REASONS["UnexpectedAdmissionError"]
    return REASONS.get(reason) or PodReason(prospect=Prospect.TIME, means="the pod does not run", do=_DESCRIBE)


def _requested_node(pod: Object) -> str:
    """The node labels that a pod asks for, from its target. They may be mistyped, or removed from the nodes."""
    stages = ((pod.get("metadata") or {}).get("labels") or {}).get(STAGES, "the pod")
    selector = (pod.get("spec") or {}).get("nodeSelector") or {}
    labels = ", ".join(f"{name}={value}" for name, value in sorted(selector.items()))
    return f"{stages.partition('.')[0]} asks for a node with {labels}: " if labels else ""
