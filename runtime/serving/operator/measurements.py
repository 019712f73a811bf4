"""What the operator can measure of a service, and how each result becomes evidence."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shiplift.runtime.serving.operator.evidence import (
    Beat,
    Counters,
    Evidence,
    Hold,
    Idle,
    Move,
    Protocol,
    Route,
    Share,
    TrafficSample,
    Weights,
)
from shiplift.runtime.serving.scaling.burst import QueueReading

_READINGS = 4  # of the queues; the rule needs three


@dataclass(frozen=True, kw_only=True)
class CheckAnswers:
    """Golden requests to the Service of each group of a revision: fills `Evidence.answers`."""

    revision: str


@dataclass(frozen=True, kw_only=True)
class AskFront:
    """A number of requests through the front, on every protocol: fills `Evidence.share`."""

    target: str
    weights: Weights
    requests: int


@dataclass(frozen=True, kw_only=True)
class ReadCounters:
    """The counters of revisions' pods: fills `Evidence.hold`, or with `idle` `Evidence.idle`."""

    revisions: tuple[str, ...]
    idle: bool = False


@dataclass(frozen=True, kw_only=True)
class AskPods:
    """A golden request to each of these pods of a group, by name and address: fills `Evidence.beats`."""

    revision: str
    group: str
    pods: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class AskRoutes:
    """One request on every route, which one of these versions should answer: fills `Evidence.routes`.

    `revision` is the revision whose golden requests are sent. With `asleep`, the activator should answer, so that no
    request reaches a pod. `patience_s`: for so long, a route that does not answer is asked again, even while a request
    hangs.
    """

    revision: str
    versions: tuple[int, ...]
    asleep: bool = False
    patience_s: float = 0


@dataclass(frozen=True, kw_only=True)
class ReadTraffic:
    """The counters of a revision's pods: fills `Evidence.traffic`. `own`: the requests that the operator just sent."""

    revision: str
    pods: int
    own: int = 0


@dataclass(frozen=True, kw_only=True)
class ReadLatency:
    """The servers' own 99th percentile: fills `Evidence.latency`. `own`: the most requests that the operator sent.

    `beat` are the requests of one heartbeat, and `interval_s` the pause between two (0: there is none).
    """

    revision: str
    own: int
    beat: int = 0
    interval_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReadDemand:
    """How many requests ended, and how many wait, at a revision's pods: fills `Evidence.demand`."""

    revision: str


@dataclass(frozen=True, kw_only=True)
class CheckServer:
    """Golden requests to the pods that a group moves to (on server `to`; empty: its own): fills `Evidence.moves`."""

    revision: str
    group: str
    to: str
    addresses: tuple[str, ...]


Measurement = (
    CheckAnswers | AskFront | ReadCounters | AskPods | AskRoutes | ReadTraffic | ReadLatency | ReadDemand | CheckServer
)


def with_answers(evidence: Evidence, revision: str, wrong: str) -> Evidence:
    """The evidence after golden requests; `wrong` is empty if they were answered right."""
    return replace(evidence, answers={**evidence.answers, revision: wrong})


def with_move(evidence: Evidence, ask: CheckServer, wrong: str) -> Evidence:
    """The evidence after golden requests to a group's new place; `wrong` is empty if they were answered right."""
    before = evidence.moves.get(ask.group, Move())
    before = before if before.to == ask.to else Move(to=ask.to)
    move = replace(before, right=not wrong, misses=before.misses + 1 if wrong else 0, message=wrong)
    return replace(evidence, moves={**evidence.moves, ask.group: move})


def with_share(
    evidence: Evidence, ask: AskFront, samples: Mapping[Protocol, TrafficSample], grew: Mapping[str, int], now: float
) -> Evidence:
    """The evidence after requests through the front, of which each revision's pods counted `grew`."""
    share = evidence.share
    if share is None or share.weights != ask.weights:
        share = Share(weights=ask.weights, since=now)
    share = replace(share, tries=share.tries + 1, tried_at=now, samples=samples, grew=grew)
    return replace(evidence, share=share)


def with_counters(evidence: Evidence, ask: ReadCounters, counters: Mapping[str, Counters], now: float) -> Evidence:
    """The evidence after reading the counters of revisions' pods."""
    if ask.idle:
        return replace(evidence, idle={name: _idle(evidence, name, counters[name], now) for name in ask.revisions})
    hold = evidence.hold
    if hold is None:
        return evidence
    # A pod that is seen for the first time starts from its present count.
    first = {name: {**counters[name], **hold.first.get(name, {})} for name in counters}
    since = hold.since if hold.first else now
    return replace(evidence, hold=Hold(weights=hold.weights, since=since, first=first, last=counters))


def with_beat(evidence: Evidence, pod: str, wrong: bool, message: str) -> Evidence:
    """The evidence after a golden request to a pod; an empty message means that it was answered right."""
    misses = evidence.beats.get(pod, Beat()).misses + 1 if message else 0
    return replace(evidence, beats={**evidence.beats, pod: Beat(misses=misses, wrong=wrong, message=message)})


def with_routes(evidence: Evidence, messages: Mapping[Route, str]) -> Evidence:
    """The evidence after a request on each route; an empty message means that a right version answered."""
    routes = {
        route: Beat(misses=evidence.routes.get(route, Beat()).misses + 1 if message else 0, message=message)
        for route, message in messages.items()
    }
    return replace(evidence, routes=routes)


def with_traffic(evidence: Evidence, ask: ReadTraffic, counters: Counters, now: float) -> Evidence:
    """The evidence after reading the counters of a revision's pods.

    In doubt, a request counts as a client's: a service that seems idle by mistake would lose its pods.
    """
    before = evidence.traffic.counters
    if len(counters) < ask.pods:
        return replace(evidence, traffic=replace(evidence.traffic, counters=None))
    same = before is not None and before.keys() == counters.keys()
    grown = sum(abs(counters[pod].total - before[pod].total) for pod in counters) if before and same else 0
    idle = same and grown <= ask.own
    seen_at = evidence.traffic.seen_at if idle else now
    return replace(evidence, traffic=replace(evidence.traffic, counters=counters, seen_at=seen_at, read_at=now))


def with_demand(evidence: Evidence, reading: QueueReading) -> Evidence:
    """The evidence after reading the queues of a revision's pods."""
    readings = (*evidence.demand.readings[-_READINGS + 1 :], reading)
    return replace(evidence, demand=replace(evidence.demand, readings=readings))


def _idle(evidence: Evidence, name: str, counters: Counters, now: float) -> Idle:
    before = evidence.idle.get(name)
    if before is None:
        return Idle(since=now, changed_at=now, counters=counters)
    changed = bool(before.counters) and counters != before.counters
    return replace(before, counters=counters, changed_at=now if changed else before.changed_at)
