"""Which points a search measures, in which windows: finals only where short windows leave something open."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.measure.generator import Demand, LoadTarget, Measurement, Window
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.disturbance import Others
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.measuring import SearchMeasuring
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import Point, space_of
from shiplift.runtime.search.workbench import Workbench
from shiplift.runtime.spec.measurement import Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.journal import Journal
from tests.unit.examples import config, package, point, trial

SPACE = SearchSpace(max_batch=(8,), queue_delay_us=(0,), instances=(1, 2), threads=(1,))
FAST = {1: 9000.0, 2: 12_000.0}  # by instances: nothing else comes near the best


@dataclass
class Server:
    """A bench and its load generator: throughput by the instances of what is served, and which windows were asked."""

    rates: dict[int, float]
    spread_percent: float = 2.0
    p99_ms: float = 5.0
    served: Point | None = None
    asked: list[tuple[int, int]] = field(default_factory=list)

    def serve(self, point: Point) -> str:
        self.served = point
        return "digits"

    def address(self, _protocol: str) -> str:
        return "here:1"

    def memory_mb(self) -> float:
        return 100.0

    def measure(self, _target: LoadTarget, demand: Demand, window: Window, _work: Path) -> Measurement:
        assert self.served is not None
        instances = self.served.config.instances
        self.asked.append((instances, window.window_ms))
        measured = point(demand.concurrency, self.rates[instances], self.p99_ms, spread_percent=self.spread_percent)
        return Measurement(point=measured, runs=())


def searched(server: Server, folder: Path, *, others_cores: float = 0.0, **load: Any) -> tuple[Trial, list[int]]:
    """The best trial, and the lengths of the finals' windows, in ms."""
    clock = iter(range(1000))
    workbench = Workbench(
        bench=cast("Any", server),
        generator=cast("Any", server),
        requests=folder,
        work=folder,
        space=SPACE,
        load=Load(**load),
    )
    space = space_of((package(config=config(8)),), SPACE, Serving(), 2)
    search = Search(space, Goal(p99_ms=10))
    used = iter(range(1000))
    others = Others(lambda: others_cores * next(used), 2, clock=lambda: float(next(clock)), sleep=lambda _: None)
    journal = Journal(folder / "trials.jsonl", Trial)
    measuring = SearchMeasuring(workbench=workbench, search=search, journal=journal, others=others)
    measuring.explore()
    explored = len(server.asked)
    measuring.hold_finals()
    return search.best()[1], [window_ms for _, window_ms in server.asked[explored:]]


def test_a_single_finalist_whose_short_windows_say_enough_is_not_measured_again(tmp_path: Path) -> None:
    best, finals = searched(Server(FAST), tmp_path)
    assert (best.config.instances, best.window_ms, finals) == (2, 200, [])


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({"rates": {1: 900.0, 2: 1200.0}}, {}, "too few answers for a p99"),
        ({"rates": {1: 11_500.0, 2: 12_000.0}}, {}, "another is about as fast"),
        ({"spread_percent": 30.0}, {}, "the windows disagree"),
        ({"spread_percent": 0.0}, {}, "nobody knows whether they agree"),
        ({"p99_ms": 50.0}, {}, "it is over its limit"),
        ({}, {"others_cores": 1.0}, "others used the machine"),
        ({}, {"batch": 8}, "a request of eight samples is one answer"),
    ],
)
def test_where_short_windows_leave_something_open_finalists_are_measured_in_long_ones(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    best, finals = searched(Server(**({"rates": FAST} | changes)), tmp_path, **options)
    assert finals, why
    assert set(finals) == {SPACE.window_ms}
    assert best.window_ms == SPACE.window_ms


@given(
    rates=st.lists(st.floats(100, 20_000), min_size=2, max_size=24),
    spreads=st.lists(st.floats(0, 25), min_size=24, max_size=24),
    p99s=st.lists(st.floats(0.5, 20), min_size=24, max_size=24),
    limit=st.sampled_from([None, 10.0]),
)
def test_a_single_finalist_is_the_best_of_the_short_trials(
    rates: list[float], spreads: list[float], p99s: list[float], limit: float | None
) -> None:
    """So the search chooses what it would have chosen after its finals, whatever was measured."""
    space = SearchSpace(max_batch=(1, 8, 32), queue_delay_us=(0, 100), instances=(1, 2), threads=(1, 2))
    search = Search(space_of((package(config=config(8)),), space, Serving(), 2), Goal(p99_ms=limit))
    points = list(search.space.points())[: len(rates)]
    for at, rate, spread, p99 in zip(points, rates, spreads, p99s, strict=False):
        within = limit is None or p99 <= limit
        measured = {"throughput_per_s": rate, "spread_percent": spread, "p99_ms": p99, "within_slo": within}
        search.tell(at, trial(config=at.config, **measured))
    finalists = search.finalists()
    if len(finalists) == 1:
        short = search.short_trial(finalists[0])
        assert search.best()[1] == short
        assert search.short_trial(points[0]) is not None
