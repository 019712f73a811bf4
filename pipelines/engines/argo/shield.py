"""A shielded stage runs to its end even if its Workflow is stopped: in the exit handler, if need be.

When a Workflow is stopped, Argo calls the nodes of its pods failed, kills the pods (at once, as seen with 4.0) and
starts the exit handler. A stage that moves traffic must not be left half-way. So it says on the Workflow that it
begins, and does not begin if the Workflow was stopped before. Both are writes to the same object, so one of them sees
the other. The exit handler runs a stage that has begun and not ended once more: it can be killed at any line and run
again. What it takes is in the ledger from before it begins, since Argo may never report what a killed pod left.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from shiplift.pipelines import pods
from shiplift.pipelines.engines.argo.workflows import SHIELDED
from shiplift.pipelines.graph import Pipeline, Stage
from shiplift.runtime.base.errors import Cancelled, Temporary
from shiplift.runtime.records.release import StageRun, StageRuns
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A shielded stage that was under way when its Workflow was stopped, and its pod's stages until then."""

    stage: Stage
    before: tuple[StageRun, ...]


def among(stages: Iterable[Stage]) -> bool:
    """Whether one of these stages is shielded."""
    return any(stage.at.shielded for stage in stages)


def forget(api: KubernetesClient, workflow: str) -> None:
    """Removes what an earlier attempt at the pod said, before its stages run again."""
    tell(api, workflow, StageRuns())


def begin(api: KubernetesClient, workflow: str, runs: StageRuns) -> None:
    """Says that a shielded stage begins (`runs.under_way`), after the stages of its pod that have run.

    Raises:
        Cancelled: the Workflow was stopped before.
        Temporary: there is no such Workflow any more.
    """
    body = tell(api, workflow, runs)
    if body is None:
        raise Temporary(f"Workflow {workflow} is gone", do="Rerun the release.")
    if _is_stopped(body):
        tell(api, workflow, runs.model_copy(update={"under_way": ""}))
        raise Cancelled("the release was cancelled", do="`shiplift release` resumes it.")


def tell(api: KubernetesClient, workflow: str, runs: StageRuns) -> Object | None:
    """Writes on the Workflow how the stages of a pod went so far; returns the Workflow, None if it is gone."""
    return api.merge(WORKFLOW, workflow, {"metadata": {"annotations": {SHIELDED: runs.model_dump_json()}}})


def told(workflow: Object, stages: Iterable[Stage]) -> StageRuns:
    """What a pod with these stages said on its Workflow, if that was stopped: Argo then keeps older outputs."""
    return _read(workflow) if _is_stopped(workflow) and among(stages) else StageRuns()


def unfinished(workflow: Object, pipeline: Pipeline) -> Unfinished | None:
    """The shielded stage that a stopped Workflow left half-way; None if there is none."""
    runs = _read(workflow)
    stages = (stage for pod in pods.flat(pods.of(pipeline)) for stage in pod.stages)
    stage = next((stage for stage in stages if stage.name == runs.under_way and stage.at.shielded), None)
    return Unfinished(stage=stage, before=runs.runs) if stage and _is_stopped(workflow) else None


def key(workflow: str, stage: Stage) -> str:
    """The ledger's key for what a shielded stage of a Workflow takes."""
    return hashlib.sha256(f"what {stage.name} of {workflow} takes".encode()).hexdigest()


def _read(workflow: Object) -> StageRuns:
    try:
        return StageRuns.model_validate_json(workflow["metadata"].get("annotations", {}).get(SHIELDED, ""))
    except ValidationError:
        return StageRuns()


def _is_stopped(workflow: Object) -> bool:
    return bool(workflow.get("spec", {}).get("shutdown"))
