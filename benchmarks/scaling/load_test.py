"""The load test of a simulated replica: the record that a release keeps, from the same search over rates."""

import numpy as np
import simpy

from benchmarks.scaling.fleet import Fleet
from benchmarks.scaling.profile import Profile
from benchmarks.scaling.traces import generated
from shiplift.runtime.measure import sweep
from shiplift.runtime.records.measurement import LoadPoint, LoadReport

_WINDOW_S = 120
_SEED = 99


def load_report(profile: Profile) -> LoadReport:
    """A replica at full batches, and its highest rate of Poisson arrivals within the SLO."""
    measured: list[LoadPoint] = []
    for rate in sweep.rates_to_try(profile.peak_per_s, profile.slo_ms, measured):
        measured.append(_open_loop(profile, rate))  # noqa: PERF401 - the search reads it
    full = _point(profile, concurrency=2 * profile.max_batch * profile.instances, throughput=profile.peak_per_s)
    within = max((point.rate_per_s for point in measured if sweep.sustained(point, profile.slo_ms)), default=None)
    return LoadReport(
        points=(full,),
        open_points=tuple(measured),
        knee=full.concurrency,
        max_rate_per_s=within,
        limit_ms=profile.slo_ms,
        failures=0,
        memory_mb=None,
        protocol="grpc",
    )


def _open_loop(profile: Profile, rate: float) -> LoadPoint:
    fleet = Fleet(simpy.Environment(), profile, generated(np.full(_WINDOW_S * 10, rate), 1, _SEED), 1)
    fleet.advance(float("inf"))
    latencies = np.asarray(fleet.latencies) * 1000
    return _point(profile, rate=rate, throughput=rate, latencies=np.percentile(latencies, [50, 90, 95, 99]).tolist())


def _point(
    profile: Profile,
    *,
    throughput: float,
    concurrency: int = 0,
    rate: float = 0.0,
    latencies: list[float] | None = None,
) -> LoadPoint:
    p50, p90, p95, p99 = latencies or [1000 * profile.seconds()[-1]] * 4
    return LoadPoint(
        concurrency=concurrency,
        throughput_per_s=throughput,
        rate_per_s=rate,
        sent_per_s=rate,
        p50_ms=p50,
        p90_ms=p90,
        p95_ms=p95,
        p99_ms=p99,
        queue_ms=0,
        compute_ms=0,
    )
