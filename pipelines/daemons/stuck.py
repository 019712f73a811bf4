"""Which pods can't start, why, and since when. Argo waits for such a pod until a deadline hours away; nobody should.

Only what no waiting mends is looked for: an image that can't be had, a container that can't be made, no node that fits.
A node that fits and is full is waited for much longer: other releases end, and nodes are added.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shiplift.pipelines.engines.argo.workflows import Run, seconds
from shiplift.pipelines.triggers.settings import Reconciling
from shiplift.runtime.serving.kubernetes.api import Object
from shiplift.runtime.serving.kubernetes.objects import LABEL

HOPELESS = (
    "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError",
    "CreateContainerError",
)  # fmt: skip
UNSCHEDULABLE = "Unschedulable"
_FULL = "Insufficient "  # of the scheduler's words: a node that fits otherwise has too little of something left
OF_WORKFLOW = "workflows.argoproj.io/workflow"


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A pod of a Workflow that can't start; `since` is in seconds since the epoch."""

    workflow: str
    reason: str
    said: str
    since: float

    def __str__(self) -> str:
        return f"{self.reason}: {self.said}" if self.said else self.reason

    def given_s(self, patience: Reconciling) -> float:
        """How long it may be: longest where a node fits that has no room now."""
        if self.reason != UNSCHEDULABLE:
            return patience.stuck_s
        return patience.full_s if _FULL in self.said else patience.unschedulable_s


def of_pod(pod: Object) -> Stuck | None:
    """Why a pod can't start; None: it did, it will, or it is on its way out."""
    meta, status = pod["metadata"], pod.get("status", {})
    workflow = meta.get("labels", {}).get(OF_WORKFLOW, "")
    if not workflow or meta.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    scheduled: Object = next((c for c in status.get("conditions", []) if c.get("type") == "PodScheduled"), {})
    since = seconds(scheduled.get("lastTransitionTime") or meta.get("creationTimestamp"))
    if scheduled.get("reason") == UNSCHEDULABLE:
        said = f"{_asked(pod)}{scheduled.get('message', '')}"
        return Stuck(workflow=workflow, reason=UNSCHEDULABLE, said=said, since=since)
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in HOPELESS:
            said = waiting.get("message") or f"image {container.get('image', '')}"
            return Stuck(workflow=workflow, reason=waiting["reason"], said=said, since=since)
    return None


def _asked(pod: Object) -> str:
    """What a pod asks of a node: a target's labels, which a person may have mistyped or taken away."""
    stage = pod["metadata"].get("labels", {}).get(f"{LABEL}stage", "a pod")
    labels = pod.get("spec", {}).get("nodeSelector") or {}
    wanted = ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return f"{stage} asks for a node with {wanted}: " if wanted else ""


def of_run(run: Run) -> Stuck | None:
    """Why a Workflow's pod was not even made; None: all were."""
    if run.refused_pod is None:
        return None
    said, since = run.refused_pod
    return Stuck(workflow=run.name, reason="FailedCreate", said=said, since=since)


def longest(stuck: Iterable[Stuck], *, now: float, patience: Reconciling) -> dict[str, Stuck]:
    """By Workflow, the pod that has been stuck longest, and longer than it is given."""
    found: dict[str, Stuck] = {}
    for one in sorted(stuck, key=lambda one: one.since, reverse=True):
        if now - one.since > one.given_s(patience):
            found[one.workflow] = one
    return found
