import numpy as np
import pytest

from shiplift.runtime.composition.check import check
from shiplift.runtime.planning.arrivals import Arrivals, recorded
from shiplift.runtime.planning.profiles import Profiles, StepProfile
from shiplift.runtime.planning.scenario import draw, draw_again, graph_of, worst_rows
from shiplift.runtime.spec.pipeline import parse
from tests.unit.runtime.planning.graphs import drawn, profiles, spec

EITHER = """
name: either
inputs: {x: {datatype: FP32, shape: [1, 4]}}
outputs: {z: {datatype: FP32, shape: [-1, 4]}, w: {datatype: FP32, shape: [-1, 4]}}
members: {a: {model: a}, b: {model: b}, c: {model: c}, d: {model: d}}
steps:
  guess: {member: a, inputs: {x: x}, outputs: {y: y}}
  low: {member: b, inputs: {x: x}, outputs: {y: l}, when: {tensor: y, below: 0.3}}
  high: {member: c, inputs: {x: x}, outputs: {y: w}, when: {tensor: y, at_least: 0.3}}
  after: {member: d, inputs: {x: l}, outputs: {y: z}}
"""


def test_steps_run_as_often_as_their_profiles_say() -> None:
    graph, scenario, _ = drawn("cascade", count=20_000)
    think = scenario.rows[graph.steps.index("think")]
    assert set(think.tolist()) == {0, 1}
    assert think.mean() == pytest.approx(0.3, abs=0.02)
    graph, scenario, _ = drawn("loop", count=20_000)
    read = scenario.rows[graph.steps.index("read")]
    shares = {rows: float((read == rows).mean()) for rows in (0, 3, 9)}
    assert shares == pytest.approx({0: 0.1, 3: 0.6, 9: 0.3}, abs=0.02)
    assert scenario.rows_per_s(graph, "b") == pytest.approx(40 * 4.5, rel=0.05)


def test_opposite_conditions_exclude_each_other_and_what_nobody_gave_has_no_rows() -> None:
    written = parse(EITHER)
    assert check(written, {}, {}).problems == ()
    graph = graph_of(written.spec, bls=True)
    known = Profiles(steps={"low": StepProfile(probability=0.4), "high": StepProfile(probability=0.6)})
    scenario = draw(written.spec, graph, known, Arrivals(rate_per_s=10), count=5000, seed=0)
    low, high, after = (scenario.rows[graph.steps.index(step)] for step in ("low", "high", "after"))
    np.testing.assert_array_equal(low + high, 1)
    np.testing.assert_array_equal(after, low)
    assert low.mean() == pytest.approx(0.4, abs=0.03)


def test_drawing_more_of_one_thing_changes_no_other() -> None:
    graph, scenario, _ = drawn("loop", count=500)
    _, other, _ = drawn("loop", count=500, rate=80)
    for step in range(len(graph.steps)):
        np.testing.assert_array_equal(scenario.rows[step], other.rows[step])
        np.testing.assert_array_equal(scenario.deviates[step], other.deviates[step])
    np.testing.assert_allclose(scenario.arrivals, 2 * other.arrivals)


def test_recorded_arrivals_come_again_with_other_chances() -> None:
    times = np.sort(np.random.default_rng(0).uniform(size=1200)) * 60
    arrivals = recorded("\n".join(f"{time:.6f}" for time in times))
    written = spec("cascade")
    graph = graph_of(written, bls=True)
    once = draw(written, graph, profiles("cascade"), arrivals, count=3000, seed=3)
    drawn_again = draw_again(written, graph, profiles("cascade"), arrivals, count=3000, seed=3)
    assert (once.count, drawn_again.count) == (1200, 3600)
    assert (np.diff(drawn_again.arrivals) >= 0).all()
    assert drawn_again.duration_s == pytest.approx(3 * once.duration_s, rel=0.01)
    gaps = [np.diff(drawn_again.arrivals[start : start + 1200]) for start in (0, 1200, 2400)]
    np.testing.assert_allclose(gaps[1], gaps[0], atol=1e-9)
    np.testing.assert_allclose(gaps[2], gaps[0], atol=1e-9)
    first, second = ([rows[start : start + 1200].tolist() for rows in drawn_again.rows] for start in (0, 1200))
    assert first == [rows.tolist() for rows in once.rows] != second


def test_the_worst_case_has_every_condition_true_and_every_loop_at_its_longest() -> None:
    for name, worst in (
        ("loop", {"a": 1, "b": 9}),
        ("cascade", {"small": 1, "large": 1}),
        ("shared", {"a": 2, "b": 1}),
    ):
        written = spec(name)
        assert worst_rows(graph_of(written, bls=True), profiles(name)) == worst
