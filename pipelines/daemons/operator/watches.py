"""What the operator watches: each event of a service, or of an object of it, wakes the service.

kopf watches, and nothing else of it is used: its handlers write nothing.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import kopf
import structlog

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.kubernetes.kinds import TRITON_REVISION, Kind
from shiplift.runtime.serving.kubernetes.objects.names import SERVICES
from shiplift.runtime.serving.operator.resources import MODEL, SERVICE_KIND

_REST_S = 5.0  # before watches that failed begin again
_WATCH_S = 300  # after that a watch is begun again, so that one that hangs does not hang forever


def services_of(body: Any) -> tuple[str, ...]:
    """The names of the services that an object belongs to: those with a model on it, for a shared server's pod."""
    shared = (body["metadata"].get("annotations") or {}).get(SERVICES, "")
    name = _service_of(body)
    return tuple(shared.split(",")) if shared else (name,) if name else ()


def _service_of(body: Any) -> str:
    if body.get("kind") == SERVICE_KIND:
        return str(body["metadata"]["name"])
    package = (body.get("spec") or {}).get("package") or {}
    model = package.get("model", "") if body.get("kind") == TRITON_REVISION.name else ""
    return dns_name(model) if model else str((body["metadata"].get("labels") or {}).get(MODEL, ""))


def watched(kinds: list[Kind], wake: Callable[[str], None]) -> kopf.OperatorRegistry:
    """kopf's handlers: each event of these kinds wakes a service. They write nothing: no finalizer, no annotation."""
    registry = kopf.OperatorRegistry()

    async def happened(body: kopf.Body, **_: Any) -> None:
        for name in services_of(body):
            wake(name)

    for kind in kinds:
        group, _, version = kind.version.rpartition("/")
        kopf.on.event(group, version, kind.plural, id=kind.plural, registry=registry)(happened)
    kopf.on.login(registry=registry)(_login)
    return registry


def _login(**arguments: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)


class Watches:
    """kopf's watches, in a thread; they begin again if they fail."""

    def __init__(self, registry: kopf.OperatorRegistry, namespace: str) -> None:
        self._registry, self._namespace = registry, namespace
        self._stop, self._watching = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="watches", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the watches."""
        self._stop.set()
        self._thread.join(timeout=5)

    def alive(self) -> bool:
        """Whether events still arrive, as far as one can know."""
        return self._thread.is_alive() and self._watching

    def _run(self) -> None:
        while not self._stop.is_set():
            self._watching = True
            try:
                asyncio.run(self._watch())
            except Exception as error:  # the services are listed meanwhile, and the watches begin again
                structlog.get_logger().warning("failed", part="watches", error=str(error) or type(error).__name__)
            self._watching = False
            self._stop.wait(_REST_S)

    async def _watch(self) -> None:
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # else it wants to watch namespaces and definitions of the whole cluster
        settings.watching.server_timeout = _WATCH_S
        settings.watching.client_timeout = _WATCH_S + 30
        settings.watching.connect_timeout = 10
        await kopf.operator(
            registry=self._registry, settings=settings, namespaces=[self._namespace], standalone=True,
            stop_flag=self._stop,
        )  # fmt: skip
