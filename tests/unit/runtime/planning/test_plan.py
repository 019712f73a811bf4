import math
from dataclasses import replace

import pytest

from shiplift.runtime.base.errors import NoPlan
from shiplift.runtime.planning.options import Grid
from shiplift.runtime.planning.plan import critical_s, plan, worst_case
from shiplift.runtime.planning.simulation import simulate
from tests.unit.runtime.planning.graphs import GRAPHS, configuration, drawn, problem, settings

SMALL = Grid(max_batch=(1, 8), spare=1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests than a real plan is made with: for what does not depend on how well it holds."""
    monkeypatch.setattr("shiplift.runtime.planning.search.REQUESTS", 1000)
    monkeypatch.setattr("shiplift.runtime.planning.plan.CONFIRMING", 4000)


@pytest.mark.parametrize("name", ["chain", "loop", "cascade"])
@pytest.mark.usefixtures("short")
def test_a_plan_holds_its_limit_and_says_where_the_time_goes(name: str) -> None:
    made = plan(problem(name, rate=30, p99_ms=250, grid=SMALL))
    assert 0 < made.p50_ms < made.p99_ms <= made.limit_p99_ms
    shares = [*(member.latency_share for member in made.members), *(step.latency_share for step in made.python)]
    assert sum(shares) + made.waiting_share + made.other_share == pytest.approx(1)
    assert all(0 < member.utilisation < 1 and member.mean_batch >= 1 for member in made.members)
    assert made.cores == sum(member.cores for member in made.members) + made.workers
    assert (made.instances > 0) == (name != "chain")
    assert made.worst_case_cores >= made.cores
    assert [step.name for step in made.python] == (["crop"] if name == "loop" else [])
    for crop in made.python:
        assert crop.busy_cores == pytest.approx(30 * 0.002, rel=0.1)
        assert crop.latency_share > 0


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_equal_problems_have_equal_plans() -> None:
    asked = problem("cascade", rate=30, p99_ms=100, grid=SMALL)
    assert plan(asked) == plan(asked)


@pytest.mark.usefixtures("short")
def test_what_an_answer_takes_besides_is_part_of_the_limit() -> None:
    asked = problem("one", rate=20, p99_ms=60, grid=SMALL)
    slower = replace(asked, profiles=asked.profiles.model_copy(update={"request_ms": 5.0}))
    assert plan(slower).p50_ms == pytest.approx(plan(asked).p50_ms + 5, rel=0.05)
    with pytest.raises(NoPlan, match="less than an answer takes"):
        plan(replace(slower, p99_ms=4))


@pytest.mark.slow
def test_the_pipeline_has_no_more_instances_than_it_needs() -> None:
    asked = problem("cascade", rate=60, p99_ms=100, grid=SMALL)
    made = plan(asked)
    graph, scenario, known = drawn("cascade", rate=60, count=20_000, seed=1)
    served = {
        member.name: settings(instances=member.config.instances, max_batch=member.config.max_batch)
        for member in made.members
    }
    p99 = {
        instances: simulate(graph, scenario, known, served, instances=instances).percentile_ms(99)
        for instances in (made.instances - 1, made.instances)
        if instances
    }
    assert p99[made.instances] <= 100 < p99.get(made.instances - 1, math.inf)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_the_longest_way_adds_up_to_the_latency(name: str) -> None:
    graph, scenario, known = drawn(name, count=500)
    served = {member: settings(instances=2, max_batch=4) for member in graph.used}
    outcome = simulate(graph, scenario, known, served)
    assert critical_s(graph, outcome).sum() == pytest.approx(outcome.latencies.sum())


def test_the_worst_case_gives_every_member_what_the_busiest_needs() -> None:
    asked = problem("loop", rate=30)
    chosen = {"a": settings(instances=1), "b": settings(instances=3, max_batch=8)}
    worst = worst_case(asked, chosen)
    needed = math.ceil(30 * 9 * 0.038 / 8)
    assert {each.instances for each in worst.values()} == {max(3, needed)}


def test_a_pipeline_that_needs_too_many_instances_has_no_plan() -> None:
    slow = configuration(batch_ms={1: 400.0, 8: 500.0}, max_batch=8)
    with pytest.raises(NoPlan, match="64 requests in the pipeline at once"):
        plan(problem("cascade", slow, rate=400, p99_ms=3000, grid=Grid(max_batch=(8,), spare=2)))
