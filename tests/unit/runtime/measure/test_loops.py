"""The windows of a load test: as many answers as a verdict needs, and no more."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.runtime.measure.generator import Demand, Measurement, Window
from shiplift.runtime.measure.loops import closed_loop
from shiplift.runtime.measure.sides import LoadTest, Side
from shiplift.runtime.records.deployment import Endpoint, Staged
from shiplift.runtime.spec.measurement import Load
from tests.unit.examples import point


@dataclass
class Server:
    """Answers at a rate by concurrency; windows shorter than `agree_ms` disagree."""

    rates: dict[int, float]
    agree_ms: int = 0
    asked: list[tuple[int, int, int]] = field(default_factory=list)

    def measure(self, _target: Any, demand: Demand, window: Window, _work: Path) -> Measurement:
        self.asked.append((demand.concurrency, window.window_ms, window.attempts))
        stable = window.window_ms >= self.agree_ms
        measured = point(demand.concurrency, self.rates[demand.concurrency], stable=stable)
        return Measurement(point=measured, runs=({"stable": stable},))


def swept(server: Server, **load: Any) -> list[tuple[int, int, int]]:
    """The concurrency, window in ms and attempts of each measurement."""
    test = LoadTest(
        site=cast("Any", None), generator=cast("Any", server), load=Load(concurrency=(1, 4, 16), **load), work=Path()
    )
    staged = Staged(model="digits", endpoint=Endpoint(http="http://here:1/v2", grpc="here:2"))
    points = closed_loop(test, Side(name="challenger", staged=staged, requests=Path(), sequences=False))
    assert [each.concurrency for each in points] == [1, 4, 16]
    assert all(each.stable for each in points)
    assert len(test.raw) == len(server.asked)
    return server.asked


def test_a_fast_model_is_measured_in_shorter_windows() -> None:
    assert swept(Server({1: 4000, 4: 10_000, 16: 12_000})) == [(1, 400, 3), (4, 250, 1), (16, 150, 1)]


@pytest.mark.parametrize("rates", [{1: 100, 4: 200, 16: 300}, {1: 2400, 4: 2400, 16: 2400}])
def test_a_slow_model_is_measured_in_whole_windows(rates: dict[int, float]) -> None:
    assert swept(Server(rates)) == [(1, 400, 3), (4, 400, 3), (16, 400, 3)]


def test_short_windows_that_disagree_are_followed_by_whole_ones() -> None:
    asked = swept(Server({1: 4000, 4: 10_000, 16: 12_000}, agree_ms=300))
    assert asked == [(1, 400, 3), (4, 250, 1), (4, 400, 3), (16, 150, 1), (16, 400, 3)]


def test_short_windows_with_too_few_answers_are_followed_by_whole_ones() -> None:
    assert swept(Server({1: 4000, 4: 1000, 16: 1000})) == [(1, 400, 3), (4, 250, 1), (4, 400, 3), (16, 400, 3)]


def test_a_request_of_many_samples_is_one_answer() -> None:
    assert swept(Server({1: 40_000, 4: 40_000, 16: 40_000}), batch=10) == [(1, 400, 3), (4, 250, 1), (16, 250, 1)]
