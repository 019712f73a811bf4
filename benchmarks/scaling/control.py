"""Turns a rule's desired scale into replicas: the HPA controller as documented, and Knative's own.

HPA: every 15 s, at most the change that the policies allow, nothing within the tolerance of 10 %, downwards only to the
highest recommendation of the stabilization window. KEDA feeds an HPA, so both KEDA policies and ours run through it.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import simpy

from benchmarks.scaling.fleet import Fleet, Steps
from benchmarks.scaling.profile import Profile
from benchmarks.scaling.traces import Trace

SYNC_S = 15.0
TOLERANCE = 0.1
MAXIMUM = 16  # replicas: half as many again as the clairvoyant's most
_FIRST_S = 39.0  # the first sync: rules need a history; syncs are then 4 s after a scrape

Usage = Callable[[], "tuple[float, int] | None"]
"""Reads a metric: the ratio of usage over target, and the replicas that it is about; None: no metric."""


@dataclass(eq=False)
class Hpa:
    """The HorizontalPodAutoscaler's controller. `down_s` is scaleDown's stabilization window."""

    fleet: Fleet
    usage: Usage
    minimum: int = 1
    down_s: float = 300.0
    recommended: deque[tuple[float, int]] = field(default_factory=deque)

    def run(self) -> Steps:
        """Synchronizes forever."""
        yield self.fleet.env.timeout(_FIRST_S)
        while True:
            self.sync()
            yield self.fleet.env.timeout(SYNC_S)

    def sync(self) -> None:
        """Reads the metric once and scales."""
        read = self.usage()
        if read is None:  # no metric: the controller changes nothing
            return
        current, now = self.fleet.size, self.fleet.env.now
        ratio, of = read
        wanted = current if abs(ratio - 1) <= TOLERANCE else math.ceil(ratio * of - 1e-9)
        wanted = min(max(wanted, self.minimum), MAXIMUM)
        self.recommended.append((now, wanted))
        while self.recommended[0][0] < now - self.down_s:
            self.recommended.popleft()
        if wanted < current:
            wanted = min(current, max(count for _, count in self.recommended))
        wanted = min(wanted, max(2 * current, current + 4))  # scaleUp's default policies, the larger of both
        if wanted != current:
            self.fleet.scale(wanted)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a policy served a trace."""

    requests: int
    missed: int
    replica_s: float
    p99_ms: float
    most: int


Policy = Callable[[Fleet], None]
"""Starts the processes of a policy on a fleet's clock."""


def serve(trace: Trace, profile: Profile, policy: Policy, *, start: int, seed: int = 0) -> Outcome:
    """Serves a trace from `start` ready replicas under a policy."""
    env = simpy.Environment()
    fleet = Fleet(env, profile, trace.arrivals, start, seed)
    policy(fleet)
    most = 0
    for until in np.arange(SYNC_S, trace.duration_s, SYNC_S):
        env.run(until=until)
        most = max(most, fleet.size)
    env.run(until=trace.duration_s)
    fleet.finish()
    latencies = np.asarray(fleet.latencies) * 1000
    return Outcome(
        requests=len(latencies),
        missed=int(np.sum(latencies > profile.slo_ms)),
        replica_s=fleet.paid_s,
        p99_ms=float(np.percentile(latencies, 99)),
        most=most,
    )
