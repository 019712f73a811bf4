"""What the operator has measured of one service so far, kept in memory between two looks.

If it is lost, it is measured again: the progress of a rollout is in the routes and in the status.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shiplift.runtime.records.measurement import Counts
from shiplift.runtime.serving.operator.resources import Reason
from shiplift.runtime.serving.scaling.burst import QueueReading

Weights = dict[str, int]  # revision: percent of the traffic
Key = tuple[str, str]  # an object's kind and name
Patch = tuple[Key, dict[str, Any]]  # of an object that exists: a JSON merge patch
Protocol = Literal["gRPC", "HTTP"]
Route = Literal["gRPC", "HTTP", "HTTP by path"]


Counters = Mapping[str, Counts]  # by pod


def since(first: Counters, last: Counters) -> Counts:
    """The requests between two readings; a pod that is new, or has restarted, counts from 0."""
    answered = failed = 0
    for pod, now in last.items():
        before = first.get(pod, Counts())
        restarted = now.total < before.total
        answered += now.answered - (0 if restarted else before.answered)
        failed += now.failed - (0 if restarted else before.failed)
    return Counts(answered=max(0, answered), failed=max(0, failed))


@dataclass(frozen=True, kw_only=True)
class TrafficSample:
    """Requests through the front: how many were sent, and how many of them the new revision answered.

    `failure` is the first error. `unreachable`: it is an error that a proxy gives before it has the new route.
    """

    asked: int
    answered: int
    failure: str = ""
    unreachable: bool = False


@dataclass(frozen=True, kw_only=True)
class Share:
    """What the front answered since it got these weights; `grew` are the requests that each revision's pods counted."""

    weights: Weights
    since: float
    tries: int = 0
    tried_at: float = 0
    samples: Mapping[Protocol, TrafficSample] = field(default_factory=dict)
    grew: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Hold:
    """A share that is being watched: each revision's counters at the start and now."""

    weights: Weights
    since: float
    first: Mapping[str, Counters] = field(default_factory=dict)
    last: Mapping[str, Counters] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A revision without traffic: its counters, and when they last changed."""

    since: float
    changed_at: float
    counters: Counters = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Beat:
    """The heartbeat of a pod or a route: how many requests in a row it missed, and what happened to the last one.

    `wrong`: it was answered, but with wrong values.
    """

    misses: int = 0
    wrong: bool = False
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class TrafficReading:
    """Clients' requests by the servers' own counters: when the last one was seen, and when all pods were last read.

    `counters` is None if a pod did not answer. `since`: when the service's activation changed.
    """

    counters: Counters | None = None
    seen_at: float = 0
    read_at: float = 0
    since: float = 0


@dataclass(frozen=True, kw_only=True)
class LatencyReading:
    """The last reading of the servers' latency, with each pod's requests so far; `asked_at` is 0 before the first.

    `per_minute` are the requests of clients since the reading before; None: they can't be told.
    """

    asked_at: float = 0
    requests: Mapping[str, float] = field(default_factory=dict)
    p99_ms: float | None = None
    per_minute: float | None = None


@dataclass(frozen=True, kw_only=True)
class QueueDemand:
    """The last readings of the servers' queues, and the least pods per group that they call for, valid `until` then."""

    readings: tuple[QueueReading, ...] = ()
    least: int = 0
    until: float = 0


@dataclass(frozen=True, kw_only=True)
class Move:
    """A group's move to a server (empty: to its own pods), and how its golden requests were answered there.

    `right`: the last ones were answered right. `misses`: how many in a row were not; `message` says why the last one
    was not. `arrived_at`: since when its Service leads there; 0: it does not.
    """

    to: str = ""
    right: bool = False
    misses: int = 0
    message: str = ""
    arrived_at: float = 0


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """A rollout that failed, and why."""

    revision: str
    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class Applied:
    """What the cluster made of an applied object: the digest of what was wanted, and the version that it got."""

    digest: str
    version: str


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything measured. What belongs to a rollout is forgotten when the spec changes (`generation`).

    `waiting`: since when a revision's pods have been awaited. `answers`: why a revision's golden answers are wrong,
    empty if they are right. `verified`: the revision that was seen to answer all requests; None if this process has not
    looked yet. `restarts`: when the heartbeat replaced pods. `put_back_at`: when objects that lead traffic were last
    restored. `beats` are by pod. `moves` are the groups' moves between their own pods and shared servers.
    """

    generation: int = 0
    waiting: Mapping[str, float] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    share: Share | None = None
    hold: Hold | None = None
    given_up: GivenUp | None = None
    verified: str | None = None
    idle: Mapping[str, Idle] = field(default_factory=dict)
    beats: Mapping[str, Beat] = field(default_factory=dict)
    beaten_at: float = 0
    routes: Mapping[Route, Beat] = field(default_factory=dict)
    routes_at: float = 0
    put_back_at: float = 0
    restarts: tuple[float, ...] = ()
    traffic: TrafficReading = TrafficReading()
    latency: LatencyReading = LatencyReading()
    demand: QueueDemand = QueueDemand()
    moves: Mapping[str, Move] = field(default_factory=dict)
    applied: Mapping[Key, Applied] = field(default_factory=dict)

    def at(self, generation: int) -> "Evidence":
        """The evidence that counts for this generation of the spec."""
        if generation == self.generation:
            return self
        fresh = replace(self, generation=generation, waiting={}, answers={}, given_up=None)
        return replace(fresh, share=None, hold=None)

    def moved(self) -> "Evidence":
        """The evidence after the front's objects were written: what was measured through it no longer counts."""
        return replace(self, share=None, hold=None, verified="", routes={})

    def put_back(self, now: float) -> "Evidence":
        """The evidence after the front's objects were restored: every route has to answer again."""
        return replace(self, share=None, hold=None, routes={}, put_back_at=now)
