"""The load that one replica can take, from its load test: all that the autoscaler knows about the model."""

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.measurement import LoadPoint, LoadReport

_LEAST_HEADROOM = 0.05  # of the peak: the load test searches for the highest rate to within 5 %


def capacity(report: LoadReport) -> Capacity:
    """The capacity that a load test measured: its highest rate within its p99 limit or, without one, its knee.

    Raises:
        MeasurementFailed: no point of the load test shows a throughput.
    """
    peak = max((point.throughput_per_s for point in report.points), default=0.0)
    within = report.max_rate_per_s or _at_knee(report.points, report.knee)
    if not within > 0 or not peak > 0:
        raise MeasurementFailed(
            "the load test shows no throughput, so the capacity of a replica is unknown", do="run the load test again"
        )
    peak = max(peak, within / (1 - _LEAST_HEADROOM))
    limit = report.limit_ms if report.max_rate_per_s else None
    return Capacity(peak_per_s=peak, within_slo_per_s=within, p99_ms=limit, memory_mb=report.memory_mb)


def capacity_if_measured(report: LoadReport | None) -> Capacity | None:
    """Like `capacity`; None for a release without a load test, or if it shows no throughput."""
    try:
        return capacity(report) if report else None
    except MeasurementFailed:
        return None


def _at_knee(points: tuple[LoadPoint, ...], knee: int) -> float:
    return next((point.throughput_per_s for point in points if point.concurrency == knee), 0.0)
