"""Why a pod does not run, and what could still change that: one table of reasons for everyone who waits for pods.

A pod says why in many places: its phase, the scheduler's condition, what its containers wait for, how they ended last.
Who waits decides by the prospect how long to; the sentence and the advice are for the person who waits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from shiplift.runtime.serving.kubernetes import guard
from shiplift.runtime.serving.kubernetes.objects.names import LABEL

Object = Mapping[str, Any]
_MANY_RESTARTS = 2  # what has failed three times in a row will fail again
_MOST = 500  # characters of what a container said last


class Prospect(IntEnum):
    """What could still make a pod run, the worst first."""

    NOTHING = 0  # no waiting helps
    RETRY = 1  # the cluster's own next attempts: a registry is back, a quota is free again
    NODE = 2  # a node that fits, if one is added or labelled
    ROOM = 3  # room on a node that fits, when other pods end
    RESTART = 4  # the container is started again, or another pod is made in this one's place
    TIME = 5  # it is on its way


@dataclass(frozen=True, kw_only=True)
class Reason:
    """What a word of Kubernetes means (completed with the container, its image and how it ended), and what to do."""

    prospect: Prospect
    means: str
    do: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a pod does not run: `reason` is Kubernetes' word, `message` what it adds, `means` the word in English."""

    reason: str
    message: str
    means: str
    prospect: Prospect
    do: str

    def __str__(self) -> str:
        """For those who know the words: `ErrImagePull: no such host`."""
        return f"{self.reason}: {self.message or self.means}"

    @property
    def sentence(self) -> str:
        """For everyone: `image x of container main can't be pulled (ErrImagePull): no such host`."""
        word = "" if self.reason in _SAYS_NOTHING else f" ({self.reason})"
        return f"{self.means}{word}{': ' if self.message else ''}{self.message}"


_NOTHING, _RETRY, _NODE, _ROOM, _RESTART, _TIME = Prospect
_DESCRIBE = "See `kubectl describe pod`."
_PULL = "Correct the image's name, or give the nodes access to its registry."
_MAKE = "Correct what its configuration names: a Secret, a ConfigMap, a volume, a command."
_LOG = "See the container's log."
_AGAIN = "If it happens again, see `kubectl describe node`."
_IMAGE, _CONTAINER = "image {image} of container {container}", "container {container}"

# What containers wait for, how they ended, what became of the whole pod, scheduling, making it at all.
_TABLE: tuple[tuple[str, Prospect, str, str], ...] = (
    ("InvalidImageName", _NOTHING, f"{_IMAGE} has no valid name", _PULL),
    ("ErrImageNeverPull", _NOTHING, f"{_IMAGE} is not on the node, and must not be pulled", "Load it into the node."),
    ("SignatureValidationFailed", _NOTHING, f"{_IMAGE} is not signed as the node demands", "Sign the image."),
    ("ErrImagePull", _RETRY, f"{_IMAGE} can't be pulled", _PULL),
    ("ImagePullBackOff", _RETRY, f"{_IMAGE} can't be pulled", _PULL),
    ("RegistryUnavailable", _RETRY, f"{_IMAGE} can't be pulled, its registry does not answer", _PULL),
    ("ImageInspectError", _RETRY, f"{_IMAGE} can't be read on its node", _AGAIN),
    ("CreateContainerConfigError", _NOTHING, f"{_CONTAINER} can't be configured", _MAKE),
    ("CreateContainerError", _NOTHING, f"{_CONTAINER} can't be made", _MAKE),
    ("RunContainerError", _RETRY, f"{_CONTAINER} can't be started", _MAKE),
    ("PreCreateHookError", _RETRY, f"{_CONTAINER} can't be made", _MAKE),
    ("PreStartHookError", _RETRY, f"{_CONTAINER} can't be started", _MAKE),
    ("PostStartHookError", _RETRY, f"the start hook of {_CONTAINER} failed", _LOG),
    ("CrashLoopBackOff", _NOTHING, f"{_CONTAINER} ends again and again", _LOG),
    ("ContainerCreating", _TIME, f"{_CONTAINER} waits for its image, volumes and network", _DESCRIBE),
    ("PodInitializing", _TIME, f"{_CONTAINER} waits for the init containers", _DESCRIBE),
    ("NotReady", _TIME, f"{_CONTAINER} runs, and is not ready", _LOG),
    ("Error", _RESTART, "{container} ended with exit code {code}", _LOG),
    ("OOMKilled", _RESTART, "{container} was killed at its memory limit, {memory}", "Raise its memory limit."),
    ("ContainerCannotRun", _RESTART, f"{_CONTAINER} can't be started", _MAKE),
    ("StartError", _RESTART, f"{_CONTAINER} can't be started", _MAKE),
    ("Evicted", _RESTART, "the pod's node ran out of something and evicted it", _AGAIN),
    ("Preempting", _RESTART, "a pod of higher priority took its place", "Wait for room, or raise its priority."),
    ("NodeLost", _RESTART, "the pod's node does not answer", _AGAIN),
    ("NodeShutdown", _RESTART, "the pod's node was shut down", _AGAIN),
    ("Terminated", _RESTART, "the pod's node was shut down", _AGAIN),
    ("UnexpectedAdmissionError", _RESTART, "the pod's node could not give it what it asks for", _AGAIN),
    ("NodeAffinity", _RESTART, "the pod's node is not one that it asks for", "Label a node as it asks."),
    ("DeadlineExceeded", _RESTART, "the pod took longer than its deadline", "Raise the deadline."),
    ("Unschedulable", _NODE, "no node takes the pod", "Label or add a node as it asks, or let it ask for another."),
    ("SchedulerError", _RETRY, "the scheduler could not place the pod", _DESCRIBE),
    ("SchedulingGated", _TIME, "the pod is held back by its scheduling gates", "See who sets them: a queue, a quota."),
    ("FailedCreate", _RETRY, "no pod may be made", "See `kubectl describe replicaset`."),
)  # fmt: skip
REASONS = {name: Reason(prospect=prospect, means=means, do=do) for name, prospect, means, do in _TABLE}
_SAYS_NOTHING = ("Error", "NotReady")  # more than the sentence does
# Reasons that mean several things: which one, their message says; the first phrase that fits counts.
_PHRASES: tuple[tuple[str, str, Prospect, str], ...] = (
    ("Unschedulable", "Insufficient ", _ROOM, "Wait for room, add a node, or let it ask for less."),
    ("Unschedulable", "persistentvolumeclaim", _NODE, "Make the volume that it claims."),
    ("Unschedulable", "untolerated taint", _NODE, "Give the target the toleration, or remove the taint."),
    ("CreateContainerConfigError", "secret ", _NOTHING, "Make that Secret in the pod's namespace."),
    ("CreateContainerConfigError", "configmap ", _NOTHING, "Make that ConfigMap in the pod's namespace."),
    ("FailedCreate", "exceeded quota", _RETRY, "Raise the quota, or end what uses it up."),
    ("FailedCreate", "violates PodSecurity", _NOTHING, "Lower the namespace's Pod Security level."),
    ("FailedCreate", "service account", _RETRY, "Run `shiplift install`, which makes it."),
)  # fmt: skip


