"""Prometheus as far as the rules use it: scrapes of each replica, and what changed between them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from benchmarks.scaling.fleet import Fleet, Replica, Steps

_KEPT_S = 120.0


@dataclass(frozen=True, slots=True)
class Scrape:
    """The result of one scrape of one replica: Triton's counter of successes, and its gauge of pending requests."""

    at: float
    success: int
    pending: int


@dataclass(eq=False)
class Prometheus:
    """Scrapes every ready replica. A starting one has no endpoint yet; one that left is scraped until it ends."""

    env: simpy.Environment
    fleet: Fleet
    interval_s: float
    series: dict[Replica, deque[Scrape]] = field(default_factory=dict)
    targets: int = 0

    def run(self, then: Callable[[], None] = lambda: None) -> Steps:
        """Scrapes forever, and evaluates rules after each scrape."""
        while True:
            yield self.env.timeout(self.interval_s)
            self.scrape()
            then()

    def scrape(self) -> None:
        """Scrapes all replicas now."""
        now = self.env.now
        self.fleet.advance(now)
        self.targets = self.fleet.size
        for replica in self.fleet.replicas:
            if replica.ready:
                sample = Scrape(now, replica.completed, len(replica.waiting))
                self.series.setdefault(replica, deque()).append(sample)
        for replica, samples in list(self.series.items()):
            while samples and samples[0].at < now - _KEPT_S:
                samples.popleft()
            if not samples:
                del self.series[replica]

    def increase(self, window_s: float) -> tuple[float, float] | None:
        """What ended, and by how much the queues grew, between the last scrape and the one `window_s` before.

        As in the query: over the replicas that the last scrape saw; a new one began at 0. None if it saw no replica.
        """
        ended = grown = 0.0
        seen = False
        for samples in self.series.values():
            last = samples[-1]
            if last.at < self.env.now:
                continue
            before = next((s for s in reversed(samples) if s.at <= last.at - window_s), None)
            ended += last.success - (before.success if before else 0)
            grown += last.pending - (before.pending if before else 0)
            seen = True
        return (ended, grown) if seen else None

    def pending(self) -> float | None:
        """`sum(nv_inference_pending_request_count)`: the latest scrapes of the replicas that still exist."""
        latest = [samples[-1].pending for replica, samples in self.series.items() if replica.ended is None]
        return float(sum(latest)) if latest else None
