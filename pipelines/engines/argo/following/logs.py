"""Logs of a cluster's pods: those of a release, stage by stage, and of the components that start releases."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from shiplift.pipelines.engines.argo.following.lines import split, started_for
from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import POD
from shiplift.runtime.serving.kubernetes.objects.names import STAGES

PARTS = ("reconciler", "receiver", "mlflow", "capture")
_POLL_S = 1.0
_WIDTH = 16  # of the label before each line
_Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A container that has started. After a restart it counts as another source.

    `stages` maps the stages that it runs to their labels: the stage's name, with the target if it runs once per target.
    """

    pod: str
    container: str
    stages: dict[str, str]
    started_at: str
    restarts: int


def of_part(api: KubernetesClient, name: str, *, lines: int, follow: bool) -> Iterator[str]:
    """Yields the log of a component, from all its pods; with `follow`, it never ends.

    Raises:
        NotFound: the component has no pod.
    """
    return _lines(api, f"app.kubernetes.io/name={name}", name, lines=lines, ended=(lambda: False) if follow else None)


def of_release(api: KubernetesClient, workflow: str, *, lines: int, ended: Callable[[], bool] | None) -> Iterator[str]:
    """Yields the log of a Workflow from the pods that still exist; with `ended`, follows it until that returns true.

    Raises:
        NotFound: the Workflow has no pods left.
    """
    return _lines(api, f"workflows.argoproj.io/workflow={workflow}", workflow, lines=lines, ended=ended)


def _lines(
    api: KubernetesClient, selector: str, name: str, *, lines: int, ended: Callable[[], bool] | None
) -> Iterator[str]:
    def find_sources() -> list[Source]:
        return _sources(api, selector)

    if ended is not None:
        yield from _followed(api, find_sources, lines, ended)
        return
    sources = find_sources()
    if not sources:
        raise NotFound(
            f"no pod of {name} has a log",
            do="A stage's pod is deleted `keep.pods_s` seconds after it ends; set a larger value to keep logs longer.",
        )
    last: deque[str] = deque(maxlen=lines)
    for source in sources:
        last.extend(_marked(api, source, lines=lines, follow=False))
    yield from last


def _followed(
    api: KubernetesClient, find_sources: Callable[[], list[Source]], lines: int, ended: Callable[[], bool]
) -> Iterator[str]:
    """Yields lines as they arrive, with one reader thread per container, because several write at once."""
    queue: Queue[str | ShipliftError] = Queue()
    readers: dict[_Key, Thread] = {}
    while True:
        done = ended()  # checked before listing pods, so that pods which started before the end are read too
        for source in find_sources():
            key = (source.pod, source.restarts)
            if key not in readers:
                readers[key] = Thread(target=_read, args=(api, source, lines, queue), daemon=True)
                readers[key].start()
        yield from _arrived(queue)
        if done and not any(reader.is_alive() for reader in readers.values()) and queue.empty():
            return


def _arrived(queue: "Queue[str | ShipliftError]") -> Iterator[str]:
    """Yields the lines that arrive within one poll interval."""
    deadline = time.monotonic() + _POLL_S
    with suppress(Empty):
        while (left := deadline - time.monotonic()) > 0:
            line = queue.get(timeout=left)
            if isinstance(line, ShipliftError):
                raise line
            yield line


def _read(api: KubernetesClient, source: Source, lines: int, queue: "Queue[str | ShipliftError]") -> None:
    try:
        for line in _marked(api, source, lines=lines, follow=True):
            queue.put(line)
    except ShipliftError as error:
        queue.put(error)


def _marked(api: KubernetesClient, source: Source, *, lines: int, follow: bool) -> Iterator[str]:
    labels = dict(source.stages)
    label = next(iter(labels.values()), source.pod)
    for line in api.log(source.pod, source.container, lines=lines, follow=follow):
        stage, text = split(line, labels)
        if stage and (target := started_for(text)):  # a pod that continues with a fan-out has no --target
            labels[stage] = _labelled(stage, target)
        label = labels.get(stage, label)
        yield f"{label:<{_WIDTH}} {text}"


def _sources(api: KubernetesClient, selector: str) -> list[Source]:
    """The main containers that have started, oldest first."""
    started = (_source(pod) for pod in api.find(POD, selector))
    return sorted((source for source in started if source), key=lambda source: source.started_at)


def _source(pod: Object) -> Source | None:
    containers = pod["spec"]["containers"]
    main = next((container for container in containers if container["name"] == "main"), containers[0])
    meta = pod["metadata"]
    names, target = filter(None, meta.get("labels", {}).get(STAGES, "").split(".")), _target(main)
    for status in pod.get("status", {}).get("containerStatuses", []):
        state = status.get("state", {})
        if status["name"] == main["name"] and ("running" in state or "terminated" in state):
            return Source(
                pod=meta["name"],
                container=main["name"],
                stages={name: _labelled(name, target) for name in names},
                started_at=str(pod["status"].get("startTime", "")),
                restarts=int(status.get("restartCount", 0)),
            )
    return None


def _labelled(stage: str, target: str) -> str:
    """The label of a stage's lines: its name, with the target if it runs once per target."""
    return f"{stage}/{target}" if target else stage


def _target(container: Object) -> str:
    """The target's name, for stages that run once per target; else empty."""
    arguments = container.get("args", [])
    with suppress(ValueError, IndexError, AttributeError):
        return str(json.loads(arguments[arguments.index("--target") + 1]).get("name", ""))
    return ""