_NO_FACTS = {"container": "?", "image": "?", "code": "?", "memory": "?"}


def of_pod(pod: Object) -> Diagnosis | None:
    """Why a pod does not run, of several reasons the worst; None: it runs, it has succeeded, or it is being ended."""
    status = pod.get("status") or {}
    if (pod.get("metadata") or {}).get("deletionTimestamp") or status.get("phase") == "Succeeded":
        return None
    reasons = _reasons(pod, status)
    if status.get("phase") == "Failed":  # it stays so; whoever wants it makes another
        reasons = (replace(reason, prospect=Prospect.RESTART) for reason in reasons)
    return min(reasons, key=lambda reason: reason.prospect, default=None)


def is_ready(pod: Object) -> bool:
    """Whether a pod takes requests, and is not about to end."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def of_deployment(body: Object) -> Diagnosis | None:
    """Why a Deployment's pods are not even made; None: they are."""
    for condition in (body.get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return of_refusal(condition.get("message", ""))
    return None


def of_refusal(message: str) -> Diagnosis:
    """Why a pod was not made: the cluster said so to whoever wanted to make it."""
    return _diagnosis("FailedCreate", message)


def _reasons(pod: Object, status: Object) -> Iterator[Diagnosis]:
    if status.get("reason"):
        yield _diagnosis(status["reason"], status.get("message"))
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("reason") in REASONS:
            yield _diagnosis(condition["reason"], f"{_asked(pod)}{condition.get('message') or ''}")
    spec = pod.get("spec") or {}
    specs = {container["name"]: container for container in _both(spec, "initContainers", "containers")}
    for container in _both(status, "initContainerStatuses", "containerStatuses"):
        if diagnosis := _of_container(container, specs.get(container["name"], {})):
            yield diagnosis


def _both(of: Object, *fields: str) -> Iterator[Object]:
    for field in fields:
        yield from of.get(field) or []


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
        final = status.get("restartCount", 0) >= _MANY_RESTARTS or ended["exitCode"] == guard.MISMATCH
        message = " ".join((ended.get("message") or "").split())[-_MOST:]
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


def _entry(reason: str) -> Reason:
    """What the table says; a word that it lacks is taken for one of a pod that is on its way."""
    if reason.startswith("OutOf"):  # OutOfcpu, OutOfnvidia.com/gpu: by then another pod had taken it
        return REASONS["UnexpectedAdmissionError"]
    return REASONS.get(reason) or Reason(prospect=Prospect.TIME, means="the pod does not run", do=_DESCRIBE)


def _asked(pod: Object) -> str:
    """What a pod asks of a node: a target's labels, which a person may have mistyped or taken away."""
    stage = ((pod.get("metadata") or {}).get("labels") or {}).get(f"{LABEL}stage", "the pod")
    labels = (pod.get("spec") or {}).get("nodeSelector") or {}
    wanted = ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return f"{stage} asks for a node with {wanted}: " if wanted else ""
