"""A shielded stage runs to its end even if its Workflow is stopped or aborted: if necessary, in the exit handler.

When a Workflow is stopped, Argo marks the nodes of its pods as failed, kills the pods (at once, as seen with 4.0) and
starts the exit handler. A stage that moves traffic must not be left half done. So the stage writes on the Workflow that
it begins, and does not begin if the Workflow was already stopped. Beginning and stopping are both writes to the same
object, so whichever comes second sees the first.

If a stage has begun but not ended, the exit handler halts it, which orders that its traffic goes back, and runs it
again, which is safe: a step can be killed at any line and run again. Its arguments are stored in the ledger before it
begins: Argo may never report what a killed pod left.

A person's order to abort is written on the Workflow. So a pod that is started again gives its traffic back, too, and
the release ends with who aborted it.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from shiplift.pipelines import pods
from shiplift.pipelines.engines.argo.workflows import ABORTED, SHIELDED
from shiplift.pipelines.graph import Pipeline, Stage
from shiplift.runtime.base.errors import Cancelled, Temporary
from shiplift.runtime.records.promotion import Abort
from shiplift.runtime.records.release import StageRun, StageRuns
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A shielded stage that was running when its Workflow was stopped, and the stages that its pod ran before."""

    stage: Stage
    before: tuple[StageRun, ...]


def among(stages: Iterable[Stage]) -> bool:
    """Whether one of these stages is shielded."""
    return any(stage.at.shielded for stage in stages)


def forget(api: KubernetesClient, workflow: str) -> None:
    """Removes what an earlier attempt at the pod reported, before its stages run again."""
    tell(api, workflow, StageRuns())


def begin(api: KubernetesClient, workflow: str, runs: StageRuns) -> Abort | None:
    """Reports that a shielded stage begins (`runs.under_way`), after the stages that its pod has run.

    Returns a person's order to abort it, if there is one.

    Raises:
        Cancelled: the Workflow was stopped before.
        Temporary: the Workflow no longer exists.
    """
    body = tell(api, workflow, runs)
    if body is None:
        raise Temporary(f"Workflow {workflow} is gone", do="Rerun the release.")
    if _is_stopped(body):
        tell(api, workflow, runs.model_copy(update={"under_way": ""}))
        raise Cancelled("the release was cancelled", do="`shiplift release` resumes it.")
    return ordered(body)


def moves(workflow: Object) -> bool:
    """Whether a shielded stage has begun and not ended."""
    return bool(_read(workflow).under_way)


def ordered(workflow: Object) -> Abort | None:
    """A person's order to abort a release; None if there is none."""
    try:
        return Abort.model_validate_json((workflow["metadata"].get("annotations") or {}).get(ABORTED, ""))
    except ValidationError:
        return None


def abort(api: KubernetesClient, workflow: str, order: Abort) -> Abort:
    """Writes an order to abort on a Workflow, unless there is one; returns the one that counts."""
    body = api.get(WORKFLOW, workflow) or {"metadata": {}}
    if known := ordered(body):
        return known
    api.merge(WORKFLOW, workflow, {"metadata": {"annotations": {ABORTED: order.model_dump_json()}}})
    return order


def tell(api: KubernetesClient, workflow: str, runs: StageRuns) -> Object | None:
    """Writes on the Workflow how a pod's stages have gone so far; returns the Workflow, or None if it is gone."""
    return api.merge(WORKFLOW, workflow, {"metadata": {"annotations": {SHIELDED: runs.model_dump_json()}}})


def told(workflow: Object, stages: Iterable[Stage]) -> StageRuns:
    """What a pod with these stages reported on its Workflow, if that was stopped: Argo then has only older outputs."""
    return _read(workflow) if _is_stopped(workflow) and among(stages) else StageRuns()


def unfinished(workflow: Object, pipeline: Pipeline) -> Unfinished | None:
    """The shielded stage that a stopped Workflow left half done; None if there is none."""
    runs = _read(workflow)
    stages = (stage for pod in pods.flat(pods.of(pipeline)) for stage in pod.stages)
    stage = next((stage for stage in stages if stage.name == runs.under_way and stage.at.shielded), None)
    return Unfinished(stage=stage, before=runs.runs) if stage and _is_stopped(workflow) else None


def key(workflow: str, stage: Stage) -> str:
    """The ledger's key for the arguments of a Workflow's shielded stage."""
    return hashlib.sha256(f"what {stage.name} of {workflow} takes".encode()).hexdigest()


def _read(workflow: Object) -> StageRuns:
    try:
        return StageRuns.model_validate_json(workflow["metadata"].get("annotations", {}).get(SHIELDED, ""))
    except ValidationError:
        return StageRuns()


def _is_stopped(workflow: Object) -> bool:
    return bool(workflow.get("spec", {}).get("shutdown"))
