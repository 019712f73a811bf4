"""How a Workflow ended, as the record that the local engine makes too, so that both engines share the stage `conclude`.

A pod leaves records about its stages (`stage_runs`, `failure`). If it could not (it was deleted, ran out of memory, was
never scheduled, or its image is missing), they are made from what Argo says about its node.
"""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from shiplift.pipelines import pods
from shiplift.pipelines.engines.argo import shield
from shiplift.pipelines.engines.argo.layout import dashed
from shiplift.pipelines.engines.argo.workflows import (
    CONCLUDED,
    LATE,
    STOPPED_BECAUSE,
    SUCCEEDED,
    ended,
    nodes,
    outputs,
)
from shiplift.pipelines.graph import FanOut, Pipeline, Stage
from shiplift.pipelines.pods import Pod
from shiplift.runtime.base.errors import (
    Aborted,
    Cancelled,
    ClusterRefused,
    DeadlineExceeded,
    SandboxLimit,
    ShipliftError,
    by_exit_code,
)
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.release import Ending, ReleaseReport, StageRun, StageRuns
from shiplift.runtime.records.verdict import Judged, Outcome, Verdict
from shiplift.runtime.serving.kubernetes.connection import Object

Node = Mapping[str, Any]
_KILLED = 128 + signal.SIGKILL  # the exit code of a pod that exceeded its memory limit


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A stage that a pod has at least started: how it went, and the pod's node."""

    stage: Stage
    node: Node
    run: StageRun


def ending_of(workflow: Object, pipeline: Pipeline) -> Ending:
    """How a pipeline's Workflow ended, from the stages that it reached."""
    stages, verdict, failure = [], None, None
    for reached in stages_of(workflow, pipeline):
        stages.append(reached.run)
        verdict = _verdict(reached) or verdict
        failure = failure or _failure(reached)
    if not _decided(verdict) and not _finished(stages, pipeline):
        failure = _of_stopped(workflow) or failure or _of_workflow(workflow)
    return Ending(
        release=workflow["metadata"]["name"],
        started_at=_seconds(workflow["metadata"]["creationTimestamp"]),
        stages=tuple(stages),
        givers=pipeline.givers,
        verdict=verdict,
        failure=None if _decided(verdict) else failure,
    )


def concluding_patch(workflow: Object, report: Record) -> Object:
    """What the last stage writes on its Workflow: that the release is concluded, and why it was not promoted.

    An ended Workflow gets the message of its first node from Argo, and a DAG's node has no message. So the reason goes
    onto that node, where `kubectl get workflows` shows it, or onto the Workflow if that has already ended. Compressed
    nodes are left alone.
    """
    patch: Object = {"metadata": {"labels": {CONCLUDED: "true"}}}
    status, name = workflow.get("status", {}), workflow["metadata"]["name"]
    message = report.message if isinstance(report, ReleaseReport) else ""
    if message and ended(status.get("phase")):
        patch["status"] = {"message": message}
    elif message and name in (status.get("nodes") or {}):
        patch["status"] = {"nodes": {name: {"message": message}}}
    return patch


def stages_of(
    workflow: Object, pipeline: Pipeline, told: Callable[[Node], StageRuns | None] = lambda _: None
) -> list[Reached]:
    """Every stage that has started, in the pipeline's order, as the last attempt at its pod left it.

    `told` says how far a running node's pod has come, if that is known. Otherwise its first stage counts as running.
    """
    together = {dashed(pod.name): pod for pod in pods.flat(pods.of(pipeline))}
    alone = {dashed(stage.name): Pod(stage.name, (stage,)) for stage in pipeline.flat()}
    latest: dict[tuple[str, str], list[Reached]] = {}
    for node in _pods(workflow):
        name = str(node.get("templateName"))
        if pod := together.get(name) or alone.get(name):
            report = _report(node, told, shield.told(workflow, pod.stages))
            latest[name, _target(node)] = list(_reached(node, pod, report))
    reached = [each for stages in latest.values() for each in stages]
    return sorted(reached, key=lambda each: pipeline.order.index(each.stage.name))


def _pods(workflow: Object) -> list[Node]:
    """The nodes of pods, in the order in which they started."""
    nodes_ = [node for node in nodes(workflow.get("status", {})) if node.get("type") == "Pod"]
    return sorted(nodes_, key=lambda node: str(node.get("startedAt") or ""))


def _report(node: Node, told: Callable[[Node], StageRuns | None], shielded: StageRuns) -> StageRuns:
    """What a pod says about its stages: in its outputs, through `told` while it runs, or on its Workflow.

    The report that covers the most stages counts.
    """
    text = outputs(node).get(StageRuns.parameter())
    report = StageRuns.model_validate_json(text) if text else (told(node) if under_way(node) else None) or StageRuns()
    return shielded if len(shielded.runs) > len(report.runs) else report


