"""Profiles from a release's measurements: the trials of its tuning, and the points of its load test.

A trial keeps its instances busy, so its mean batch follows from its throughput (Little's law): they complete instances
times batch per execution time. Trials that differ only in their batches give the times of one configuration.
"""

import math
from collections.abc import Iterable, Iterator
from statistics import median

from shiplift.runtime.planning.profiles import MemberConfiguration
from shiplift.runtime.records.measurement import LoadPoint, LoadReport, MemberLoad, Trial, Tuned
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.serving import ServingConfig

_P99_SIGMAS = 2.326  # the 99th percentile of a normal distribution, above its median
_MOST_SPREAD = 1.0
Key = tuple[Engine, Precision, int, int]
"""What a configuration's times depend on: engine, precision, threads, instances."""
Point = tuple[float, float]
"""The mean batch, and the mean time of its execution in ms."""


def configurations_of(tuned: Tuned, report: LoadReport | None) -> tuple[MemberConfiguration, ...]:
    """The measured configurations, grouped by what distinguishes them; empty if no trial shows execution times."""
    usable = [trial for trial in tuned.trials if not trial.error and trial.throughput_per_s > 0 < trial.compute_ms]
    groups: dict[Key, list[Trial]] = {}
    for trial in usable:
        groups.setdefault(_key(trial.engine, trial.precision, trial.config), []).append(trial)
    package = tuned.package
    served = _key(package.engine, package.precision, package.config)
    spread = spread_of(report.points if report else ())
    return tuple(
        _configuration(key, trials, _served_points(report, package.config) if key == served and report else (), spread)
        for key, trials in sorted(groups.items())
    )


def configuration_under_load(load: MemberLoad, config: ServingConfig) -> MemberConfiguration:
    """A member as it was served in a load test of the whole pipeline: one batch size and its mean time are known."""
    return MemberConfiguration(
        threads=config.threads,
        max_batch=config.max_batch,
        batch_ms={round(min(max(load.batch, 1.0), config.max_batch), 2): load.compute_ms},
    )


def request_ms(report: LoadReport) -> float | None:
    """What an answer takes besides queue and execution, for a client that waits for each; None: not measured."""
    return next((overhead_ms(point) for point in report.points if point.concurrency == 1), None)


def overhead_ms(point: LoadPoint) -> float:
    """What an answer takes besides queue and execution, at one load."""
    return max(0.0, point.p50_ms - point.queue_ms - point.compute_ms)


def typical_request_ms(reports: Iterable[LoadReport]) -> float:
    """The median of `request_ms` over several members, 0 if none was measured."""
    known = [overhead for report in reports if (overhead := request_ms(report)) is not None]
    return float(median(known)) if known else 0.0


def spread_of(points: Iterable[LoadPoint]) -> float:
    """Sigma of the lognormal with the percentiles of a client that waits for each answer; 0 without such a client."""
    alone = next((point for point in points if point.concurrency == 1 and 0 < point.p50_ms <= point.p99_ms), None)
    return min(_MOST_SPREAD, spread(alone.p50_ms, alone.p99_ms)) if alone else 0.0


def spread(p50_ms: float, p99_ms: float) -> float:
    """Sigma of the lognormal with these percentiles."""
    return math.log(p99_ms / p50_ms) / _P99_SIGMAS


def _key(engine: Engine, precision: Precision, config: ServingConfig) -> Key:
    return engine, precision, config.threads, config.instances


def _configuration(key: Key, trials: list[Trial], served: Iterable[Point], sigma: float) -> MemberConfiguration:
    engine, precision, threads, instances = key
    points = [*served, *(_point(trial.throughput_per_s, trial.compute_ms, trial.config) for trial in trials)]
    return MemberConfiguration(
        engine=engine,
        precision=precision,
        threads=threads,
        instances=instances,
        max_batch=max(trial.config.max_batch for trial in trials),
        batch_ms=dict(_rising(points)),
        spread=sigma,
        memory_mb=max(trial.memory_mb for trial in trials),
    )


def _point(throughput_per_s: float, compute_ms: float, config: ServingConfig) -> Point:
    batch = throughput_per_s * compute_ms / 1000 / config.instances
    return round(min(max(batch, 1.0), config.max_batch), 2), compute_ms


def _served_points(report: LoadReport, config: ServingConfig) -> Iterator[Point]:
    """One row for a client that waits for each answer; the mean batch if enough clients keep all instances busy.

    Triton's guide names about 2 x batch x instances as the concurrency of maximum throughput.
    """
    for point in report.points:
        if point.compute_ms > 0 and point.concurrency == 1:
            yield 1.0, point.compute_ms
        elif point.compute_ms > 0 and point.concurrency > 2 * config.instances * config.max_batch:
            yield _point(point.throughput_per_s, point.compute_ms, config)


def _rising(points: Iterable[Point]) -> Iterator[Point]:
    """The times by batch, ascending: a batch's mean, but never less than a smaller batch's, which would be noise."""
    by_batch: dict[float, list[float]] = {}
    for batch, ms in points:
        by_batch.setdefault(batch, []).append(ms)
    longest = 0.0
    for batch, times in sorted(by_batch.items()):
        longest = max(longest, sum(times) / len(times))
        yield batch, longest
