"""The policies that are compared: ours, KEDA on pending requests, HPA on CPU, and Knative's concurrency rule.

All use their defaults, with one exception in the rivals' favour: the HPA holds scale-down for 60 s. At 300 s they
could not come down to our cost on traces of 15 minutes.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from benchmarks.scaling.control import MAXIMUM, Hpa, Policy
from benchmarks.scaling.fleet import Fleet, Replica, Steps
from benchmarks.scaling.monitoring import Prometheus
from shiplift.runtime.serving.scaling.burst import EVERY_S, Burst, QueueReading, at_least
from shiplift.runtime.serving.scaling.signal import Sample, Scaling, decide

SCRAPE_S = 5.0
_FIRST_S = 30.0  # the simulation begins with the replicas that its first 30 s call for
_DOWN_S = 60.0
_CPU_WINDOW_S = 15.0  # metrics-server's resolution: each value is the mean of the last window


def shiplift(scaling: Scaling, burst: Burst | None = None) -> Policy:
    """Ours, as KEDA runs it: the recording rules of `queries.py` every 5 s, its query at each of the HPA's syncs.

    With `burst`, the operator looks at the servers every two seconds and adds what cannot wait for that.
    """

    def start(fleet: Fleet) -> None:
        prometheus = Prometheus(fleet.env, fleet, SCRAPE_S)
        samples: deque[Sample] = deque(maxlen=int(scaling.spread_s // SCRAPE_S) + 10)

        def record() -> None:
            increase, waiting = prometheus.increase(scaling.window_s), prometheus.pending()
            if increase is not None and waiting is not None and fleet.env.now > scaling.window_s:
                samples.append(Sample(fleet.env.now, max(0.0, sum(increase) / scaling.window_s), waiting))

        def usage() -> tuple[float, int] | None:
            size = fleet.size
            starting = size - sum(not replica.leaving for replica in fleet.ready)
            decision = decide(list(samples), fleet.env.now, size, scaling, starting=starting)
            return (decision.replicas / size, size) if decision.reason != "no metrics" else None

        fleet.env.process(prometheus.run(record))
        hpa = Hpa(fleet, usage, minimum=scaling.minimum, down_s=0)
        fleet.env.process(hpa.run())
        if burst:
            fleet.env.process(_watch(fleet, burst, hpa))

    return start


def _watch(fleet: Fleet, burst: Burst, hpa: Hpa) -> Steps:
    """The operator's looks: it reads ready servers' counters, and adds replicas if their queues can't wait."""
    readings: deque[QueueReading] = deque(maxlen=4)
    usual, until = hpa.minimum, 0.0
    while True:
        yield fleet.env.timeout(EVERY_S)
        now, ready = fleet.env.now, fleet.ready
        fleet.advance(now)
        ended, waiting = (float(sum(each)) for each in ([r.completed for r in ready], [len(r.waiting) for r in ready]))
        readings.append(QueueReading(at=now, ended=ended, waiting=waiting, ready=len(ready)))
        wanted = at_least(readings, now, fleet.size, burst)
        if wanted > fleet.size and now > _FIRST_S:
            hpa.minimum, until = wanted, now + burst.hold_s
            fleet.scale(wanted)
        elif now > until:
            hpa.minimum = usual


def keda_pending(target: float) -> Policy:
    """KEDA's prometheus trigger on the sum of pending requests, `target` per replica."""

    def start(fleet: Fleet) -> None:
        prometheus = Prometheus(fleet.env, fleet, SCRAPE_S)

        def usage() -> tuple[float, int] | None:
            pending = prometheus.pending()
            size = fleet.size
            return None if pending is None else (pending / (target * size), size)

        fleet.env.process(prometheus.run())
        fleet.env.process(Hpa(fleet, usage, down_s=_DOWN_S).run())

    return start


@dataclass(eq=False)
class CpuMetrics:
    """metrics-server: each ready replica's CPU utilization over the last window, and what the HPA makes of it."""

    fleet: Fleet
    target: float
    seen: dict[Replica, tuple[float, float]] = field(default_factory=dict)
    shares: dict[Replica, float] = field(default_factory=dict)

    def run(self) -> Steps:
        """Samples forever. A replica counts from its second sample."""
        while True:
            yield self.fleet.env.timeout(_CPU_WINDOW_S)
            self._sample(self.fleet.env.now)

    def _sample(self, now: float) -> None:
        self.fleet.advance(now)
        self.shares.clear()
        for replica in self.fleet.ready:
            at, busy = self.seen.get(replica, (now, replica.busy_s))
            if now > at:
                share = (replica.busy_s - busy) / (now - at) / self.fleet.profile.instances
                self.shares[replica] = min(1.0, share)
            self.seen[replica] = (now, replica.busy_s)

    def usage(self) -> tuple[float, int] | None:
        """The ratio of utilization over target. Pods without metrics count as 0 % upwards and 100 % downwards."""
        measured = [share for replica, share in self.shares.items() if not replica.leaving]
        if not measured:
            return None
        size, ratio = self.fleet.size, sum(measured) / len(measured) / self.target
        missing = size - len(measured)
        if not missing:
            return ratio, size
        if ratio > 1:  # they may only dampen, not turn the direction
            return max(1.0, sum(measured) / size / self.target), size
        return min(1.0, (ratio * len(measured) + missing) / size), size


def hpa_cpu(target: float) -> Policy:
    """HPA on CPU at a target utilization from 0 to 1."""

    def start(fleet: Fleet) -> None:
        metrics = CpuMetrics(fleet, target)
        fleet.env.process(metrics.run())
        fleet.env.process(Hpa(fleet, metrics.usage, down_s=_DOWN_S).run())

    return start


@dataclass(eq=False)
class Knative:
    """The Knative Pod Autoscaler: concurrency per pod over 60 s, over 6 s in panic, every 2 s, at its defaults."""

    fleet: Fleet
    target: float
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    panic_since: float | None = None
    panic_most: int = 0

    def run(self) -> Steps:
        """Samples the concurrency every second and decides every other."""
        tick = 0
        while True:
            yield self.fleet.env.timeout(1.0)
            self.fleet.advance(self.fleet.env.now)
            self.samples.append(float(sum(replica.in_flight for replica in self.fleet.ready)))
            tick += 1
            if tick % 2 == 0 and len(self.samples) == self.samples.maxlen:
                self._decide()

    def _decide(self) -> None:
        recent = list(self.samples)
        now, ready = self.fleet.env.now, max(1, len(self.fleet.ready))
        least, most = ready // 2, 1000 * ready
        stable = min(max(math.ceil(sum(recent) / len(recent) / self.target), least), most)
        panic = min(max(math.ceil(sum(recent[-6:]) / len(recent[-6:]) / self.target), least), most)
        if panic >= 2 * ready:
            self.panic_most = panic if self.panic_since is None else max(self.panic_most, panic)
            self.panic_since = now
        elif self.panic_since is not None and now > self.panic_since + 60:
            self.panic_since, self.panic_most = None, 0
        wanted = stable
        if self.panic_since is not None:  # never down in panic
            self.panic_most = wanted = max(self.panic_most, panic, stable)
        wanted = min(max(wanted, 1), MAXIMUM)
        if wanted != self.fleet.size:
            self.fleet.scale(wanted)


def knative(target: float) -> Policy:
    """Knative's rule with a target concurrency per pod (what is left of a hard limit after its 70 %)."""

    def start(fleet: Fleet) -> None:
        fleet.env.process(Knative(fleet, target).run())

    return start
