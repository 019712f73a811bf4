"""The profile of a simulated replica: batch service times, start-up and limits, as measured on a real server.

The default is ResNet-50 in int8 on two cores, as `make bench` measured it (`benchmarks/results/serving.json`). A file
of the same form, from any load test, replaces it.
"""

import itertools
import json
from pathlib import Path

import numpy as np
from pydantic import Field

from shiplift.runtime.planning.profiles import execution_seconds
from shiplift.runtime.records.base import Record

DEFAULT = Path(__file__).parent / "resnet50.json"


class Profile(Record):
    """One replica. `batch_ms` is the execution time by batch size, interpolated between the sizes measured.

    `spread` is sigma of the lognormal factor on each execution; if `measured_factors` were measured, those are drawn
    instead. `start_s` is the time from a pod's creation until it is ready; `drain_s` how long it stays after it left
    the route, at least; both are paid for. A request that waited for `late_after_ms` lets others go first
    (`runtime/search/lateness.py`; 0: requests are answered in turn).
    """

    name: str
    measured: str
    batch_ms: dict[float, float]
    spread: float = Field(ge=0)
    max_batch: int = Field(ge=1)
    instances: int = Field(1, ge=1)
    slo_ms: float = Field(gt=0)
    start_s: float = Field(12, ge=0)
    drain_s: float = Field(5, ge=0)
    late_after_ms: float = Field(0, ge=0)
    measured_factors: tuple[float, ...] = ()

    def seconds(self) -> list[float]:
        """The execution time in s of each batch size, from 0 to `max_batch`."""
        return execution_seconds(self.batch_ms, self.max_batch)

    def factors(self, seed: int, count: int = 65536) -> "itertools.cycle[float]":
        """Random factors on the execution times, with mean 1."""
        if self.measured_factors:
            return itertools.cycle(np.random.default_rng(seed).choice(self.measured_factors, count).tolist())
        if not self.spread:
            return itertools.cycle([1.0])
        drawn = np.random.default_rng(seed).lognormal(-(self.spread**2) / 2, self.spread, count)
        return itertools.cycle(drawn.tolist())

    @property
    def peak_per_s(self) -> float:
        """The most requests per second, whatever their latency."""
        times = self.seconds()
        return self.instances * max(size / times[size] for size in range(1, self.max_batch + 1))


def load(path: Path) -> Profile:
    """Reads a profile."""
    return Profile.model_validate(json.loads(path.read_text()))
