"""The loops of a load test: clients that wait for answers, arrivals that don't, and champion against challenger.

Only the open loop shows the cost of a queue: the closed loop suffers from coordinated omission.
"""

import time

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.measure import comparing, sweep
from shiplift.runtime.measure.generator import Demand
from shiplift.runtime.measure.sides import LoadTest, Side
from shiplift.runtime.records.measurement import LoadPoint, LoadReport
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget

_MIN_WINDOW_MS = 100
_MIN_REQUESTS = 30  # per window, so that a percentile means something
_MAX_RATE = 1.0  # times the closed loop's throughput: above it the queue grows without end, even in the client's memory


def warm_up(test: LoadTest, side: Side) -> None:
    """Measures once and drops the result: cold connections, caches and CPU clocks would distort it."""
    progress(f"warming up the {side.name}")
    test.measure(side, Demand(concurrency=max(test.load.concurrency)), "warm-up", window_ms=_MIN_WINDOW_MS)


def closed_loop(test: LoadTest, side: Side) -> tuple[LoadPoint, ...]:
    """A point at each concurrency of the spec.

    A fast model gives enough answers in less than `load.window_ms`: its windows are shorter, unless they disagree.
    """
    points: list[LoadPoint] = []
    levels = sorted(set(test.load.concurrency))
    for index, concurrency in enumerate(levels):
        progress(f"measuring at concurrency {concurrency}", index / len(levels))
        demand = Demand(concurrency=concurrency)
        known = points[-1].throughput_per_s / test.load.batch if points else 0.0
        points.append(_in_short_windows(test, side, demand, known) or _in_whole_windows(test, side, demand))
    return tuple(points)


def _in_short_windows(test: LoadTest, side: Side, demand: Demand, rate_per_s: float) -> LoadPoint | None:
    """The point, if shorter windows suffice: they agree, and have enough answers. None if they don't.

    `rate_per_s` is how many requests were answered at the concurrency before (0: unknown).
    """
    window_ms = sweep.short_window_ms(rate_per_s, test.load.window_ms)
    if window_ms >= test.load.window_ms:
        return None
    point = test.measure(side, demand, "sweep", window_ms=window_ms)
    answered = point.throughput_per_s / test.load.batch
    return point if point.stable and sweep.enough(answered, window_ms) else None


def _in_whole_windows(test: LoadTest, side: Side, demand: Demand) -> LoadPoint:
    return test.measure(side, demand, "sweep", attempts=test.load.attempts)


def open_loop(
    test: LoadTest, side: Side, points: tuple[LoadPoint, ...], latency_target: LatencyTarget
) -> tuple[tuple[LoadPoint, ...], float | None]:
    """Points in open loop, and the highest rate within the p99 limit; the search ends after `load.open_loop_s`."""
    deadline = time.monotonic() + test.load.open_loop_s
    best = max(point.throughput_per_s for point in points)
    limit = latency_target.p99_ms
    measured: list[LoadPoint] = []
    for rate in sweep.rates_to_try(best * _MAX_RATE, limit, measured):
        window_ms = max(_MIN_WINDOW_MS, test.load.window_ms // 2, int(_MIN_REQUESTS / rate * 1000))
        if time.monotonic() + window_ms * 3 / 1000 > deadline:
            break
        progress(f"measuring at {rate:.0f} requests/s")
        try:
            measured.append(test.measure(side, Demand(rate_per_s=rate), "open loop", window_ms=window_ms))
        except MeasurementFailed:  # the rate is too high, which ends the search but not the release
            break
    sustained = [point.rate_per_s for point in measured if limit is not None and sweep.sustained(point, limit)]
    return tuple(sorted(measured, key=lambda point: point.rate_per_s)), max(sustained, default=None)


def compared(
    test: LoadTest, challenger: Side, champion: Side, version: int, report: LoadReport, target: ComparisonTarget
) -> LoadReport:
    """Adds the comparison at the challenger's best throughput, and the champion's own sweep, to the report."""
    load = test.load
    best = max(report.points, key=lambda point: point.throughput_per_s)
    window_ms = max(_MIN_WINDOW_MS, load.window_ms // 2, int(_MIN_REQUESTS / best.throughput_per_s * 1000))
    demand = Demand(concurrency=best.concurrency)
    warm_up(test, champion)
    comparison = comparing.compare(
        lambda: test.measure(champion, demand, "comparison", window_ms=window_ms),
        lambda: test.measure(challenger, demand, "comparison", window_ms=window_ms),
        version,
        best.concurrency,
        comparing.ComparisonPlan(rounds=load.comparison_rounds, budget_s=load.comparison_budget_s, target=target),
    )
    points = tuple(
        test.measure(champion, Demand(concurrency=point.concurrency), "champion's sweep", window_ms=window_ms)
        for point in report.points
    )
    return report.model_copy(update={"comparison": comparison, "champion_points": points})
