"""The servers' latency for clients, for the status: measured now and then, and reported only if it has changed.

The servers count the operator's own requests too, so nothing is reported unless there are enough others.
"""

import math

from shiplift.runtime.serving.operator.evidence import Evidence, Latency, Weights
from shiplift.runtime.serving.operator.measurements import ReadLatency
from shiplift.runtime.serving.operator.observed import Observed

EVERY_S = 60.0  # between two readings, and so between two writes of the status: the servers' own window
_LEAST = 100  # clients' requests between two readings, so that the 99th percentile is one of theirs
_CHANGE = 0.1  # of the value that the status has
_ROUTES = 3


def due(observed: Observed, weights: Weights) -> tuple[ReadLatency, ...]:
    """The reading to make now, of the revision with most of the traffic."""
    revision = max((name for name in weights if weights[name]), key=lambda name: (weights[name], name), default="")
    if observed.now - observed.evidence.latency.asked_at < EVERY_S or not observed.ready(revision):
        return ()
    return (ReadLatency(revision=revision, own=_own(observed, revision)),)


def told(observed: Observed, evidence: Evidence) -> float | None:
    """The 99th percentile for the status, in milliseconds; None if it is unknown."""
    before, latency = observed.status.p99_milliseconds, evidence.latency
    if not latency.asked_at:  # this process has not read it yet
        return before
    if latency.p99_ms is None or observed.now - latency.asked_at > 2 * EVERY_S:
        return None
    if before is not None and abs(latency.p99_ms - before) < _CHANGE * before:
        return before
    return float(f"{latency.p99_ms:.3g}")


def after(before: Latency, requests: dict[str, float], p99_ms: float | None, own: int, now: float) -> Latency:
    """What is known after a reading: each pod's requests so far, and the slowest pod's percentile."""
    again = before.requests and before.requests.keys() == requests.keys()
    more = sum(max(0.0, requests[pod] - before.requests[pod]) for pod in requests) if again else 0
    enough = more >= _LEAST + own
    return Latency(asked_at=now, requests=requests, p99_ms=p99_ms if enough else None)


def _own(observed: Observed, revision: str) -> int:
    """The most requests that the operator may send between two readings: twice as many as are due."""
    interval = observed.spec.heartbeat.interval_seconds if observed.spec else 0
    each = len(observed.ready(revision)) + _ROUTES
    return 2 * each * math.ceil(EVERY_S / interval) if interval else 0
