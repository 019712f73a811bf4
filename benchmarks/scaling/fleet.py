"""A fleet of replicas that serve a trace: every request is simulated, batch by batch.

SimPy keeps the time of what controls the fleet (pods that start, scrapes, the autoscaler). Requests and batches have an
event loop of their own, which catches up whenever SimPy's clock is read: one SimPy event per request would take ten
times as long and change no result.
"""

import heapq
import random
from bisect import bisect_left
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from benchmarks.scaling.profile import Profile

Floats = npt.NDArray[np.float64]
Steps = Generator[simpy.Event, Any, None]
"""A process of SimPy's."""


@dataclass(slots=True, eq=False)
class Replica:
    """A pod, with what its metrics endpoint would tell: Triton's counters are cumulative and move on completion."""

    created: float
    idle: int
    ready: bool = False
    leaving: bool = False
    ended: float | None = None
    waiting: list[int] = field(default_factory=list)
    in_flight: int = 0
    completed: int = 0
    queued_s: float = 0.0
    busy_s: float = 0.0


class Fleet:
    """Replicas behind a gateway that sends each request to the less loaded of two at random (Envoy's LEAST_REQUEST)."""

    def __init__(
        self, env: simpy.Environment, profile: Profile, arrivals: Floats, replicas: int, seed: int = 0
    ) -> None:
        self.env, self.profile = env, profile
        self.replicas: list[Replica] = []
        self.arrivals: list[float] = [*arrivals.tolist(), float("inf")]
        self.latencies = [float("nan")] * len(arrivals)
        self.paid_s = 0.0
        self._seconds, self._factors = profile.seconds(), profile.factors(seed)
        self._next = 0
        self._running: list[tuple[float, int, Replica, list[int]]] = []
        self._order = 0
        self._ready: list[Replica] = []
        self._held: list[int] = []
        self._random = random.Random(seed).random
        for _ in range(replicas):
            self._add(ready=True)

    # --- control ---------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Pods that are wanted: starting or ready."""
        return sum(not replica.leaving for replica in self.replicas)

    @property
    def ready(self) -> list[Replica]:
        """The replicas in the route."""
        return self._ready

    def scale(self, wanted: int) -> None:
        """Starts or removes pods; as a ReplicaSet does, those not ready go first, then the youngest."""
        self.advance(self.env.now)
        for _ in range(wanted - self.size):
            self._add(ready=False)
        staying = sorted((r for r in self.replicas if not r.leaving), key=lambda r: (r.ready, -r.created))
        for replica in staying[: max(0, self.size - wanted)]:
            self._remove(replica)

    def finish(self) -> None:
        """Serves what is left after the trace and pays for the replicas up to its end."""
        end = self.env.now
        self.advance(float("inf"))
        for replica in self.replicas:
            self.paid_s += (min(replica.ended, end) if replica.ended is not None else end) - replica.created

    def _add(self, *, ready: bool) -> None:
        replica = Replica(created=self.env.now, idle=self.profile.instances)
        self.replicas.append(replica)
        if ready:
            self._admit(replica)
        else:
            self.env.process(self._start(replica))

    def _start(self, replica: Replica) -> Steps:
        yield self.env.timeout(self.profile.start_s)
        if not replica.leaving:
            self.advance(self.env.now)
            self._admit(replica)

    def _admit(self, replica: Replica) -> None:
        replica.ready = True
        self._ready.append(replica)
        held, self._held = self._held, []
        for request in held:
            self._enqueue(replica, request, self.env.now)

    def _remove(self, replica: Replica) -> None:
        replica.leaving = True
        if replica.ready:
            self._ready.remove(replica)
            self.env.process(self._drain(replica))
        else:
            self._end(replica)

    def _drain(self, replica: Replica) -> Steps:
        yield self.env.timeout(self.profile.drain_s)
        self.advance(self.env.now)
        while replica.in_flight:
            yield self.env.timeout(0.5)
            self.advance(self.env.now)
        self._end(replica)

    def _end(self, replica: Replica) -> None:
        replica.ended = self.env.now
        self.paid_s += self.env.now - replica.created
        self.replicas.remove(replica)

    # --- requests --------------------------------------------------------------------------------------------------

    def advance(self, until: float) -> None:
        """Serves everything that happens up to this time."""
        arrivals, running, route = self.arrivals, self._running, self._route
        request, end = self._next, float("inf")
        while True:
            arrival = arrivals[request]
            if running and running[0][0] <= arrival:
                if running[0][0] > until:
                    break
                self._complete()
            elif arrival > until or arrival == end:
                break
            else:
                route(request, arrival)
                request += 1
        self._next = request

    def _route(self, request: int, now: float) -> None:
        ready = self._ready
        if not ready:
            self._held.append(request)
            return
        count, draw = len(ready), self._random
        replica = ready[int(draw() * count)]
        if count > 1:
            other = ready[int(draw() * count)]
            if other.in_flight < replica.in_flight:
                replica = other
        self._enqueue(replica, request, now)

    def _enqueue(self, replica: Replica, request: int, now: float) -> None:
        replica.in_flight += 1
        replica.waiting.append(request)
        if replica.idle:
            self._execute(replica, now)

    def _execute(self, replica: Replica, now: float) -> None:
        """Starts a batch of whatever waits: dynamic batching without a queue delay."""
        batch = self._batch(replica, now)
        took = self._seconds[len(batch)] * next(self._factors)
        replica.idle -= 1
        replica.busy_s += took
        replica.queued_s += now * len(batch) - sum([self.arrivals[request] for request in batch])
        self._order += 1
        heapq.heappush(self._running, (now + took, self._order, replica, batch))

    def _batch(self, replica: Replica, now: float) -> list[int]:
        """Takes the next requests from the queue: in turn, or first those that are not late yet (Triton's DELAY)."""
        waiting, most = replica.waiting, self.profile.max_batch
        if len(waiting) <= most or not self.profile.late_after_ms:
            replica.waiting = waiting[most:]
            return waiting[:most]
        late = bisect_left(waiting, now - self.profile.late_after_ms / 1000, key=self.arrivals.__getitem__)
        fresh = min(most, len(waiting) - late)
        again = most - fresh
        replica.waiting = [*waiting[again:late], *waiting[late + fresh :]]
        return [*waiting[late : late + fresh], *waiting[:again]]

    def _complete(self) -> None:
        now, _, replica, batch = heapq.heappop(self._running)
        arrivals, latencies = self.arrivals, self.latencies
        for request in batch:
            latencies[request] = now - arrivals[request]
        replica.in_flight -= len(batch)
        replica.completed += len(batch)
        replica.idle += 1
        if replica.waiting:
            self._execute(replica, now)
