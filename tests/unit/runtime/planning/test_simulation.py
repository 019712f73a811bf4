import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.planning.simulation import simulate
from tests.unit.runtime.planning.graphs import GRAPHS, drawn, settings
from tests.unit.runtime.planning.in_simpy import latencies


@pytest.mark.parametrize("name", sorted(set(GRAPHS) - {"shared"}))
@pytest.mark.parametrize("max_batch", [1, pytest.param(3, marks=pytest.mark.slow), 8])
def test_every_request_takes_as_long_as_in_simpy(name: str, max_batch: int) -> None:
    """Members that give several batches to one at the same instant are excluded here: see the next test."""
    cold_ms = {4.0: 1.0, 20.0: 3.0} if max_batch == 1 else {}  # with it, more comes at one instant where instances wait
    graph, scenario, profiles = drawn(name, rate=60, cv=1.5, count=150, step_ms=0.5, cold_ms=cold_ms)
    served = {
        member: settings(
            instances=1 + at % 2, max_batch=1 if at else max_batch, queue_delay_us=2000 * at, cold_ms=cold_ms
        )
        for at, member in enumerate(graph.used)
    }
    for instances, workers in ((0, 0), (3, 0), (0, 1), (3, 2)):
        ours = simulate(graph, scenario, profiles, served, instances=instances, workers=workers)
        reference = latencies(graph, scenario, profiles, served, instances if graph.bls else 0, workers)
        np.testing.assert_allclose(ours.latencies, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name == "shared" else pytest.param(name, marks=pytest.mark.slow) for name in sorted(GRAPHS)]
)
def test_what_comes_at_the_same_instant_changes_little(name: str) -> None:
    """SimPy lets a batch's requests reach the next member together; here the first of them does not wait."""
    graph, scenario, profiles = drawn(name, rate=60, count=1500)
    served = {member: settings(instances=3, max_batch=8) for member in graph.used}
    ours = simulate(graph, scenario, profiles, served).latencies
    reference = latencies(graph, scenario, profiles, served)
    assert np.mean(ours) == pytest.approx(np.mean(reference), rel=0.1)
    assert np.percentile(ours, 99) == pytest.approx(np.percentile(reference, 99), rel=0.15)


