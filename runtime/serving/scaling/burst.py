"""The fast half of the rule: how many replicas a queue calls for right now, before the autoscaler has seen it.

KEDA and the HPA learn of a sudden step from metrics 15 to 35 s later. By then a queue has grown that keeps requests
late for as long again. The operator reads the servers' own counters every few seconds, and starts pods as soon as more
requests wait than can be answered in time. It raises the autoscaler's minimum for `hold_s`, and never removes a pod:
the autoscaler does that, and its signal remembers for a while what was needed (`signal.py`).

    replicas = (arrivals + waiting / drain_s) / peak_per_s, rounded up, if waiting / (ready x peak_per_s) > patience_s

The condition compares the expected wait with the patience: a queue of `waiting` requests drains at the servers' peak
rate. The formula asks for enough servers to keep up with the arrivals and to empty the queue within `drain_s`.

A short burst that the queue absorbs starts no pod: its requests wait less than `patience_s`. As in Knative's panic
mode, a single short window decides. Unlike there, the waiting time decides, not the number of requests.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capacity import Capacity

EVERY_S = 2.0  # between two readings
FRESH_S = 3 * EVERY_S
_PATIENCE = 0.5  # of the limit: a request that waits longer is late, or nearly so
_WINDOW = 2  # readings that arrivals are averaged over: one is noisy, and more react late


class QueueReading(NamedTuple):
    """All servers of a service at `at` (s): requests ended so far, those waiting, and the servers that take requests.

    `ended` sums the counters of the servers that run now; a new server starts at 0.
    """

    at: float
    ended: float
    waiting: float
    ready: int


class Burst(Record):
    """The settings of the rule; times in s. `patience_s` is how long requests may wait before pods are started."""

    capacity: Capacity
    maximum: int
    patience_s: float = 0.2
    drain_s: float = 10.0
    hold_s: float = 30.0


def burst_of(capacity: Capacity, maximum: int, p99_ms: float | None = None) -> Burst:
    """The rule for a limit of the 99th percentile, by default the one that the capacity was measured within."""
    limit_ms = p99_ms or capacity.p99_ms
    if limit_ms is None:
        return Burst(capacity=capacity, maximum=maximum)
    return Burst(capacity=capacity, maximum=maximum, patience_s=_PATIENCE * limit_ms / 1000)


def at_least(readings: Sequence[QueueReading], now: float, current: int, burst: Burst) -> int:
    """The least number of replicas to run, never less than the `current` one; readings are in order of time."""
    recent = [reading for reading in readings if now - reading.at <= FRESH_S][-_WINDOW - 1 :]
    if len(recent) < _WINDOW or not recent[-1].ready:
        return current
    first, last = recent[0], recent[-1]
    power = burst.capacity.peak_per_s
    if last.at <= first.at or last.waiting <= burst.patience_s * power * last.ready:
        return current
    ended = max(0.0, last.ended - first.ended)  # negative if a server went away, and its count with it
    arrivals = max(0.0, ended + last.waiting - first.waiting) / (last.at - first.at)  # what came has ended or waits
    needed = math.ceil((arrivals + last.waiting / burst.drain_s) / power - 1e-9)  # rounding errors add no replica
    doubled = max(2 * current, current + 4)  # as fast as an HPA may grow
    return max(current, min(needed, burst.maximum, doubled))
