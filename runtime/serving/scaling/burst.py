"""The fast half of the rule: how many replicas a queue calls for right now, whatever the autoscaler has seen yet.

KEDA and the HPA learn of a sudden step from metrics 15 to 35 s later. By then a queue has grown that keeps requests
late for as long again. The operator reads the servers' own counters every few seconds, and starts pods as soon as more
requests wait than can be answered in time. It raises the autoscaler's minimum to that for `hold_s`, and takes no pod
away: that is the autoscaler's, whose signal holds what was needed for a while (`signal.py`).

    replicas = (arrivals + waiting / drain_s) / peak_per_s, rounded up, if waiting / (ready x peak_per_s) > patience_s

Short bursts that a queue can carry start nothing: their requests wait less than `patience_s`. As in Knative's panic
mode, a single short window decides; unlike there, what decides is the time that requests wait, not how many they are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from shiplift.runtime.records.base import Record
from shiplift.runtime.records.capacity import Capacity

EVERY_S = 2.0  # between two readings
FRESH_S = 3 * EVERY_S
_PATIENCE = 0.5  # of the limit: who waits longer is late, or nearly
_WINDOW = 2  # readings that arrivals are averaged over: one is noisy, more are late


class QueueReading(NamedTuple):
    """All servers of a service at `at` (s): requests ended so far, those waiting, and the servers that take requests.

    Ended requests are of the servers that are there: a server that is new begins at 0.
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
    """The replicas that should at least be there, never fewer than the `current` ones; readings in order of time."""
    recent = [reading for reading in readings if now - reading.at <= FRESH_S][-_WINDOW - 1 :]
    if len(recent) < _WINDOW or not recent[-1].ready:
        return current
    first, last = recent[0], recent[-1]
    power = burst.capacity.peak_per_s
    if last.at <= first.at or last.waiting <= burst.patience_s * power * last.ready:
        return current
    ended = max(0.0, last.ended - first.ended)  # a server that is gone took its count along
    arrivals = max(0.0, ended + last.waiting - first.waiting) / (last.at - first.at)
    needed = math.ceil((arrivals + last.waiting / burst.drain_s) / power - 1e-9)
    doubled = max(2 * current, current + 4)  # as fast as an HPA may grow
    return max(current, min(needed, burst.maximum, doubled))
