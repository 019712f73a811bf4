"""Carries out a decision about a service: applies, deletes, writes the status, records events, and measures.

Every act may fail, or be the last before a kill: the next look sees what came of it.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import structlog

from shiplift.runtime.base.errors import ClusterRefused, ShipliftError
from shiplift.runtime.serving.kubernetes.client import MANAGER, KubernetesClient, managers
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.kubernetes.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SCALED_OBJECT,
    SERVICE,
    TRITON_REVISION,
    TRITON_SERVICE,
    ResourceKind,
)
from shiplift.runtime.serving.operator.conditions import KubernetesEvent
from shiplift.runtime.serving.operator.deciding import Decision
from shiplift.runtime.serving.operator.evidence import Evidence, Key
from shiplift.runtime.serving.operator.measurements import Measurement
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.repair import key_of, remember, strangers
from shiplift.runtime.serving.operator.resources import API_VERSION, SERVICE_KIND, ServiceStatus

_DELETED = {
    kind.name: kind
    for kind in (
        CONFIG_MAP,
        DEPLOYMENT,
        HORIZONTAL_POD_AUTOSCALER,
        POD,
        POD_DISRUPTION_BUDGET,
        POD_MONITOR,
        PROMETHEUS_RULE,
        SCALED_OBJECT,
        SERVICE,
        TRITON_REVISION,
    )
}
_HANDOVER = f"{MANAGER}-handover"


class Measuring(Protocol):
    """Measures what a decision asks for."""

    def measure(self, observed: Observed, wanted: Measurement, evidence: Evidence) -> Evidence:
        """The evidence with what was measured."""


class Actor:
    """Acts on the services of one namespace; `count` is called with each kind of act, such as apply or delete."""

    def __init__(
        self, api: KubernetesClient, measuring: Measuring, count: Callable[[str], object] = lambda _: None
    ) -> None:
        self._api = api
        self._measuring = measuring
        self._count = count

    def act(self, observed: Observed, decision: Decision) -> Evidence:
        """Does everything, in order; returns what is known afterwards.

        Raises:
            ShipliftError, Conflict: an object was refused, after the others and the status were written.
        """
        evidence, error = self._apply(decision.apply, decision.evidence)
        if error is None:  # otherwise a successor may be missing, so nothing is deleted
            for key, patch in decision.patch:
                self._count("patch")
                self._api.merge(_kind(key), key[1], patch)
            for key in decision.delete:
                self._count("delete")
                self._api.delete(_kind(key), key[1])
        refused = self._write(observed.name, decision.status) if decision.status is not None else ()
        for event in (*decision.events, *refused):
            self._tell(observed, event)
        if error is not None:
            raise error
        for wanted in decision.measure:
            self._count("measure")
            with suppress(ShipliftError):  # it is asked for again
                evidence = self._measuring.measure(observed, wanted, evidence)
        return evidence

    def _apply(self, bodies: tuple[Object, ...], evidence: Evidence) -> tuple[Evidence, Exception | None]:
        """Applies objects; returns the first error after trying all of them."""
        applied, first = dict(evidence.applied), None
        for body in bodies:
            self._count("apply")
            try:
                self._let_go(body)
                live = self._api.apply(body)
                if patch := strangers(body, live):
                    kind, name, namespace = self._api.locate(body)
                    live = self._api.merge(kind, name, patch, namespace) or live
            except (ShipliftError, Conflict) as error:
                first = first or error
                continue
            applied[key_of(body)] = remember(body, live)
        return replace(evidence, applied=applied), first

    def _let_go(self, body: Object) -> None:
        """Before a Deployment is applied without a number of pods: keeps the number, if we wrote it.

        Server-side apply removes a field that its only manager no longer applies, and the Deployment would fall to one
        pod. So a second manager applies the same number first.
        """
        if body["kind"] != DEPLOYMENT.name or "replicas" in body["spec"]:
            return
        _, name, namespace = self._api.locate(body)
        live = self._api.get(DEPLOYMENT, name, namespace)
        if live is None or managers(live, "replicas") != {MANAGER}:
            return
        kept = {"apiVersion": body["apiVersion"], "kind": body["kind"], "spec": {"replicas": live["spec"]["replicas"]}}
        self._api.apply({**kept, "metadata": {"name": name, "namespace": namespace}}, manager=_HANDOVER)

    def _write(self, name: str, status: ServiceStatus) -> tuple[KubernetesEvent, ...]:
        """Writes the status; returns an event if it is refused, for example by an older definition of the resource.

        A refused status must not keep the operator from measuring what it needs next.
        """
        self._count("status")
        try:
            unknown = dict.fromkeys(("p99Milliseconds", "clientRequestsPerMinute"))  # a merge keeps what is left out
            fields = {**unknown, **status.to_object()}
            self._api.merge(TRITON_SERVICE, f"{name}/status", {"status": fields})
        except ClusterRefused as error:
            message = f"the status can't be written: {error}. Run `shiplift install` of this version."
            structlog.get_logger().warning("failed", service=name, part="status", error=str(error))
            return (KubernetesEvent(reason="StatusRefused", message=message, warning=True),)
        return ()

    def _tell(self, observed: Observed, event: KubernetesEvent) -> None:
        """Records an Event; the same one is recorded at most once a minute. Errors don't matter."""
        self._count("event")
        with suppress(ShipliftError, Conflict):
            self._api.create(_event(observed, event))


def _kind(key: Key) -> ResourceKind:
    return _DELETED[key[0]]


def _event(observed: Observed, event: KubernetesEvent) -> Object:
    meta = {"name": observed.name, "namespace": observed.namespace, "uid": observed.uid}
    return event_about({"metadata": meta}, event, now=observed.now)


def event_about(body: Object, event: KubernetesEvent, *, now: float | None = None) -> Object:
    """An Event about a service, which may be gone; of equal ones within a minute, all but the first conflict."""
    now, meta = time.time() if now is None else now, body["metadata"]
    text = f"{event.reason}\n{event.message}\n{int(now // 60)}"
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    service = {"apiVersion": API_VERSION, "kind": SERVICE_KIND, "name": meta["name"], "uid": meta["uid"]}
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{digest}", "namespace": meta["namespace"]},
        "involvedObject": {**service, "namespace": meta["namespace"]},
        "reason": event.reason,
        "message": event.message[:1000],
        "type": "Warning" if event.warning else "Normal",
        "source": {"component": "shiplift-operator"},
        "reportingComponent": "shiplift-operator",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
