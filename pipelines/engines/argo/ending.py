"""How a Workflow ended, as the record that engine 1 passes to its last stage: so both engines share one `conclude`.

Each stage's pod leaves its own records (`stage_run`, `failure`). For a pod that could not (deleted, out of memory,
never scheduled, image missing), they are made from what Argo says about its node.
"""

import json
import signal
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from shiplift.pipelines.engines.argo.layout import dashed
from shiplift.pipelines.engines.argo.workflows import STOPPED_BECAUSE, SUCCEEDED, ended, nodes, outputs
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
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, StageRun
from shiplift.runtime.records.verdict import Outcome, Verdict
from shiplift.runtime.serving.kubernetes.connection import Object

Node = Mapping[str, Any]
_KILLED = 128 + signal.SIGKILL  # the exit code of a pod that went over its memory


def ending_of(workflow: Object, pipeline: Pipeline) -> Ending:
    """The ending of a pipeline's Workflow, as far as it has run."""
    stages, verdict, failure = [], None, None
    for stage, node in attempts(workflow, pipeline):
        stages.append(stage_run(stage, node))
        verdict = _verdict(stage, node) or verdict
        failure = failure or _failure(stage, node)
    notes = workflow["metadata"].get("annotations", {})
    if reason := notes.get(STOPPED_BECAUSE, ""):
        failure = Failure.of(ClusterRefused(reason, do="Fix that, then `shiplift rerun` it."))
    elif workflow.get("spec", {}).get("shutdown") and not _decided(verdict):
        failure = Failure.of(Cancelled("the release was cancelled", do="`shiplift release` resumes it."))
    if failure is None and not _decided(verdict) and not _finished(stages, pipeline):
        failure = _of_workflow(workflow)
    return Ending(
        release=workflow["metadata"]["name"],
        started_at=_seconds(workflow["metadata"]["creationTimestamp"]),
        stages=tuple(stages),
        givers=pipeline.givers,
        verdict=verdict,
        failure=None if _decided(verdict) else failure,
    )


def attempts(workflow: Object, pipeline: Pipeline) -> Iterator[tuple[Stage, Node]]:
    """The last attempt at each stage that has started, per item for a stage that runs once per item."""
    pods = [node for node in nodes(workflow.get("status", {})) if node.get("type") == "Pod"]
    pods.sort(key=lambda node: str(node.get("startedAt") or ""))
    for stage in pipeline.flat():
        latest = {_target(node): node for node in pods if node.get("templateName") == dashed(stage.name)}
        yield from ((stage, node) for node in latest.values())


def under_way(node: Node) -> bool:
    """Whether a node has not ended."""
    return not ended(node.get("phase"))


def stage_run(stage: Stage, node: Node) -> StageRun:
    """How a stage went, according to its pod or else to Argo; a stage that has not ended counts as cancelled."""
    if text := outputs(node).get(StageRun.parameter()):
        return StageRun.model_validate_json(text)
    started, finished = node.get("startedAt"), node.get("finishedAt")
    return StageRun(
        name=stage.name,
        target=_target(node),
        seconds=_seconds(finished) - _seconds(started) if started and finished else 0.0,
        outcome="cancelled" if under_way(node) else "ok" if node.get("phase") == SUCCEEDED else "failed",
        message=str(node.get("message", "")),
    )


def _verdict(stage: Stage, node: Node) -> Verdict | None:
    if not issubclass(stage.gives, Verdict) and stage.gives.objection is Record.objection:
        return None  # such a record never objects
    text = outputs(node).get(stage.gives.parameter())
    record: Record | None = stage.gives.model_validate_json(text) if text else None
    if isinstance(record, Verdict):
        return record
    return record.objection() if record else None


def _failure(stage: Stage, node: Node) -> Failure | None:
    if under_way(node) or node.get("phase") == SUCCEEDED:
        return None
    parameters = outputs(node)
    if text := parameters.get(Failure.parameter()):
        return Failure.model_validate_json(text)
    if parameters.get(stage.gives.parameter()):  # an objection
        return None
    return Failure.of(_error_of_pod(stage, node))


def _error_of_pod(stage: Stage, node: Node) -> ShipliftError:
    """The error of a pod that left no records, from what Argo says about it."""
    message = " ".join(str(node.get("message") or "its pod gave no reason").split())
    what, code = f"stage {stage.name}: {message}", str((node.get("outputs") or {}).get("exitCode") or "")
    if "OOMKilled" in message or code == str(_KILLED):
        do = f"Raise `stages.{stage.name}.memory` in the values."
        return SandboxLimit(f"{what}: it needs more memory", do=do)
    if "deadline" in message.lower():
        return DeadlineExceeded(what, do="See the pod's log.")
    kind = by_exit_code(int(code)) if code.isdecimal() else ShipliftError
    return kind(what, do="See the pod's log.")


def _of_workflow(workflow: Object) -> Failure:
    message = " ".join(str(workflow.get("status", {}).get("message") or "it did not finish").split())
    do = "See `argo get`, then `shiplift rerun` it."
    return Failure.of(ShipliftError(f"the Workflow ended: {message}", do=do))


def _finished(stages: list[StageRun], pipeline: Pipeline) -> bool:
    last = pipeline.stages[-1]
    name = last.stages[-1].name if isinstance(last, Each) else last.name
    return any(run.name == name and run.outcome == "ok" for run in stages)


def _decided(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.outcome is not Outcome.PASS


def _target(node: Node) -> str:
    for parameter in (node.get("inputs") or {}).get("parameters") or []:
        if parameter["name"] == "target":
            return str(json.loads(parameter.get("value") or "{}").get("name", ""))
    return ""


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()
