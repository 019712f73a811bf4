"""Checks that every route answers, and with a right version: clients see this, whatever the objects look like."""

from dataclasses import replace

from shiplift.runtime.serving.operator.evidence import Evidence, Weights
from shiplift.runtime.serving.operator.measurements import AskRoutes
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, ServiceStatus

LIMIT = 2  # misses in a row: the second look follows at once
AGAIN_S = 0.5
_PATIENCE_S = 1.0  # for routes that are expected back, so that their first answer is reported at once
_FAILED = (Reason.ROUTE_FAILED, Reason.REPAIRING)


def due(observed: Observed, weights: Weights) -> tuple[AskRoutes, ...]:
    """The requests through the front to send now."""
    interval = observed.spec.heartbeat.interval_seconds if observed.spec else 0
    missed = any(beat.misses > 0 for beat in observed.evidence.routes.values())
    pause = 0.0 if is_back(observed, observed.evidence) else min(interval, AGAIN_S) if missed else interval
    if not interval or not observed.gateway.accepts or observed.now - observed.evidence.routes_at < pause:
        return ()
    revision = max((name for name in weights if weights[name]), key=lambda name: (weights[name], name), default="")
    if not observed.package(revision):
        return ()
    packages = [package for name in weights if (package := observed.package(name))]
    versions, asleep = tuple(sorted({package.version for package in packages})), bool(observed.activation)
    expected = _says_failed(observed.status) or is_back(observed, observed.evidence)
    patience_s = _PATIENCE_S if expected else 0
    return (AskRoutes(revision=revision, versions=versions, asleep=asleep, patience_s=patience_s),)


def problem(observed: Observed, evidence: Evidence) -> str:
    """What is wrong with the front, as far as is known; empty if nothing is."""
    if not observed.gateway.accepts:
        return f"the gateway takes no connections at {observed.address}"
    if is_back(observed, evidence):
        put_back = evidence.put_back_at > observed.gateway.changed_at
        what = "the objects that lead traffic were restored" if put_back else "the gateway takes connections again"
        return f"{what}, and no route has answered yet"
    limit = 1 if _says_failed(observed.status) else LIMIT  # once failed, a route must answer without a single miss
    wrong = [f"{route}: {beat.message}" for route, beat in evidence.routes.items() if beat.misses >= limit]
    return "; ".join(sorted(wrong))


def just_failed(evidence: Evidence) -> bool:
    """Whether a route has just missed too many requests."""
    return any(beat.misses == LIMIT for beat in evidence.routes.values())


def next_look_s(again_s: float, observed: Observed, told: ServiceStatus, evidence: Evidence) -> float:
    """After how many seconds at most to look again, once this is measured; `told` is the status before that.

    A first miss has to be confirmed soon. A change of readiness is reported at once.
    """
    routes = evidence.routes.values()
    if _says_failed(told):
        asked = observed.gateway.accepts and not is_back(observed, evidence)
        answered = asked and bool(routes) and not any(beat.misses for beat in routes)
        return 0.0 if answered else again_s
    if told.holds(ConditionType.READY) and any(beat.misses >= LIMIT for beat in routes):
        return 0.0
    return min(again_s, AGAIN_S) if any(beat.misses for beat in routes) else again_s


def _says_failed(status: ServiceStatus) -> bool:
    ready = status.condition(ConditionType.READY)
    return ready is not None and ready.reason in _FAILED


def is_back(observed: Observed, evidence: Evidence) -> bool:
    """Whether no route was asked since the gateway came back or the objects that lead traffic were restored."""
    asks = observed.spec is not None and observed.spec.heartbeat.interval_seconds > 0
    changed_at = max(observed.gateway.changed_at, evidence.put_back_at)
    return asks and observed.gateway.accepts and changed_at > evidence.routes_at


def asked(evidence: Evidence, now: float) -> Evidence:
    """The evidence once the front is asked."""
    return replace(evidence, routes_at=now)
