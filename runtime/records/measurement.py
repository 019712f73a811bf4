"""What was measured: trials of a search, points of a load test, comparisons."""

from typing import Literal

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Package, ServingConfig


class Trial(Record):
    """One measured serving configuration. `window_ms` is how long a window was: coarse ones choose finalists.

    `pruned`: it was over its limits and already slower than the best, so no lower concurrency was tried.
    """

    precision: Precision
    config: ServingConfig
    concurrency: int
    throughput_per_s: float
    p50_ms: float
    p99_ms: float
    memory_mb: float
    within_slo: bool
    error: str = ""
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    window_ms: int = 0
    pruned: bool = False
    cost_per_million: float | None = None


class Tuned(Record):
    """The package with the best configuration found, and trials on the way: all of them, or the best few of many.

    `configurations` is how many different ones were measured, `raw` every trial: gzipped JSON lines.
    """

    target: str
    package: Package
    best: Trial = volatile()
    trials: tuple[Trial, ...] = volatile(())
    configurations: int = volatile(0)
    raw: Artifact | None = volatile(None)
    exhausted: bool = volatile(default=False)


class LoadPoint(Record):
    """One concurrency, or one rate, of a load test. Latencies are per request, at the client; queue and compute at

    the server. `spread_percent` is how far a window's throughput was from their mean, at most.

    Closed loop: `concurrency` requests are always under way. Open loop: `rate_per_s` is asked for (0: closed loop),
    whatever is still under way, and `concurrency` is 0. `sent_per_s` is what the client managed to send, and
    `client_cores` what it needed for that. `client_saturated`: the client, not the server, was the limit.
    """

    concurrency: int
    throughput_per_s: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    queue_ms: float
    compute_ms: float
    stable: bool = True
    spread_percent: float = 0.0
    rate_per_s: float = 0.0
    sent_per_s: float = 0.0
    client_cores: float = 0.0
    client_saturated: bool = False


class Comparison(Record):
    """Champion and challenger measured in alternation on one server. Ratios are challenger over champion, one a round.

    The `noise_` ratios are of the champion over itself, measured first: what the machine alone makes of no difference.
    `looks` is how often the test may have looked at its rounds before it stopped; its intervals allow for that.
    """

    version: int
    concurrency: int
    throughput_ratios: tuple[float, ...]
    p99_ratios: tuple[float, ...]
    noise_throughput_ratios: tuple[float, ...] = ()
    noise_p99_ratios: tuple[float, ...] = ()
    looks: int = 1

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return len(self.throughput_ratios)


class LoadReport(Record):
    """What the staging server did under load; `failures` are requests it refused or answered with an error.

    `points` are the challenger's closed loop, `champion_points` the champion's, `open_points` the challenger under
    arrivals that do not wait for answers. `knee` is the concurrency beyond which latency buys no more throughput.
    `max_rate_per_s` is the highest arrival rate found within the p99 limit (None: not searched for, or no limit).
    `uncompared` is why there is no `comparison`. `raw` is every window as measured: gzipped JSON lines.
    """

    points: tuple[LoadPoint, ...]
    failures: int
    memory_mb: float | None
    protocol: Literal["grpc", "http"]
    comparison: Comparison | None = None
    uncompared: str = ""
    notes: tuple[str, ...] = ()
    champion_points: tuple[LoadPoint, ...] = ()
    open_points: tuple[LoadPoint, ...] = ()
    knee: int = 0
    max_rate_per_s: float | None = None
    raw: Artifact | None = volatile(None)
