"""The servers' latency for clients, for the status: measured now and then, and reported only if it has changed.

The servers count the operator's own requests too, so nothing is reported unless there are enough others.
"""

import math
from collections.abc import Mapping

from shiplift.runtime.serving.operator.evidence import Evidence, LatencyReading, Weights
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
    interval = observed.spec.heartbeat.interval_seconds if observed.spec else 0
    beat = len(observed.ready(revision)) + _ROUTES
    own = 2 * beat * math.ceil(EVERY_S / interval) if interval else 0  # twice as many as are due
    return (ReadLatency(revision=revision, own=own, beat=beat, interval_s=interval),)


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


def clients_told(observed: Observed, evidence: Evidence) -> float | None:
    """Clients' requests per minute for the status; None if they are not known."""
    before, latency = observed.status.client_requests_per_minute, evidence.latency
    if not latency.asked_at:  # this process has not read it yet
        return before
    if latency.per_minute is None or observed.now - latency.asked_at > 2 * EVERY_S:
        return None
    if before and latency.per_minute and abs(latency.per_minute - before) < _CHANGE * before:
        return before
    return float(f"{latency.per_minute:.3g}")


def after(
    before: LatencyReading, requests: Mapping[str, float], p99_ms: float | None, asked: ReadLatency, now: float
) -> LatencyReading:
    """What is known after a reading: each pod's requests so far, and the slowest pod's percentile."""
    again = bool(before.requests) and before.requests.keys() == requests.keys()
    more = sum(max(0.0, requests[pod] - before.requests[pod]) for pod in requests) if again else 0
    enough = more >= _LEAST + asked.own
    per_minute = _per_minute(more, asked, now - before.asked_at) if again else None
    return LatencyReading(asked_at=now, requests=requests, p99_ms=p99_ms if enough else None, per_minute=per_minute)


def _per_minute(more: float, asked: ReadLatency, seconds: float) -> float:
    """Clients' requests per minute: those beyond what the heartbeat can have sent in that time."""
    beats = math.ceil(seconds / asked.interval_s) + 1 if asked.interval_s else 0
    return max(0.0, more - asked.beat * beats) / max(seconds, 1.0) * 60