@pytest.mark.parametrize("load", [*(pytest.param(load, marks=pytest.mark.slow) for load in (0.3, 0.8)), 0.6])
def test_one_member_with_constant_times_is_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: the mean wait is load / (2 (1 - load)) executions."""
    graph, scenario, profiles = drawn("one", rate=100 * load, count=60_000)
    outcome = simulate(graph, scenario, profiles, {"a": settings(spread=0)})
    blocks = outcome.latencies[5000:].reshape(11, -1).mean(axis=1)
    error = 3 * blocks.std(ddof=1) / math.sqrt(len(blocks))
    assert blocks.mean() == pytest.approx(0.01 * (1 + load / (2 * (1 - load))), abs=error + 1e-5)


def test_an_execution_after_a_pause_takes_longer_and_one_after_another_does_not() -> None:
    graph, scenario, profiles = drawn("one", rate=1, count=50)
    served = {"a": settings(spread=0, cold_ms={20: 2, 40: 5})}
    at_once = simulate(graph, replace(scenario, arrivals=np.full(50, 1.0)), profiles, served)
    np.testing.assert_allclose(np.sort(at_once.latencies), 0.005 + 0.01 * np.arange(1, 51))  # only the first was idle
    for pause_ms, longer_ms in ((0, 0), (10, 1), (20, 2), (30, 3.5), (40, 5), (1000, 5)):
        arrivals = np.array([0, 0.015 + pause_ms / 1000])  # the first execution ends after 15 ms
        both = simulate(graph, replace(scenario.first(2), arrivals=arrivals), profiles, served)
        assert both.latencies[1] == pytest.approx(0.01 + longer_ms / 1000)


def test_the_first_request_of_an_idle_pipeline_takes_longer_and_others_do_not() -> None:
    graph, scenario, profiles = drawn("chain", rate=1, count=50, cold_ms={20: 2, 40: 5})
    served = {member: settings(spread=0, instances=4) for member in graph.used}
    for pause_ms, longer_ms in ((-15, 0), (0, 0), (10, 1), (30, 3.5), (1000, 5)):
        arrivals = np.array([0, 0.025 + pause_ms / 1000])  # the first is answered after 25 ms
        both = simulate(graph, replace(scenario.first(2), arrivals=arrivals), profiles, served)
        np.testing.assert_allclose(both.latencies, [0.025, 0.02 + longer_ms / 1000])


@pytest.mark.parametrize("load", [0.5, pytest.param(0.8, marks=pytest.mark.slow)])
def test_one_member_with_varying_times_is_an_m_g_1_queue(load: float) -> None:
    graph, scenario, profiles = drawn("one", rate=100 * load, count=60_000)
    outcome = simulate(graph, scenario, profiles, {"a": settings(spread=0.5)})
    squared = math.exp(0.5**2)  # the second moment of the factor
    blocks = outcome.latencies[5000:].reshape(11, -1).mean(axis=1)
    error = 3 * blocks.std(ddof=1) / math.sqrt(len(blocks))
    assert blocks.mean() == pytest.approx(0.01 * (1 + load * squared / (2 * (1 - load))), abs=error + 1e-5)


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(GRAPHS)), load=st.floats(0.1, 0.9), instances=st.integers(1, 4), seed=st.integers(0, 99)
)
def test_utilisation_is_the_offered_work(name: str, load: float, instances: int, seed: int) -> None:
    """The utilisation law: what is busy is what came times how long it takes, however it queued."""
    graph, scenario, profiles = drawn(name, rate=20 * load * instances, count=200, seed=seed)
    served = {member: settings(instances=instances, spread=0) for member in graph.used}
    outcome = simulate(graph, scenario, profiles, served)
    for member, did in outcome.loads.items():
        rows = sum(int(scenario.rows[step].sum()) for step in graph.steps_of(member))
        assert did.rows == did.executions == rows
        assert did.busy_s == pytest.approx(rows * 0.01)
        assert did.busy_s <= instances * outcome.ended_s


@given(name=st.sampled_from(sorted(GRAPHS)), max_batch=st.integers(1, 8), seed=st.integers(0, 99))
def test_little_s_law_holds_and_nobody_is_lost(name: str, max_batch: int, seed: int) -> None:
    graph, scenario, profiles = drawn(name, rate=50, count=150, seed=seed)
    served = {member: settings(instances=2, max_batch=max_batch) for member in graph.used}
    outcome = simulate(graph, scenario, profiles, served)
    assert np.isfinite(outcome.latencies).all()
    assert (outcome.latencies >= 0).all()
    moments = np.concatenate([scenario.arrivals, scenario.arrivals + outcome.latencies])
    order = np.argsort(moments, kind="stable")
    inside = np.cumsum(np.repeat([1, -1], scenario.count)[order])[:-1]
    mean_inside = float((inside * np.diff(moments[order])).sum()) / outcome.ended_s
    rate = scenario.count / outcome.ended_s
    assert mean_inside == pytest.approx(rate * outcome.latencies.mean())


@pytest.mark.slow
@given(name=st.sampled_from(["one", "chain", "join", "cascade"]), slow=st.floats(5, 60), seed=st.integers(0, 99))
def test_a_higher_rate_is_never_faster(name: str, slow: float, seed: int) -> None:
    """Without batches, requests that come closer together wait longer, each single one of them."""

    def served(rate: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        graph, scenario, profiles = drawn(name, rate=rate, count=150, seed=seed)
        return simulate(graph, scenario, profiles, {member: settings() for member in graph.used}).latencies

    assert (served(1.3 * slow) >= served(slow) - 1e-9).all()


@pytest.mark.slow
@given(seed=st.integers(0, 99), max_batch=st.integers(1, 8))
def test_a_join_waits_for_the_slowest(seed: int, max_batch: int) -> None:
    graph, scenario, profiles = drawn("join", rate=50, count=150, seed=seed)
    served = {member: settings(instances=2, max_batch=max_batch) for member in graph.used}
    outcome = simulate(graph, scenario, profiles, served)
    left, right, both = (graph.steps.index(step) for step in ("left", "right", "both"))
    np.testing.assert_array_equal(outcome.began[both], np.maximum(outcome.done[left], outcome.done[right]))
    np.testing.assert_allclose(outcome.done[both], scenario.arrivals + outcome.latencies)


def test_a_batch_waits_for_its_delay_and_no_longer() -> None:
    graph, scenario, profiles = drawn("one", rate=1, cv=0, count=10)
    served = {"a": settings(max_batch=8, queue_delay_us=5000, spread=0)}
    np.testing.assert_allclose(simulate(graph, scenario, profiles, served).latencies, 0.015)
    full = {"a": settings(max_batch=1, queue_delay_us=5000, spread=0)}
    np.testing.assert_allclose(simulate(graph, scenario, profiles, full).latencies, 0.01)


def test_a_loop_s_rows_go_in_as_few_requests_as_its_batch_allows() -> None:
    graph, scenario, profiles = drawn("loop", rate=0.5, count=200)
    read = graph.steps.index("read")
    rows = scenario.rows[read]
    for max_batch in (1, 4, 8):
        served = {"a": settings(spread=0), "b": settings(instances=20, max_batch=max_batch, spread=0)}
        outcome = simulate(graph, scenario, profiles, served)
        assert outcome.loads["b"].executions == np.ceil(rows / max_batch).sum()
        assert outcome.loads["b"].rows == rows.sum()
        np.testing.assert_array_equal(outcome.done[read][rows == 0], outcome.began[read][rows == 0])


def test_the_pipeline_s_instances_hold_requests_back() -> None:
    graph, scenario, profiles = drawn("cascade", rate=150, count=1000)
    served = {member: settings(instances=4) for member in graph.used}
    free, tight, tightest = (
        simulate(graph, scenario, profiles, served, instances=instances).latencies.mean() for instances in (0, 3, 2)
    )
    assert free < tight < tightest


def test_the_workers_hold_python_steps_back() -> None:
    graph, scenario, profiles = drawn("loop", rate=200, count=1000)
    served = {member: settings(instances=4) for member in graph.used}
    outcomes = [simulate(graph, scenario, profiles, served, workers=workers) for workers in (0, 2, 1)]
    free, tight, tightest = (outcome.latencies.mean() for outcome in outcomes)
    assert free <= tight < tightest
    busy = [sum(outcome.python_s) for outcome in outcomes]
    assert busy == pytest.approx([busy[0]] * 3)


def test_it_is_given_up_as_soon_as_too_many_are_late() -> None:
    graph, scenario, profiles = drawn("one", rate=150, count=2000)
    outcome = simulate(graph, scenario, profiles, {"a": settings()}, limit_ms=100)
    assert (outcome.given_up, outcome.percentile_ms(99)) == (True, math.inf)
    assert outcome.ended_s < scenario.duration_s / 2
    whole = simulate(graph, scenario, profiles, {"a": settings()})
    assert whole.percentile_ms(99) > 100


def test_equal_seeds_are_equal_and_others_are_not() -> None:
    def run(seed: int) -> list[float]:
        graph, scenario, profiles = drawn("loop", count=200, seed=seed)
        served = {member: settings(instances=2, max_batch=4) for member in graph.used}
        return [float(latency) for latency in simulate(graph, scenario, profiles, served).latencies]

    assert run(3) == run(3) != run(4)
