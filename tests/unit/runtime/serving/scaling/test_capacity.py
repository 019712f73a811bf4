import pytest

from shiplift.runtime.base.errors import MeasurementFailed
from shiplift.runtime.records.measurement import LoadPoint, LoadReport
from shiplift.runtime.serving.scaling.capacity import capacity


def point(concurrency: int, throughput: float) -> LoadPoint:
    return LoadPoint(
        concurrency=concurrency,
        throughput_per_s=throughput,
        p50_ms=1,
        p90_ms=2,
        p95_ms=3,
        p99_ms=4,
        queue_ms=0,
        compute_ms=1,
    )


def report(rate: float | None, *points: LoadPoint) -> LoadReport:
    return LoadReport(points=points, failures=0, memory_mb=None, protocol="grpc", knee=4, max_rate_per_s=rate)


def test_the_highest_rate_within_the_limit_is_the_capacity() -> None:
    measured = capacity(report(80, point(4, 70), point(16, 100)))
    assert (measured.peak_per_s, measured.within_slo_per_s, measured.headroom_per_s) == (100, 80, 20)


def test_without_a_limit_the_knee_is() -> None:
    assert capacity(report(None, point(4, 70), point(16, 100))).within_slo_per_s == 70


def test_there_is_always_some_headroom() -> None:
    assert capacity(report(100, point(4, 70), point(16, 100))).headroom_per_s == pytest.approx(100 / 0.95 - 100)


@pytest.mark.parametrize("points", [(), (point(4, 0),)])
def test_a_load_test_without_throughput_is_an_error(points: tuple[LoadPoint, ...]) -> None:
    with pytest.raises(MeasurementFailed, match="run the load test again"):
        capacity(report(None, *points))
