"""Finds pods that can't start, why, and since when. Argo would wait for such a pod until a deadline hours away.

Pods that are still starting are left alone. If a node fits but is full, waiting is worth much longer than if no node
fits: other releases end, and nodes are added.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from shiplift.pipelines.engines.argo.workflows import Run, seconds
from shiplift.pipelines.triggers.settings import Reconciling
from shiplift.runtime.serving.kubernetes import diagnosis
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.diagnosis import Diagnosis, Prospect

OF_WORKFLOW = "workflows.argoproj.io/workflow"


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A pod of a Workflow that can't start; `since` is in seconds since the epoch."""

    workflow: str
    why: Diagnosis
    since: float

    def __str__(self) -> str:
        return str(self.why)

    def limit_s(self, settings: Reconciling) -> float:
        """How long it may stay stuck, in seconds: longest if a node fits but is full now."""
        limits = {Prospect.NODE: settings.unschedulable_s, Prospect.ROOM: settings.full_s}
        return limits.get(self.why.prospect, settings.stuck_s)


def of_pod(pod: Object) -> Stuck | None:
    """Why a pod can't start; None if it has started, will start, or is ending."""
    meta, status = pod["metadata"], pod.get("status", {})
    workflow = meta.get("labels", {}).get(OF_WORKFLOW, "")
    why = diagnosis.of_pod(pod)
    if not workflow or why is None or why.prospect >= Prospect.RESTART or status.get("phase", "Pending") != "Pending":
        return None
    scheduled: Object = next((c for c in status.get("conditions", []) if c.get("type") == "PodScheduled"), {})
    since = seconds(scheduled.get("lastTransitionTime") or meta.get("creationTimestamp"))
    return Stuck(workflow=workflow, why=why, since=since)


def of_run(run: Run) -> Stuck | None:
    """Why the cluster refused to create a Workflow's pod; None if it did not refuse."""
    if run.refused_pod is None:
        return None
    message, since = run.refused_pod
    return Stuck(workflow=run.name, why=diagnosis.of_refusal(message), since=since)


def overdue(stuck: Iterable[Stuck], *, now: float, settings: Reconciling) -> dict[str, Stuck]:
    """The pods over their limit: for each Workflow, the one that has been stuck longest."""
    longest: dict[str, Stuck] = {}
    for pod in sorted(stuck, key=lambda pod: pod.since, reverse=True):
        if now - pod.since > pod.limit_s(settings):
            longest[pod.workflow] = pod
    return longest
