"""The operator's loop: when each service is looked at, by which thread, and what happens after an error.

Two threads never work on the same service. Several reasons to look at a service lead to one look. After an error, only
the service that it concerns has to wait.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from shiplift.pipelines.daemons.operator.metrics import OperatorMetrics
from shiplift.runtime.base.errors import ShipliftError
from shiplift.runtime.serving.kubernetes.connection import Conflict, Object
from shiplift.runtime.serving.operator.cluster.acting import Actor
from shiplift.runtime.serving.operator.cluster.observing import Observer, Snapshot
from shiplift.runtime.serving.operator.deciding import Decision, next_action
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import ServiceStatus
from shiplift.runtime.serving.operator.upkeep.fronts import next_look_s

RELIST_S = 10.0
_SOON_S = 0.5  # least time between two lists
_SPACING_S = 0.2  # least time between two looks at a service, however many events arrive
_LONGEST_PAUSE_S = 30.0
_HEALTHY_S = 90.0


@dataclass(kw_only=True)
class _Service:
    """What the loop knows about a service. `changed_at` is the time of the last event, or of the loop's last action."""

    due: float = 0.0
    busy: bool = False
    looked_at: float = 0.0
    changed_at: float = 0.0
    errors: int = 0
    evidence: Evidence = field(default_factory=Evidence)
    observed: Observed | None = None


