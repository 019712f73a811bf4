"""Which bench a search gets, and how a trial uses it. The integration tests have the real benches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.base.errors import MeasurementFailed, MissingTool, ServerFailed
from shiplift.runtime.measure.generator import Demand, LoadTarget, Measurement, Window
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.serving import ServerKind
from shiplift.runtime.records.site import Cluster, Machine
from shiplift.runtime.search import bench as benches
from shiplift.runtime.search import pod_server, private_server
from shiplift.runtime.search.goal import Goal, goal_of
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import Point, space_of
from shiplift.runtime.search.workbench import Workbench, measure_point
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from tests.unit.examples import config, package, point, site

CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/shiplift-server:1")


@pytest.mark.parametrize(
    ("changes", "server", "kind"),
    [
        ({}, "bundled", "private"),
        ({"place": CLUSTER}, "bundled", "private"),
        ({"place": CLUSTER}, "nvidia", "pod"),
        ({}, "nvidia", ""),
    ],
)
def test_place_and_server_choose_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], server: ServerKind, kind: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(private_server, "private_bench", lambda *arguments: asked.append(("private", *arguments)))
    monkeypatch.setattr(pod_server, "pod_bench", lambda *arguments: asked.append(("pod", *arguments)))
    arguments: Any = (site(tmp_path, **changes), (package(server=server),), Serving(), tmp_path)
    if kind:
        benches.start_bench(*arguments)
        assert asked == [(kind, *arguments)]
    else:
        with pytest.raises(MissingTool, match="needs NVIDIA's Triton image"):
            benches.start_bench(*arguments)


def test_every_server_that_a_place_supports_has_a_bench() -> None:
    assert set(benches._BENCHES) == {(place, server) for place in (Machine, Cluster) for server in place.servers}


@dataclass
class Generator:
    """Answers with the next p99, or raises it."""

    answers: list[Any]
    asked: list[tuple[LoadTarget, Demand, Window]] = field(default_factory=list)

    def measure(self, target: LoadTarget, demand: Demand, window: Window, _: Path) -> Measurement:
        self.asked.append((target, demand, window))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Measurement(point=point(demand.concurrency, p99_ms=answer), runs=())


@dataclass
class Bench:
    """Serves any point, or raises."""

    error: Exception | None = None
    served: list[Point] = field(default_factory=list)
    cores: int = 2

    def serve(self, point: Point) -> str:
        if self.error:
            raise self.error
        self.served.append(point)
        return "digits--fp32"

    def address(self, protocol: str) -> str:
        return f"10.0.0.7:{protocol}"

    def memory_mb(self) -> float:
        return 300.0

    def others_s(self) -> float | None:
        return None


@contextmanager
def measured(
    tmp_path: Path, bench: Bench, answers: list[Any], goal: Goal, load: Load | None = None
) -> Iterator[tuple[Trial, Generator]]:
    generator, space = Generator(answers), SearchSpace()
    fakes: Any = {"bench": bench, "generator": generator}
    workbench = Workbench(**fakes, requests=tmp_path / "r.json", work=tmp_path, space=space, load=load or Load())
    search = Search(space_of((package(),), space, Serving(), bench.cores), goal)
    yield measure_point(workbench, search, Point(package(sequences=True), config(8)), 200), generator


def test_a_trial_is_measured_where_its_bench_serves_it(tmp_path: Path) -> None:
    bench = Bench()
    with measured(tmp_path, bench, [5.0], Goal(memory_mb=400), Load(protocol="http")) as (trial, generator):
        ((target, demand, window),) = generator.asked
    assert bench.served == [Point(package(sequences=True), config(8))]
    assert (target.model, target.address, target.sequences) == ("digits--fp32", "10.0.0.7:http", True)
    assert (demand.concurrency, window.window_ms, window.protocol, window.attempts) == (16, 200, "http", 1)
    assert (trial.config, trial.p99_ms, trial.memory_mb, trial.within_slo) == (config(8), 5.0, 300.0, True)


def test_fewer_clients_are_tried_until_the_limit_is_met(tmp_path: Path) -> None:
    with measured(tmp_path, Bench(), [40.0, 20.0, 9.0], Goal(p99_ms=10)) as (trial, generator):
        assert [demand.concurrency for _, demand, _ in generator.asked] == [16, 8, 4]
    assert (trial.concurrency, trial.within_slo) == (4, True)


@pytest.mark.parametrize(
    ("bench", "answers", "error"),
    [
        (Bench(error=ServerFailed("out of memory", do="")), [], "out of memory"),
        (Bench(), [MeasurementFailed("a request failed", do="")], "a request failed"),
    ],
)
def test_a_failure_is_a_trial_with_its_error(tmp_path: Path, bench: Bench, answers: list[Any], error: str) -> None:
    with measured(tmp_path, bench, answers, Goal()) as (trial, _):
        assert (trial.error, trial.within_slo, trial.window_ms) == (error, False, 200)


def test_a_gpu_is_paid_for_whole() -> None:
    space = SearchSpace(objective="cost", price_per_hour=2.0)
    on_gpu, on_cores = goal_of(space, LatencyTarget(), 1), goal_of(space, LatencyTarget(), 64)
    assert (on_gpu.share(config(8)), on_cores.share(config(8))) == (1.0, 1 / 64)
