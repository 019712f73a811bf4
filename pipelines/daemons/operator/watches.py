"""The operator's watches: each event of a service, or of one of its objects, wakes the service."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import TRITON_REVISION, TRITON_SERVICE, ResourceKind
from shiplift.runtime.serving.kubernetes.objects.names import SERVICES
from shiplift.runtime.serving.operator.resources import MODEL, SERVICE_KIND

_REST_S = 5.0  # pause before a failed watch is restarted
_BRIEF_S = 1.0  # a watch that ends sooner does so for a reason that holds for the next one, too
_WATCH_S = 300  # then a watch continues with a new request, so that a hanging connection does not hang forever
_UNHEALTHY_S = 90.0


def services_of(body: Any) -> tuple[str, ...]:
    """The names of the services that an object belongs to: for a shared server's pod, all with a model on it."""
    shared = (body["metadata"].get("annotations") or {}).get(SERVICES, "")
    name = _service_of(body)
    return tuple(shared.split(",")) if shared else (name,) if name else ()


def _service_of(body: Any) -> str:
    if body.get("kind") == SERVICE_KIND:
        return str(body["metadata"]["name"])
    package = (body.get("spec") or {}).get("package") or {}
    model = package.get("model", "") if body.get("kind") == TRITON_REVISION.name else ""
    return dns_name(model) if model else str((body["metadata"].get("labels") or {}).get(MODEL, ""))


def pause_after(*, lasted_s: float) -> float:
    """Seconds until a watch that ended after so many begins again: none if it lasted.

    An API server that starts or is busy ends all watches. Each pauses for another time, so that not all ask at once.
    """
    return 0.0 if lasted_s >= _BRIEF_S else _jittered(_BRIEF_S)


def _jittered(pause_s: float) -> float:
    return pause_s * random.uniform(0.5, 1.5)  # noqa: S311 - spreads load, keeps no secret


class Watches:
    """Watches of several kinds, each in its own thread. A watch that fails starts over with all objects."""

    def __init__(
        self,
        api: KubernetesClient,
        kinds: Sequence[ResourceKind],
        wake: Callable[[str], None],
        gone: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """Each event of these kinds in the client's namespace wakes a service. Watches write nothing.

        A service that was deleted goes to `gone`, as it was then.
        """
        self._api, self._wake, self._gone = api, wake, gone
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(kind,), name=f"watch {kind.plural}", daemon=True) for kind in kinds
        ]
        self._failing: dict[str, float] = {}  # kinds whose watch is failing, and since when

    def start(self) -> None:
        """Starts watching."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends each watch at its next event. The threads are daemons, so they don't keep the process alive."""
        self._stop.set()

    def alive(self) -> bool:
        """Whether every watch is running and none has been failing for long."""
        oldest = min(self._failing.copy().values(), default=time.monotonic())
        return all(thread.is_alive() for thread in self._threads) and time.monotonic() - oldest < _UNHEALTHY_S

    def _run(self, kind: ResourceKind) -> None:
        since = ""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                since = self._watch(kind, since)
                self._stop.wait(pause_after(lasted_s=time.monotonic() - began))
            except Exception as error:  # restart the watch; meanwhile the loop's lists find changes
                since = ""
                self._failing.setdefault(kind.plural, time.monotonic())
                message = str(error) or type(error).__name__
                structlog.get_logger().warning("failed", part="watches", kind=kind.name, error=message)
                self._stop.wait(_jittered(_REST_S))

    def _watch(self, kind: ResourceKind, since: str) -> str:
        """Watches once; returns the resource version up to which all events were seen."""
        events = self._api.watch(kind, since=since, seconds=_WATCH_S)
        self._failing.pop(kind.plural, None)
        for event in events:
            body = event["object"]
            since = str(body["metadata"].get("resourceVersion", ""))
            for name in services_of(body) if event["type"] != "BOOKMARK" else ():
                self._wake(name)
            if event["type"] == "DELETED" and kind == TRITON_SERVICE:
                self._gone(body)
            if self._stop.is_set():
                break
        return since
