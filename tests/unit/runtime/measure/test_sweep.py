import gzip
import json
from typing import Any

import pytest

from shiplift.runtime.measure.sweep import knee, rates_to_try
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.store.artifacts import json_lines
from tests.unit.examples import point


def search(capacity: float, limit: float | None, highest: float = 1000.0) -> list[LoadPoint]:
    """The points of a search on a server whose p99 is 10 ms up to its capacity and 1 s beyond."""
    points: list[LoadPoint] = []
    for rate in rates_to_try(highest, limit, points):
        points.append(point(0, rate, 10 if rate <= capacity else 1000, rate_per_s=rate))
        assert len(points) < 30
    return points


@pytest.mark.parametrize("capacity", [30.0, 333.0, 700.0, 999.0])
def test_the_highest_rate_within_the_limit_is_found_within_six_percent(capacity: float) -> None:
    best = max(point.rate_per_s for point in search(capacity, 50) if point.p99_ms <= 50)
    assert capacity / 1.06 <= best <= capacity


def queue(rate: float, capacity: float, service_ms: float) -> float:
    """The p99 (ms) of a server with one queue at a rate: it grows without end towards its capacity."""
    return 4.6 * service_ms / (1 - rate / capacity) if rate < capacity else 1e6


def tried(capacity: float, limit: float, service_ms: float = 1.0) -> list[float]:
    points: list[LoadPoint] = []
    for rate in rates_to_try(1000, limit, points):
        points.append(point(0, rate, queue(rate, capacity, service_ms), rate_per_s=rate))
        assert len(points) < 30
    return [each.rate_per_s for each in points]


def test_a_limit_that_is_far_away_is_tried_at_the_top_at_once() -> None:
    assert tried(1020, limit=200) == [700, 960]


@pytest.mark.parametrize(("capacity", "limit", "service_ms"), [(1020, 60, 1.0), (1020, 15, 1.0), (760, 30, 0.5)])
def test_a_limit_that_is_near_is_searched_in_halves(capacity: float, limit: float, service_ms: float) -> None:
    assert tried(capacity, limit, service_ms)[:2] == [700, 850]


@pytest.mark.parametrize("capacity", [710.0, 800.0, 930.0, 959.0])
def test_a_top_that_is_not_sustained_takes_as_many_rates_as_halves_do_and_one_more(capacity: float) -> None:
    rates = tried(capacity, limit=1e5)
    assert rates[:2] == [700, 960]
    assert len(rates) <= 5
    assert capacity / 1.06 <= max(rate for rate in rates if rate < capacity) <= capacity


def test_no_rate_is_tried_above_what_the_closed_loop_reached() -> None:
    """Beyond it a queue would grow without end."""
    assert max(point.rate_per_s for point in search(5000, 50)) <= 1000


def test_a_server_that_never_holds_the_limit_ends_the_search() -> None:
    assert [point for point in search(0, 50) if point.p99_ms <= 50] == []


def test_without_a_limit_two_rates_show_the_curve() -> None:
    assert [point.rate_per_s for point in search(500, None)] == [500, 800]


def test_a_saturated_client_proves_no_rate() -> None:
    points: list[LoadPoint] = []
    tried = []
    for rate in rates_to_try(1000, 50, points):
        tried.append(rate)
        points.append(point(0, rate, 10, rate_per_s=rate, client_saturated=True))
    assert tried == sorted(tried, reverse=True)


def test_the_knee_is_where_latency_starts_to_grow_faster_than_throughput() -> None:
    points = (point(1, 100, 10), point(4, 390, 11), point(16, 500, 35), point(64, 510, 130))
    assert knee(points) == 4


def test_raw_measurements_are_stored_whole_and_deterministically() -> None:
    raw: list[dict[str, Any]] = [{"phase": "sweep", "windows": ((100.0, 3.5),)}, {"phase": "comparison", "windows": ()}]
    assert [json.loads(line) for line in gzip.decompress(json_lines(raw)).decode().splitlines()] == [
        {"phase": "sweep", "windows": [[100.0, 3.5]]},
        {"phase": "comparison", "windows": []},
    ]
    assert json_lines(raw) == json_lines(raw)