class Loop:
    """Looks at every service of a namespace after each event that concerns it, and from time to time."""

    def __init__(
        self,
        observer: Observer,
        actor: Actor,
        metrics: OperatorMetrics,
        *,
        leads: Callable[[], bool] = lambda: True,
        decide: Callable[[Observed], Decision] = next_action,
        publish: Callable[[Snapshot], object] = lambda _: None,
        listed: Callable[[Snapshot], object] = lambda _: None,
    ) -> None:
        """`leads` says whether this process may act. Each list goes to `listed` and, while it leads, to `publish`."""
        self._observer, self._actor, self._metrics = observer, actor, metrics
        self._leads, self._decide, self._publish, self._listed = leads, decide, publish, listed
        self._services: dict[str, _Service] = {}
        self._snapshot = Snapshot(taken_at=0.0)
        self._changed = threading.Condition()
        self._listed_at = time.monotonic()
        self._list_soon = threading.Event()
        self._log = structlog.get_logger()

    def wake(self, name: str) -> None:
        """Call after an event of a service, or of one of its objects: the loop looks at it soon."""
        with self._changed:
            service = self._services.setdefault(name, _Service())
            service.changed_at = time.time()
            service.due = min(service.due, time.monotonic() + (1.0 if service.errors else 0.0))
            self._changed.notify()

    def seen(self) -> dict[str, tuple[Observed, Evidence]]:
        """The last look at each service, and what is known after it."""
        with self._changed:
            services = list(self._services.items())
        return {name: (each.observed, each.evidence) for name, each in services if each.observed}

    def wake_all(self) -> None:
        """Call after an event of something that all services share."""
        with self._changed:
            names = list(self._services)
        for name in names:
            self.wake(name)

    def healthy(self) -> bool:
        """Whether the services were listed recently."""
        return time.monotonic() - self._listed_at < _HEALTHY_S

    def relist(self) -> None:
        """Lists all services, so that none is missed even if a watch loses an event."""
        try:
            snapshot = self._observer.everything()
        except Exception as error:  # one odd object must not end the operator
            self._failed("", error)
            return
        self._listed_at = time.monotonic()
        self._metrics.listed(snapshot)
        self._listed(snapshot)
        with self._changed:
            self._snapshot = snapshot
            for name in snapshot.services:
                self._services.setdefault(name, _Service())
            self._changed.notify_all()
        if self._leads():
            try:
                self._publish(snapshot)
            except Exception as error:  # a failure to publish addresses must not hold up the services
                self._failed("", error)

    def run(self, stop: threading.Event, *, threads: int) -> None:
        """Works until `stop` is set. This thread lists services; `threads` others work on them."""
        workers = [threading.Thread(target=self._work, args=(stop,), daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        while not stop.is_set():
            self._list_soon.clear()
            self.relist()
            self._pause(stop)
        with self._changed:
            self._changed.notify_all()
        for worker in workers:
            worker.join(timeout=10)

    def _pause(self, stop: threading.Event) -> None:
        """Waits until the next list is due: sooner if another revision serves now, because lists publish that."""
        until = time.monotonic() + RELIST_S
        while not stop.wait(_SOON_S) and time.monotonic() < until and not self._list_soon.is_set():
            pass

    def _work(self, stop: threading.Event) -> None:
        while not stop.is_set():
            name = self._next(stop)
            if name:
                self.turn(name)

    def _next(self, stop: threading.Event) -> str:
        """Waits for a due service that no other thread works on, and marks it busy; returns "" when `stop` is set."""
        with self._changed:
            while not stop.is_set():
                name, service = min(
                    ((name, service) for name, service in self._services.items() if not service.busy),
                    key=lambda item: item[1].due,
                    default=("", None),
                )
                wait = service.due - time.monotonic() if service else 1.0
                if service and wait <= 0 and self._leads():
                    service.busy = True
                    return name
                self._changed.wait(min(1.0, wait if wait > 0 else 0.5))
        return ""

    def turn(self, name: str) -> None:
        """Looks at a service once, and acts."""
        service = self._services.setdefault(name, _Service())
        began = service.looked_at = time.time()
        try:
            again_s = self._look(name, service)
        except Exception as error:  # a bug that one service triggers must not stop the others
            self._failed(name, error)
            service.errors += 1
            again_s = min(_LONGEST_PAUSE_S, 0.5 * 2**service.errors)
        else:
            service.errors = 0
        if again_s is None:
            return self._forget(name)
        with self._changed:
            if service.changed_at > began and not service.errors:
                again_s = 0.0
            service.due, service.busy = time.monotonic() + max(_SPACING_S, again_s), False
            self._changed.notify()
        return None

    def _look(self, name: str, service: _Service) -> float | None:
        """Looks at a service and acts; returns the seconds until the next look, or None if the service is gone.

        A list that is newer than the last event saves requests to the API server. It may still be outdated, so before
        anything is written, the service is read again by itself.
        """
        shared = self._snapshot.taken_at > service.changed_at and name in self._snapshot.services
        observed = self._observed(name, service, self._snapshot if shared else None)
        decision = self._decide(observed) if observed else None
        if shared and decision and decision.writes:
            observed = self._observed(name, service, None)
            decision = self._decide(observed) if observed else None
        if observed is None or decision is None:
            return None
        if decision.writes:
            service.changed_at = time.time()
            self._log.info("acts", service=name, **_summary(decision))
        service.observed, service.evidence = observed, decision.evidence
        service.evidence = self._actor.act(observed, decision)
        self._metrics.looks.inc()
        told = decision.status or observed.status
        if told.revision != observed.status.revision:
            self._list_soon.set()
        again_s = next_look_s(decision.again_s, observed, told, service.evidence)
        if not again_s:
            told = self._tell(replace(observed, status=told), service, decision.apply)
        self._metrics.seen.look(observed, service.evidence, told)
        return again_s

    def _tell(self, observed: Observed, service: _Service, applied: Sequence[Object]) -> ServiceStatus:
        """Writes the status after what was just applied and measured. Any other action waits for the next look."""
        seen = self._observer.reread(observed, applied)
        now = replace(seen, evidence=service.evidence, now=time.time())
        decision = self._decide(now)
        if decision.status is None:
            return now.status
        only_told = Decision(evidence=service.evidence, status=decision.status, events=decision.events)
        service.evidence = self._actor.act(now, only_told)
        return decision.status

    def _observed(self, name: str, service: _Service, snapshot: Snapshot | None) -> Observed | None:
        return self._observer.observed(snapshot or self._observer.alone(name), name, service.evidence)

    def _forget(self, name: str) -> None:
        self._metrics.seen.forget(name)
        with self._changed:
            self._services.pop(name, None)
            self._changed.notify()

    def _failed(self, name: str, error: Exception) -> None:
        self._metrics.errors.labels(type(error).__name__).inc()
        expected = isinstance(error, (ShipliftError, Conflict))
        self._log.warning("failed", service=name, error=str(error), exc_info=not expected)


def _summary(decision: Decision) -> dict[str, object]:
    """A decision's fields for the log."""
    told = [event.message for event in decision.events]
    applied = [f"{body['kind']}/{body['metadata']['name']}" for body in decision.apply]
    deleted, patched = ["/".join(key) for key in decision.delete], ["/".join(key) for key, _ in decision.patch]
    parts = {"applies": applied, "patches": patched, "deletes": deleted, "because": told}
    return {name: value for name, value in parts.items() if value}