def _reached(node: Node, pod: Pod, report: StageRuns) -> Iterator[Reached]:
    """The stages that a pod has reached: those that it reported, and the current one, as Argo sees it."""
    by_name = {stage.name: stage for stage in pod.all_stages}
    runs = [run for run in report.runs if run.name in by_name]
    for run in runs:
        target = _target(node) or run.target
        yield Reached(stage=by_name[run.name], node=node, run=run.model_copy(update={"target": target}))
    # A stage before one that has run was not there when the Workflow began: an upgrade added it.
    reported = {run.name for run in runs}
    left = list(takewhile(lambda stage: stage.name not in reported, reversed(pod.stages)))
    stage = by_name.get(report.under_way) or (left[-1] if left else None)
    if stage is None or (runs and (runs[-1].outcome != "ok" or node.get("phase") == SUCCEEDED)):
        return
    yield Reached(stage=stage, node=node, run=_run_of(stage, node, _target(node) or report.target))


def under_way(node: Node) -> bool:
    """Whether a node has not ended."""
    return not ended(node.get("phase"))


def _run_of(stage: Stage, node: Node, target: str) -> StageRun:
    """How a stage went according to Argo. A stage that has not ended counts as cancelled."""
    started, finished = node.get("startedAt"), node.get("finishedAt")
    return StageRun(
        name=stage.name,
        target=target,
        seconds=_seconds(finished) - _seconds(started) if started and finished else 0.0,
        outcome="cancelled" if under_way(node) else "ok" if node.get("phase") == SUCCEEDED else "failed",
        message=str(node.get("message", "")),
    )


def _verdict(reached: Reached) -> Verdict | None:
    stage = reached.stage
    if not issubclass(stage.gives, Judged):
        return None
    try:
        record = stage.gives.model_validate_json(outputs(reached.node).get(stage.gives.parameter()) or "")
    except ValidationError:  # the record is missing, or another version of Shiplift wrote it before an upgrade
        return None
    if isinstance(record, Verdict):
        return record
    return record.objection()


def _failure(reached: Reached) -> Failure | None:
    stage, node = reached.stage, reached.node
    if under_way(node) or node.get("phase") == SUCCEEDED or reached.run.outcome == "ok":
        return None
    if LATE in str(node.get("message") or ""):  # ended by Kubernetes: its own record would call that a cancel
        return Failure.of(_error_of_pod(stage, node))
    parameters = outputs(node)
    if text := parameters.get(Failure.parameter()):
        return Failure.model_validate_json(text)
    if parameters.get(stage.gives.parameter()):  # an objection
        return None
    return Failure.of(_error_of_pod(stage, node))


def _error_of_pod(stage: Stage, node: Node) -> ShipliftError:
    """The error of a pod that left no records, made from what Argo says about its node."""
    message = " ".join(str(node.get("message") or "its pod gave no reason").split())
    what, code = f"stage {stage.name}: {message}", str((node.get("outputs") or {}).get("exitCode") or "")
    if "OOMKilled" in message or code == str(_KILLED):
        do = f"Raise `stages.{stage.name}.memory` in the values."
        return SandboxLimit(f"{what}: the stage needs more memory", do=do)
    if "deadline" in message.lower():
        return DeadlineExceeded(what, do="See the pod's log.")
    kind = by_exit_code(int(code)) if code.isdecimal() else ShipliftError
    return kind(what, do="See the pod's log.")


def _of_stopped(workflow: Object) -> Failure | None:
    """Why a person or Shiplift ended a Workflow; None if it ended by itself."""
    if reason := workflow["metadata"].get("annotations", {}).get(STOPPED_BECAUSE, ""):
        return Failure.of(ClusterRefused(reason, do="Fix that, then `shiplift rerun` it."))
    if order := shield.ordered(workflow):
        return Failure.of(Aborted(order.sentence, do="`shiplift rerun` releases the version again."))
    if workflow.get("spec", {}).get("shutdown"):
        return Failure.of(Cancelled("the release was cancelled", do="`shiplift release` resumes it."))
    return None


def _of_workflow(workflow: Object) -> Failure:
    message = " ".join(str(workflow.get("status", {}).get("message") or "it did not finish").split())
    do = "See `argo get`, then `shiplift rerun` it."
    return Failure.of(ShipliftError(f"the Workflow ended: {message}", do=do))


def _finished(stages: list[StageRun], pipeline: Pipeline) -> bool:
    last = pipeline.stages[-1]
    name = last.stages[-1].name if isinstance(last, FanOut) else last.name
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
