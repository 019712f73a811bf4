"""How a Workflow went, as the record that engine 1 gives its last stage: so one `conclude` tells both engines' stories.

Each stage's pod left its own account (`stage_run`, `failure`). A pod that could not (deleted, out of memory, never
scheduled, its image missing) is accounted for by what Argo says of its node.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from shiplift.pipelines.engines.argo.layout import dashed
from shiplift.pipelines.engines.argo.workflows import STOPPED_BECAUSE, nodes, outputs
from shiplift.pipelines.graph import Each, Pipeline, Stage
from shiplift.runtime.base.errors import (
    Cancelled,
    ClusterRefused,
    DeadlineExceeded,
    SandboxLimit,
    ShipliftError,
    by_exit_code,
)
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.release import Ending, Failure, StageRun
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.serving.kubernetes.api import Object

Node = Mapping[str, Any]
_ENDED = ("Succeeded", "Failed", "Error")


def ending_of(workflow: Object, pipeline: Pipeline) -> Ending:
    """The ending of a pipeline's Workflow, as far as it has come."""
    stages, verdict, failure = [], None, None
    for stage, node in attempts(workflow, pipeline):
        stages.append(stage_run(stage, node))
        verdict = _verdict(stage, node) or verdict
        failure = failure or _failure(stage, node)
    marks = workflow["metadata"].get("annotations", {})
    if stopped := marks.get(STOPPED_BECAUSE, ""):
        failure = _as_failure(ClusterRefused(stopped, do="Mend that, then `shiplift rerun` it."))
    elif workflow.get("spec", {}).get("shutdown") and not _decided(verdict):
        failure = _as_failure(Cancelled("the release was cancelled", do="`shiplift release` goes on where it was."))
    if failure is None and not _decided(verdict) and not _finished(stages, pipeline):
        failure = _of_workflow(workflow)
    return Ending(
        release=workflow["metadata"]["name"],
        started_at=_seconds(workflow["metadata"]["creationTimestamp"]),
        stages=tuple(stages),
        verdict=verdict,
        failure=None if _decided(verdict) else failure,
    )


def attempts(workflow: Object, pipeline: Pipeline) -> Iterator[tuple[Stage, Node]]:
    """The last attempt of each stage that has begun, per item where it runs for several."""
    pods = [node for node in nodes(workflow.get("status", {})) if node.get("type") == "Pod"]
    pods.sort(key=lambda node: str(node.get("startedAt") or ""))
    for stage in pipeline.flat():
        latest = {_target(node): node for node in pods if node.get("templateName") == dashed(stage.name)}
        yield from ((stage, node) for node in latest.values())


def under_way(node: Node) -> bool:
    """Whether a node has not ended."""
    return node.get("phase") not in _ENDED


def stage_run(stage: Stage, node: Node) -> StageRun:
    """How a stage went: as its pod told, else as Argo saw it; what has not ended yet is taken for cancelled."""
    if text := outputs(node).get(StageRun.parameter()):
        return StageRun.model_validate_json(text)
    phase, started, ended = node.get("phase"), node.get("startedAt"), node.get("finishedAt")
    seconds = _seconds(ended) - _seconds(started) if started and ended else 0.0
    outcome: Any = "cancelled" if under_way(node) else "ok" if phase == "Succeeded" else "failed"
    return StageRun(
        name=stage.name, target=_target(node), seconds=seconds, outcome=outcome, message=str(node.get("message", ""))
    )


def _verdict(stage: Stage, node: Node) -> Verdict | None:
    if not issubclass(stage.gives, Verdict) and stage.gives.objection is Record.objection:
        return None  # it never objects
    text = outputs(node).get(stage.gives.parameter())
    record: Record | None = stage.gives.model_validate_json(text) if text else None
    if isinstance(record, Verdict):
        return record
    return record.objection() if record else None


def _failure(stage: Stage, node: Node) -> Failure | None:
    given = outputs(node)
    if node.get("phase") not in ("Failed", "Error") or (
        given.get(stage.gives.parameter()) and not given.get("failure")
    ):
        return None
    if given.get(Failure.parameter()):
        return Failure.model_validate_json(given[Failure.parameter()])
    said = " ".join(str(node.get("message") or "its pod left no reason").split())
    what = f"stage {stage.name}: {said}"
    if "OOMKilled" in said or (node.get("outputs") or {}).get("exitCode") == "137":
        return _as_failure(
            SandboxLimit(f"{what}: it needed more memory", do=f"Raise `stages.{stage.name}.memory` in the values.")
        )
    if "deadline" in said.lower():
        return _as_failure(DeadlineExceeded(what, do="See the pod's log."))
    code = str((node.get("outputs") or {}).get("exitCode") or "")
    kind = by_exit_code(int(code)) if code.isdecimal() else ShipliftError
    return _as_failure(kind(what, do="See the pod's log."))


def _of_workflow(workflow: Object) -> Failure:
    said = " ".join(str(workflow.get("status", {}).get("message") or "it did not finish").split())
    return _as_failure(ShipliftError(f"the Workflow ended: {said}", do="See `argo get`, then `shiplift rerun` it."))


def _finished(stages: list[StageRun], pipeline: Pipeline) -> bool:
    last = pipeline.stages[-1]
    name = last.stages[-1].name if isinstance(last, Each) else last.name
    return any(run.name == name and run.outcome == "ok" for run in stages)


def _decided(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.outcome is not Outcome.PASS


def _as_failure(error: ShipliftError) -> Failure:
    return Failure(kind=type(error).__name__, exit_code=error.exit_code, what=error.what, do=error.do)


def _target(node: Node) -> str:
    for one in (node.get("inputs") or {}).get("parameters") or []:
        if one["name"] == "target":
            return str(json.loads(one.get("value") or "{}").get("name", ""))
    return ""


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
