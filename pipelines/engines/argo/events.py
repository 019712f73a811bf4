"""The events of a Workflow, as the local engine reports them: stages that start, stages that finish."""

import time
from collections.abc import Iterator

from shiplift.pipelines.engines.argo import workflows
from shiplift.pipelines.engines.argo.ending import attempts, stage_run, under_way
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.records.release import Event
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import WORKFLOW

_POLL_S = 0.5


def of(api: KubernetesClient, name: str) -> Iterator[Event | None]:
    """Yields the events of a release until it ends; None means that nothing happened for a moment.

    Raises:
        NotFound: there is no such Workflow.
    """
    reported: dict[tuple[str, str], str] = {}
    while True:
        body = workflow(api, name)
        yield from _changes(body, reported)
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


def _changes(body: Object, reported: dict[tuple[str, str], str]) -> Iterator[Event]:
    """The stages that started or finished since the last call; updates `reported`."""
    for stage, node in attempts(body, RELEASE):
        run = stage_run(stage, node)
        state = f"{node['id']} {'started' if under_way(node) else run.outcome}"
        if reported.get((run.name, run.target)) == state:
            continue
        reported[run.name, run.target] = state
        if under_way(node):
            yield Event(stage=run.name, target=run.target, kind="started")
        else:
            yield Event(
                stage=run.name, target=run.target, kind="finished", message=run.message, seconds=run.seconds,
                cached=run.cached, outcome=run.outcome,
            )  # fmt: skip
