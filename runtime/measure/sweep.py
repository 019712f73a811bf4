"""Reads the points of a load test: where the curve's knee is, and which rate to try next."""

import math
from collections.abc import Iterator

from shiplift.runtime.records.measurement import WINDOWS, LoadPoint

_PRECISION = 1.05  # the search for the highest rate ends when its bounds are this close
_FIRST, _TOP = 0.7, 0.96  # shares of the highest rate; where the top is sustained, the search has ended
_TOP_TO_FIRST = (1 - _FIRST) / (1 - _TOP)  # how many times as long a queue is there: as 1 / (1 - utilization), M/M/1
# With so many answers, the 95 % confidence interval of the p99 lies between the 98.6th and the 99.4th percentile:
# 1.96 * sqrt(0.99 * 0.01 / 3000) is 0.36 %. More answers would not change a verdict.
ENOUGH_ANSWERS = 3000
_SHORTEST_MS = 150  # in a shorter window, the clients' start counts for too much


def knee(points: tuple[LoadPoint, ...]) -> int:
    """The concurrency with the highest power (throughput over latency); past it, latency grows faster than throughput.

    See Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications", 1979.
    """
    return max(points, key=lambda point: point.throughput_per_s / max(point.p50_ms, 1e-6)).concurrency


def short_window_ms(rate_per_s: float, window_ms: int) -> int:
    """The shortest window in which a run has enough answers at this rate (requests/s), at most `window_ms`."""
    if rate_per_s <= 0:
        return window_ms
    return min(window_ms, max(_SHORTEST_MS, math.ceil(ENOUGH_ANSWERS / WINDOWS / rate_per_s * 1000)))


def enough(rate_per_s: float, window_ms: int) -> bool:
    """Whether a run of such windows has enough answers at this rate (requests/s) for its p99 to be certain."""
    return rate_per_s * window_ms / 1000 * WINDOWS >= ENOUGH_ANSWERS


def rates_to_try(highest: float, limit: float | None, points: list[LoadPoint]) -> Iterator[float]:
    """Yields rates up to `highest`; the caller appends each rate's point to `points` before asking for the next.

    Without a p99 limit (ms): half and 80 % of the highest rate. With one: a binary search for the highest rate within
    it. After 70 % it tries the top at once, if the limit is so far away that a queue would still meet it there.
    """
    if limit is None:
        yield from (round(highest * 0.5, 1), round(highest * 0.8, 1))
        return
    low, high = 0.0, highest
    while high > 1 and (not low or high / low > _PRECISION):
        middle = (low + high) / 2 if points else _FIRST * highest
        at_once = len(points) == 1 and low and points[0].p99_ms * _TOP_TO_FIRST <= limit
        rate = round(_TOP * highest if at_once else middle, 1)
        yield rate
        if sustained(points[-1], limit):
            low = rate
        else:
            high = rate


def sustained(point: LoadPoint, limit: float) -> bool:
    """Whether the server sustained a point within the p99 limit (ms). A saturated client proves nothing."""
    return point.p99_ms <= limit and not point.client_saturated
