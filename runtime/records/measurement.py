"""Measurements: trials of a search, points of a load test, comparisons."""

from typing import Literal

from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.base import Record, volatile
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.precision import Variant
from shiplift.runtime.records.proof import Counterexample
from shiplift.runtime.records.serving import ServingConfig

WINDOWS = 3  # of a run of the load generator; they are compared with each other
_SHOWN = 400  # characters of a row in a sentence


class Timings(Record):
    """A server's counters for a model: requests, executions and their rows; ms that requests queued and computed.

    All are sums since the model was loaded.
    """

    requests: int = 0
    executions: int = 0
    rows: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0

    def since(self, before: "Timings") -> "Timings":
        """What was added since an earlier reading."""
        return Timings(**{name: getattr(self, name) - getattr(before, name) for name in type(self).model_fields})


class MemberLoad(Record):
    """A pipeline's member under the load of the whole pipeline, on average.

    For each request to the pipeline it got `requests_per_request`, each of which waited `queue_ms` and took
    `compute_ms`; it computed `batch` rows at a time.
    """

    name: str
    model: str
    version: int
    requests_per_request: float
    batch: float
    queue_ms: float
    compute_ms: float


class Counts(Record):
    """How many requests for a model a server has answered and failed since it loaded the model."""

    answered: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """All requests."""
        return self.answered + self.failed


class Trial(Variant):
    """One measured serving configuration.

    `window_ms` is the length of a measurement window; short ones only select the finalists. `pruned`: it exceeded its
    limits and was already slower than the best, so no lower concurrency was tried. `disturbed_cores` is how many cores
    other processes used meanwhile, if that was enough to matter. `spread_percent` is the largest deviation of a
    window's throughput from the mean of the windows (0: unknown).
    """

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
    spread_percent: float = 0.0
    pruned: bool = False
    cost_per_million: float | None = None
    disturbed_cores: float = 0.0


class LengthsSent(Record):
    """The lengths of the requests that tuning sent, and how much of the server's computation was padding, in percent.

    `one_length_percent` is what it would be if every request had the length of the longest one.
    """

    requests: int
    shortest: int
    median: int
    longest: int
    buckets: tuple[int, ...]
    padding_percent: float
    one_length_percent: float


class Differing(Variant):
    """A package that was left out because the server answered a question differently than the original.

    `request` is that row as the body of an inference request, empty if it is long or no JSON. `repeat` is the command
    that asks the row again, among those that were asked with it.
    """

    config: ServingConfig
    found: Counterexample
    request: str = ""
    repeat: str = ""

    def __str__(self) -> str:
        """In one sentence, for errors and reports."""
        return f"{self.described}: {self.found}"

    @property
    def told(self) -> str:
        """The same with the row, if it is short, and the command."""
        row = f"; the row is {self.request}" if 0 < len(self.request) <= _SHOWN else ""
        return f"{self}{row}; repeat it by `{self.repeat}`" if self.repeat else f"{self}{row}"


class Tuned(Record):
    """The package with the best configuration found, and the measured trials: all of them, or the best few of many.

    `configurations` is the number of distinct ones that were measured. `raw` holds every trial as gzipped JSON lines.
    `exhausted`: the search finished before its time ran out. A request that waited for `late_after_ms` lets others go
    first (0: requests are answered in turn). `lengths` is set if the spec asks for buckets of lengths. `differing` are
    packages that were faster, but answered differently. `idle` says why `best` doesn't use all cores, if it doesn't.
    `knee` says what was given up for a lower latency where the spec has no `slo.p99_ms`. `untried` says which packages
    were not tried, and why. `disturbed` is how many of all trials other processes disturbed, even when they were
    repeated.
    """

    target: str
    package: Package
    best: Trial = volatile()
    trials: tuple[Trial, ...] = volatile(())
    configurations: int = volatile(0)
    raw: Artifact | None = volatile(None)
    exhausted: bool = volatile(default=False)
    late_after_ms: float = volatile(0.0)
    lengths: LengthsSent | None = volatile(None)
    differing: tuple[Differing, ...] = volatile(())
    idle: str = volatile("")
    knee: str = volatile("")
    untried: tuple[str, ...] = volatile(())
    disturbed: int = volatile(0)

    def remark(self) -> str:
        """Why cores are left idle and packages were not tried, if so."""
        return "; ".join(filter(None, (self.idle, *self.untried)))


class Streaming(Record):
    """What users of streamed answers wait for: the first token, and the time between tokens, at the client.

    `tokens_per_s` counts all clients together.
    """

    ttft_p50_ms: float
    ttft_p99_ms: float
    inter_token_p50_ms: float
    inter_token_p99_ms: float
    tokens_per_s: float


class LoadPoint(Record):
    """One point of a load test: a concurrency or an arrival rate.

    Latencies are per request, measured at the client; queue and compute times are the server's. `spread_percent` is the
    largest deviation of a window's throughput from the mean of all windows.

    Closed loop: `concurrency` requests are always in flight. Open loop: requests arrive at `rate_per_s` (0: closed
    loop), however many are in flight, and `concurrency` is 0. `sent_per_s` is the rate that the client achieved, and
    `client_cores` how many cores it used. `client_saturated`: the client, not the server, was the bottleneck.
    `streaming` is set for streamed answers; the latencies above are then those of the last piece.
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
    streaming: Streaming | None = None


class Comparison(Record):
    """Champion and challenger, measured in alternation on one server.

    Ratios are challenger over champion, one per round. The `noise_` ratios are the champion over itself, measured
    first: they show how much the machine varies when nothing differs. `looks` is the number of interim looks that the
    test could have taken before it stopped; its intervals allow for them.
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
        """The number of rounds."""
        return len(self.throughput_ratios)


class LoadReport(Record):
    """How the staging server performed under load. `failures` counts requests that it refused or failed.

    `points` are the challenger's in closed loop, `champion_points` the champion's, `open_points` the challenger's in
    open loop. `knee` is the concurrency beyond which more latency gains no throughput. `max_rate_per_s` is the highest
    arrival rate found within a p99 of `limit_ms` (None: not searched, or no limit). `uncompared` says why there is no
    `comparison`. `raw` holds every measurement window as gzipped JSON lines, `table` the load generator's own figures
    as CSV. `target` is the one whose package was measured, `others` are the reports of the targets that serve with it.
    `members` are a pipeline's, over all points in closed loop.
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
    limit_ms: float | None = None
    target: str = ""
    others: tuple["LoadReport", ...] = ()
    members: tuple[MemberLoad, ...] = ()
    raw: Artifact | None = volatile(None)
    table: Artifact | None = volatile(None)
