"""The capacity of one replica of a package, as its load test measured it."""

from pydantic import Field

from shiplift.runtime.records.base import Record


class Capacity(Record):
    """One replica, in requests per second.

    `peak_per_s` is what it completes when it always has work. `within_slo_per_s` is the highest rate of Poisson
    arrivals that it answers within the p99 limit, `p99_ms` (None: there was no limit). The difference is the headroom
    that random arrivals need. `memory_mb` is the peak memory of its server (None: it was not measured).
    """

    peak_per_s: float = Field(gt=0)
    within_slo_per_s: float = Field(gt=0)
    p99_ms: float | None = None
    memory_mb: float | None = None

    @property
    def headroom_per_s(self) -> float:
        """The headroom that Poisson arrivals need."""
        return self.peak_per_s - self.within_slo_per_s
