"""The events of a Workflow, in the form that the local engine has: stages that start, stages that finish."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Thread
from typing import Any

from shiplift.pipelines.engines.argo import workflows
from shiplift.pipelines.engines.argo.ending import Reached, stages_of, under_way
from shiplift.pipelines.engines.argo.following import lines
from shiplift.pipelines.graph import Pipeline
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.records.release import Event, StageRuns
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import POD, WORKFLOW
from shiplift.runtime.serving.kubernetes.objects.names import STAGES

NODE_ID = "workflows.argoproj.io/node-id"  # an annotation of a pod
_POLL_S = 0.5
_LINES = 10_000  # how much of a pod's log to read for its stages' progress


def of(api: KubernetesClient, name: str, pipeline: Pipeline = RELEASE) -> Iterator[Event | None]:
    """Yields the events of a release, or another pipeline, until it ends; None: nothing happened for a moment.

    Raises:
        NotFound: there is no such Workflow.
    """
    reported: dict[tuple[str, str], str] = {}
    running = RunningPods(api, name)
    while True:
        body = workflow(api, name)
        yield from _changes(stages_of(body, pipeline, running.told), reported)
        if ended(body):
            return
        yield None
        time.sleep(_POLL_S)


def workflow(api: KubernetesClient, name: str) -> Object:
    """The current state of a Workflow.

    Raises:
        NotFound: there is no such Workflow.
    """
    body = api.get(WORKFLOW, name)
    if body is None:
        raise NotFound(f"there is no Workflow {name!r} in {api.namespace}", do="It may have been deleted.")
    return body


def ended(body: Object) -> bool:
    """Whether a Workflow has ended."""
    return workflows.ended(body.get("status", {}).get("phase"))


def now(api: KubernetesClient, name: str) -> str:
    """The stages of a Workflow that are running, in words; empty if none is."""
    body = api.get(WORKFLOW, name) or {}
    reached = stages_of(body, RELEASE, RunningPods(api, name, follow=False).told)
    return ", ".join(f"{each.stage.name} {each.run.target}".strip() for each in reached if _open(each))


class RunningPods:
    """What the logs of a Workflow's running pods say about their stages: Argo learns that only when a pod ends.

    With `follow`, a thread per log reads it as it grows; otherwise each log is read once, to its end. If the user may
    not read logs, nothing is known.
    """

    def __init__(self, api: KubernetesClient, workflow: str, *, follow: bool = True) -> None:
        self._api = api
        self._workflow = workflow
        self._follow = follow
        self._told: dict[str, StageRuns] = {}
        self._readers: dict[str, Thread] = {}

    def told(self, node: Mapping[str, Any]) -> StageRuns | None:
        """How far a node's pod has come; None if that is unknown."""
        key = str(node["id"])
        reader = self._readers.get(key)
        if node.get("phase") == "Running" and (reader is None or not reader.is_alive()):
            reader = self._readers[key] = Thread(target=self._read, args=(key,), daemon=True)
            reader.start()
            if not self._follow:
                reader.join()
        return self._told.get(key)

    def _read(self, key: str) -> None:
        with suppress(ShipliftError):
            for pod in self._api.find(POD, f"workflows.argoproj.io/workflow={self._workflow}"):
                if pod["metadata"].get("annotations", {}).get(NODE_ID) == key:
                    stages = pod["metadata"].get("labels", {}).get(STAGES, "").split(".")
                    log = self._api.log(pod["metadata"]["name"], "main", lines=_LINES, follow=self._follow)
                    for report in lines.told(log, stages):
                        self._told[key] = report


def _open(reached: Reached) -> bool:
    """Whether a stage is still running: its pod is, and has not reported the stage's end."""
    return under_way(reached.node) and reached.run.outcome == "cancelled"


def _changes(reached: list[Reached], reported: dict[tuple[str, str], str]) -> Iterator[Event]:
    """The stages that have started, finished or begun to wait since the last call; updates `reported`."""
    for each in reached:
        node, run, waiting = each.node, each.run, workflows.waiting_for(each.node)
        target = run.target
        state = f"{node['id']} {waiting or 'started' if _open(each) else run.outcome}"
        if reported.get((run.name, target)) == state:
            continue
        reported[run.name, target] = state
        if waiting:
            yield Event(stage=run.name, target=target, kind="progress", message=waiting)
        elif _open(each):
            yield Event(stage=run.name, target=target, kind="started")
        else:
            yield Event.finished(run)
