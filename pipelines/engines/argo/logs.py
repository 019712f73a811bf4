"""Logs of a cluster's pods: of a release, stage by stage, and of the parts that start releases."""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Queue
from threading import Thread

from shiplift.runtime.base.errors import NotFound, ShipliftError
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.connection import Object
from shiplift.runtime.serving.kubernetes.kinds import POD
from shiplift.runtime.serving.kubernetes.objects.names import LABEL

PARTS = ("reconciler", "receiver", "mlflow")
_POLL_S = 1.0
_WIDTH = 16  # of what stands before each line
_Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A container that has begun to write, and how its lines are marked; a restarted one is another source."""

    pod: str
    container: str
    label: str
    started_at: str
    restarts: int


def of_part(api: KubernetesClient, name: str, *, lines: int, follow: bool) -> Iterator[str]:
    """The log of a part, from all its pods; followed, it has no end.

    Raises:
        NotFound: it has no pod.
    """
    return _lines(api, f"app.kubernetes.io/name={name}", name, lines=lines, ended=(lambda: False) if follow else None)


def of_release(api: KubernetesClient, workflow: str, *, lines: int, ended: Callable[[], bool] | None) -> Iterator[str]:
    """The log of a Workflow, from the pods it still has; with `ended` (whether it has) it is followed until then.

    Raises:
        NotFound: it has none.
    """
    return _lines(api, f"workflows.argoproj.io/workflow={workflow}", workflow, lines=lines, ended=ended)


def _lines(
    api: KubernetesClient, selector: str, name: str, *, lines: int, ended: Callable[[], bool] | None
) -> Iterator[str]:
    def look() -> list[Source]:
        return _sources(api, selector)

    if ended is not None:
        yield from _followed(api, look, lines, ended)
        return
    sources = look()
    if not sources:
        raise NotFound(
            f"no pod of {name} has a log", do="A stage's pod is kept for `keep.pods_s` seconds after it has ended."
        )
    kept: deque[str] = deque(maxlen=lines)
    for source in sources:
        kept.extend(_marked(api, source, lines=lines, follow=False))
    yield from kept


def _followed(
    api: KubernetesClient, look: Callable[[], list[Source]], lines: int, ended: Callable[[], bool]
) -> Iterator[str]:
    """One reader a container, since several write at once; what they read comes in the order in which it came."""
    read: Queue[str | ShipliftError] = Queue()
    readers: dict[_Key, Thread] = {}
    while True:
        last = ended()  # asked before the pods are: one that began before the end is read too
        for source in look():
            key = (source.pod, source.restarts)
            if key not in readers:
                readers[key] = Thread(target=_read, args=(api, source, lines, read), daemon=True)
                readers[key].start()
        yield from _arrived(read)
        if last and not any(reader.is_alive() for reader in readers.values()) and read.empty():
            return


def _arrived(read: "Queue[str | ShipliftError]") -> Iterator[str]:
    """What comes within one look's time."""
    until = time.monotonic() + _POLL_S
    with suppress(Empty):
        while (left := until - time.monotonic()) > 0:
            line = read.get(timeout=left)
            if isinstance(line, ShipliftError):
                raise line
            yield line


def _read(api: KubernetesClient, source: Source, lines: int, into: "Queue[str | ShipliftError]") -> None:
    try:
        for line in _marked(api, source, lines=lines, follow=True):
            into.put(line)
    except ShipliftError as error:
        into.put(error)


def _marked(api: KubernetesClient, source: Source, *, lines: int, follow: bool) -> Iterator[str]:
    for line in api.log(source.pod, source.container, lines=lines, follow=follow):
        yield f"{source.label:<{_WIDTH}} {line}"


def _sources(api: KubernetesClient, selector: str) -> list[Source]:
    """The main containers that have started, the oldest first."""
    started = (_source(pod) for pod in api.find(POD, selector))
    return sorted((source for source in started if source), key=lambda source: source.started_at)


def _source(pod: Object) -> Source | None:
    containers = pod["spec"]["containers"]
    main = next((container for container in containers if container["name"] == "main"), containers[0])
    for status in pod.get("status", {}).get("containerStatuses", []):
        state = status.get("state", {})
        if status["name"] == main["name"] and ("running" in state or "terminated" in state):
            return Source(
                pod=pod["metadata"]["name"], container=main["name"], label=_label(pod, main),
                started_at=str(pod["status"].get("startTime", "")), restarts=int(status.get("restartCount", 0)),
            )  # fmt: skip
    return None


def _label(pod: Object, container: Object) -> str:
    """The stage, with its target where it runs once per target; else the pod."""
    stage = pod["metadata"].get("labels", {}).get(f"{LABEL}stage", "")
    words = container.get("args", [])
    target = ""
    if "--target" in words:
        with suppress(ValueError, IndexError, AttributeError):
            target = str(json.loads(words[words.index("--target") + 1]).get("name", ""))
    return f"{stage}/{target}" if stage and target else stage or str(pod["metadata"]["name"])
