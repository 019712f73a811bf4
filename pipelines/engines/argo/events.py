"""What happens in a Workflow, told as engine 1 tells it: stages that start, stages that finish."""

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
    """The events of a release until it has ended; None is a pause.

    Raises:
        NotFound: there is no such Workflow.
    """
    told: dict[tuple[str, str], str] = {}
    while True:
        body = workflow(api, name)
        yield from _news(body, told)
        if ended(body):
            return
        yield None
        time.sleep(_POLL_S)


def workflow(api: KubernetesClient, name: str) -> Object:
    """A Workflow as it is now.

    Raises:
        NotFound: there is none of that name.
    """
    body = api.get(WORKFLOW, name)
    if body is None:
        raise NotFound(f"there is no Workflow {name!r} in {api.namespace}", do="It may have been deleted.")
    return body


def ended(body: Object) -> bool:
    """Whether a Workflow has."""
    return workflows.ended(body.get("status", {}).get("phase"))


def _news(body: Object, told: dict[tuple[str, str], str]) -> Iterator[Event]:
    """What has changed since it was last told: stages that started, stages that finished."""
    for stage, node in attempts(body, RELEASE):
        run = stage_run(stage, node)
        state = f"{node['id']} {'started' if under_way(node) else run.outcome}"
        if told.get((run.name, run.target)) == state:
            continue
        told[run.name, run.target] = state
        if under_way(node):
            yield Event(stage=run.name, target=run.target, kind="started")
        else:
            yield Event(
                stage=run.name, target=run.target, kind="finished", message=run.message, seconds=run.seconds,
                cached=run.cached, outcome=run.outcome,
            )  # fmt: skip
