"""Whether every route answers, with a version that should: what clients see, whatever the objects look like."""

from dataclasses import replace

from shiplift.runtime.serving.operator.evidence import Evidence, Weights
from shiplift.runtime.serving.operator.measurements import AskRoutes
from shiplift.runtime.serving.operator.observed import Observed

LIMIT = 2  # misses in a row: the second look follows at once
AGAIN_S = 0.5


def due(observed: Observed, weights: Weights) -> tuple[AskRoutes, ...]:
    """The requests through the front to send now."""
    interval = observed.spec.heartbeat.interval_seconds if observed.spec else 0
    missed = any(beat.misses > 0 for beat in observed.evidence.routes.values())
    pause = min(interval, AGAIN_S) if missed else interval
    if not interval or observed.now - observed.evidence.routes_at < pause:
        return ()
    revision = max((name for name in weights if weights[name]), key=lambda name: (weights[name], name), default="")
    if not observed.package(revision):
        return ()
    packages = [package for name in weights if (package := observed.package(name))]
    versions, asleep = tuple(sorted({package.version for package in packages})), bool(observed.activation)
    return (AskRoutes(revision=revision, versions=versions, asleep=asleep),)


def problem(evidence: Evidence) -> str:
    """What is wrong with the front; empty if nothing is known to be."""
    wrong = [f"{route}: {beat.message}" for route, beat in evidence.routes.items() if beat.misses >= LIMIT]
    return "; ".join(sorted(wrong))


def just_failed(evidence: Evidence) -> bool:
    """Whether a route has just missed too many requests."""
    return any(beat.misses == LIMIT for beat in evidence.routes.values())


def next_look_s(again_s: float, evidence: Evidence) -> float:
    """Within how many seconds to look again, once it is measured: a miss has to be confirmed soon."""
    missed = any(0 < beat.misses <= LIMIT for beat in evidence.routes.values())
    return min(again_s, AGAIN_S) if missed else again_s


def asked(evidence: Evidence, now: float) -> Evidence:
    """The evidence once the front is asked."""
    return replace(evidence, routes_at=now)
