"""Which pods can't start, why, and since when. Argo waits for such a pod until a deadline hours away; nobody should.

What is on its way is left alone. A node that fits and is full is waited for much longer than one that is missing: other
releases end, and nodes are added.
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

    def given_s(self, patience: Reconciling) -> float:
        """How long it may be: longest where a node fits that has no room now."""
        waits = {Prospect.NODE: patience.unschedulable_s, Prospect.ROOM: patience.full_s}
        return waits.get(self.why.prospect, patience.stuck_s)


def of_pod(pod: Object) -> Stuck | None:
    """Why a pod can't start; None: it did, it will, or it is on its way out."""
    meta, status = pod["metadata"], pod.get("status", {})
    workflow = meta.get("labels", {}).get(OF_WORKFLOW, "")
    why = diagnosis.of_pod(pod)
    if not workflow or why is None or why.prospect >= Prospect.RESTART or status.get("phase", "Pending") != "Pending":
        return None
    scheduled: Object = next((c for c in status.get("conditions", []) if c.get("type") == "PodScheduled"), {})
    since = seconds(scheduled.get("lastTransitionTime") or meta.get("creationTimestamp"))
    return Stuck(workflow=workflow, why=why, since=since)


def of_run(run: Run) -> Stuck | None:
    """Why a Workflow's pod was not even made; None: all were."""
    if run.refused_pod is None:
        return None
    said, since = run.refused_pod
    return Stuck(workflow=run.name, why=diagnosis.of_refusal(said), since=since)


def longest(stuck: Iterable[Stuck], *, now: float, patience: Reconciling) -> dict[str, Stuck]:
    """By Workflow, the pod that has been stuck longest, and longer than it is given."""
    found: dict[str, Stuck] = {}
    for one in sorted(stuck, key=lambda one: one.since, reverse=True):
        if now - one.since > one.given_s(patience):
            found[one.workflow] = one
    return found
