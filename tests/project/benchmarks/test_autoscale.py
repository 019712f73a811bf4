"""The simulator of `make bench-autoscale` against formulas, and the arithmetic of its comparison."""

import math
from pathlib import Path

import numpy as np
import pytest
import simpy

from benchmarks.autoscale import OURS, Setup, at_equal_cost, by_family, goals, missed_percent, table
from benchmarks.scaling import clairvoyant, policies, traces
from benchmarks.scaling.control import Hpa, Outcome, Policy, serve
from benchmarks.scaling.fleet import Fleet, Floats
from benchmarks.scaling.load_test import load_report
from benchmarks.scaling.monitoring import Prometheus
from benchmarks.scaling.profile import DEFAULT, Profile, load
from benchmarks.scaling.traces import Trace, catalogue, from_file, generated
from shiplift.runtime.planning.measured import spread
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.scaling.burst import burst_of
from shiplift.runtime.serving.scaling.capacity import capacity
from shiplift.runtime.serving.scaling.signal import Scaling

SERVICE_S = 0.01


def profile(**changes: object) -> Profile:
    fields: dict[str, object] = {
        "name": "test",
        "measured": "made up",
        "batch_ms": {1: 1000 * SERVICE_S},
        "spread": 0,
        "max_batch": 1,
        "slo_ms": 100,
    }
    return Profile.model_validate(fields | changes)


def poisson(rate: float, seconds: int, *, cv: float = 1, seed: int = 1) -> Trace:
    arrivals = generated(np.full(10 * seconds, rate), cv, seed)
    return Trace(name=f"{rate}/s", family="steady", arrivals=arrivals, duration_s=seconds)


def waits(trace: Trace, one: Profile, replicas: int = 1) -> Floats:
    fleet = Fleet(simpy.Environment(), one, trace.arrivals, replicas)
    fleet.advance(float("inf"))
    return np.asarray(fleet.latencies) - SERVICE_S


# --- queues ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load_", "sigma"),
    [*(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.5, 0.0), (0.8, 0.0))), (0.8, 0.6)],
)
def test_one_server_waits_as_pollaczek_and_khinchine_say(load_: float, sigma: float) -> None:
    expected = load_ * SERVICE_S * math.exp(sigma**2) / 2 / (1 - load_)  # exp(sigma^2) = 1 + cv^2 of a lognormal
    measured = waits(poisson(load_ / SERVICE_S, 1500), profile(spread=sigma)).mean()
    assert measured == pytest.approx(expected, rel=0.08)


@pytest.mark.slow
def test_two_instances_of_a_replica_share_a_queue() -> None:
    load_ = 0.8
    erlang = 2 * load_**2 / (1 + load_)  # the probability to wait in M/M/2
    markov = erlang * SERVICE_S / (2 * (1 - load_))
    measured = waits(poisson(2 * load_ / SERVICE_S, 1000), profile(instances=2)).mean()
    assert measured == pytest.approx(markov / 2, rel=0.1)  # deterministic service halves the wait


@pytest.mark.slow
def test_two_choices_beat_one_server_s_queue() -> None:
    alone, shared = poisson(90, 300), poisson(4 * 90, 300)
    assert waits(shared, profile(), 4).mean() < waits(alone, profile(), 1).mean() / 2


def test_batches_take_what_waits_and_no_more_than_the_largest() -> None:
    one = profile(batch_ms={1: 10, 4: 16}, max_batch=4)
    fleet = Fleet(simpy.Environment(), one, np.array([0.0, 0.001, 0.002, 0.003, 0.004, 0.005]), 1)
    fleet.advance(float("inf"))
    assert np.allclose(fleet.latencies, [0.01, 0.025, 0.024, 0.023, 0.022, 0.031])


def test_late_requests_go_last() -> None:
    """The server takes one request at a time, 10 ms each; after 25 ms a request is late."""
    arrivals = np.array([0.0, 0.001, 0.002, 0.003, 0.036])
    in_turn = Fleet(simpy.Environment(), profile(), arrivals, 1)
    late_last = Fleet(simpy.Environment(), profile(late_after_ms=25), arrivals, 1)
    for fleet in (in_turn, late_last):
        fleet.advance(float("inf"))
    assert np.allclose(in_turn.latencies, [0.01, 0.019, 0.028, 0.037, 0.014])
    assert np.allclose(late_last.latencies, in_turn.latencies)  # nobody waited for more than 25 ms before a fresh one
    crowd = Fleet(simpy.Environment(), profile(late_after_ms=25), np.array([0.0, *[0.001] * 6, 0.035]), 1)
    crowd.advance(float("inf"))
    assert np.argsort(crowd.latencies)[-2:].tolist() == [5, 6]
    assert crowd.latencies[7] < 0.02  # it came last, and overtook those that were late


def test_measured_factors_take_the_place_of_the_spread() -> None:
    factors = profile(measured_factors=(0.5, 1.5)).factors(0)
    assert {next(factors) for _ in range(100)} == {0.5, 1.5}


def test_the_operator_adds_replicas_before_the_autoscaler_learns_of_a_step() -> None:
    step = np.concatenate([np.full(600, 60.0), np.full(600, 300.0)])
    trace = Trace(name="step", family="steps", arrivals=generated(step, 1, 1), duration_s=120)
    known = Capacity(peak_per_s=100, within_slo_per_s=80, p99_ms=100)
    scaling = Scaling(capacity=known, maximum=8)
    alone, helped = (
        serve(trace, profile(), policies.shiplift(scaling, burst=burst), start=1)
        for burst in (None, burst_of(known, 8))
    )
    assert helped.missed < 0.8 * alone.missed


def test_batch_times_are_interpolated_and_grow_beyond_the_last() -> None:
    one = profile(batch_ms={1: 10, 3: 20}, max_batch=6)
    assert one.seconds() == pytest.approx([0, 0.01, 0.015, 0.02, 0.02 + 0.02 / 3, 0.02 + 0.04 / 3, 0.04])
    assert one.peak_per_s == pytest.approx(150)
    assert spread(10, 10 * math.exp(0.2 * 2.326)) == pytest.approx(0.2)


def test_the_default_profile_s_load_test_has_a_headroom() -> None:
    measured = capacity(load_report(load(DEFAULT)))
    assert 0.8 < measured.within_slo_per_s / measured.peak_per_s < 0.95


# --- replicas -------------------------------------------------------------------------------------------------------


def test_a_pod_is_ready_after_its_start_and_paid_from_its_creation_to_the_end_of_its_drain() -> None:
    env = simpy.Environment()
    fleet = Fleet(env, profile(start_s=12, drain_s=5), np.array([]), 1)
    env.run(until=10)
    fleet.scale(2)
    env.run(until=21)
    assert (fleet.size, len(fleet.ready)) == (2, 1)
    env.run(until=30)
    assert len(fleet.ready) == 2
    fleet.scale(1)
    assert (fleet.size, len(fleet.ready)) == (1, 1)
    env.run(until=100)
    fleet.finish()
    assert fleet.paid_s == 100 + (30 + 5 - 10)


def test_pods_that_start_are_removed_first_and_cost_no_drain() -> None:
    env = simpy.Environment()
    fleet = Fleet(env, profile(), np.array([]), 1)
    fleet.scale(3)
    env.run(until=5)
    fleet.scale(1)
    env.run(until=50)
    fleet.finish()
    assert (fleet.size, fleet.paid_s) == (1, 50 + 2 * 5)


def test_a_leaving_replica_answers_what_it_has() -> None:
    env = simpy.Environment()
    trace = poisson(150, 20)
    fleet = Fleet(env, profile(), trace.arrivals, 2)
    env.run(until=10)
    fleet.scale(1)
    env.run(until=20)
    fleet.finish()
    assert not np.isnan(fleet.latencies).any()


# --- control --------------------------------------------------------------------------------------------------------


def hpa(readings: list[float], *, size: int, down_s: float = 30) -> list[int]:
    """The sizes after each sync, for usage ratios that are about the current size."""
    env = simpy.Environment()
    fleet = Fleet(env, profile(), np.array([]), size)
    left = iter(readings)
    controller = Hpa(fleet, lambda: None if math.isnan(ratio := next(left)) else (ratio, fleet.size), down_s=down_s)
    sizes = []
    for _ in readings:
        controller.sync()
        sizes.append(fleet.size)
        env.run(until=env.now + 15)
    return sizes


def test_the_hpa_tolerates_a_tenth_and_holds_without_a_metric() -> None:
    assert hpa([1.09, 0.91, math.nan, 1.2], size=5) == [5, 5, 5, 6]


def test_the_hpa_at_most_doubles_or_adds_four() -> None:
    assert hpa([10, 10, 10], size=1) == [5, 10, 16]


def test_the_hpa_shrinks_to_the_highest_of_its_window() -> None:
    assert hpa([1.0, 0.5, 0.5, 0.5, 0.5], size=8) == [8, 8, 8, 4, 4]


def test_a_new_replica_s_counters_are_its_increase() -> None:
    env = simpy.Environment()
    trace = poisson(60, 40)
    fleet = Fleet(env, profile(start_s=12), trace.arrivals, 1)
    prometheus = Prometheus(env, fleet, 5)
    env.process(prometheus.run())
    env.run(until=6)
    fleet.scale(2)
    env.run(until=20.5)
    assert len(prometheus.series) == 2
    increase = prometheus.increase(10)
    assert increase is None  # the last scrape was at 20: no scrape is fresh now
    prometheus.scrape()
    increase = prometheus.increase(10)
    assert increase is not None
    assert sum(increase) / 10 == pytest.approx(60, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [policies.keda_pending(1), policies.hpa_cpu(0.7), policies.knative(3)], ids=["keda", "hpa", "knative"]
)
def test_every_policy_grows_with_the_load_and_the_same_run_gives_the_same_result(policy: Policy) -> None:
    rate = np.concatenate([np.full(600, 50.0), np.full(1400, 250.0)])
    trace = Trace(name="step", family="steps", arrivals=generated(rate, 1, 3), duration_s=200)
    first, second = (serve(trace, profile(), policy, start=1) for _ in range(2))
    assert first == second
    assert first.most >= 3


@pytest.mark.slow
def test_ours_keeps_the_slo_on_a_ramp() -> None:
    measured = capacity(load_report(profile()))
    rate = np.concatenate([np.full(1000, 100.0), np.linspace(100, 400, 2500), np.full(1000, 400.0)])
    trace = Trace(name="ramp", family="ramps", arrivals=generated(rate, 1, 3), duration_s=450)
    outcome = serve(trace, profile(), policies.shiplift(Scaling(capacity=measured)), start=2)
    assert outcome.missed <= 0.01 * outcome.requests
    assert outcome.replica_s < 450 * 5


# --- the clairvoyant ------------------------------------------------------------------------------------------------


def test_the_clairvoyant_keeps_the_slo_for_less_than_the_peak_s_replicas() -> None:
    rate = np.concatenate([np.full(600, 50.0), np.full(600, 250.0), np.full(600, 50.0)])
    trace = Trace(name="spike", family="spikes", arrivals=generated(rate, 1, 3), duration_s=180)
    schedule = clairvoyant.schedule(trace, profile())
    outcome = clairvoyant.run(trace, profile(), schedule)
    assert outcome.missed <= clairvoyant.ALLOWED * outcome.requests
    assert clairvoyant.fluid_s(trace, profile()) < outcome.replica_s < 180 * max(schedule)
    late = clairvoyant.run(trace, profile(), schedule, ahead_s=0)
    assert late.missed > outcome.missed


def test_adding_a_pod_costs_its_start_and_drain() -> None:
    dip = [{1: 9, 2: 0}, {1: 0}, {1: 9, 2: 0}]  # one slot of 15 s needs one pod less: 17 s for starting it again
    assert clairvoyant.viterbi(dip, profile(start_s=12, drain_s=5), price=100) == [2, 2, 2]
    assert clairvoyant.viterbi([dip[0], dip[1], dip[1], dip[2]], profile(), price=100) == [2, 1, 1, 2]


# --- traces ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_are_twenty_traces_and_more_and_they_are_the_same_each_time() -> None:
    listed, again = catalogue(), catalogue()
    assert len(listed) >= 20
    assert len({trace.name for trace in listed}) == len(listed)
    assert all(np.array_equal(a.arrivals, b.arrivals) for a, b in zip(listed, again, strict=True))
    assert not np.array_equal(listed[0].arrivals, catalogue(1)[0].arrivals)


@pytest.mark.parametrize("cv", [1, 4])
def test_gamma_arrivals_have_their_rate_and_their_cv(cv: float) -> None:
    arrivals = poisson(200, 2000, cv=cv).arrivals
    gaps = np.diff(arrivals)
    assert len(arrivals) / 2000 == pytest.approx(200, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_a_recorded_trace_is_read_from_any_origin(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("1700000003.5\n1700000001.0\n1700000002.25\n")
    trace = from_file(tmp_path / "real.txt")
    assert (trace.name, trace.family, trace.duration_s) == ("real", "recorded", 4)
    assert trace.arrivals.tolist() == [0.0, 1.25, 2.5]


def test_shapes_begin_and_return_to_the_base() -> None:
    t = np.array([0.0, 101.0, 130.0, 160.0, 299.0])
    assert traces.spikes(3, 60, 200)(t).tolist() == [1, 3, 3, 1, 1]


# --- the comparison -------------------------------------------------------------------------------------------------


def outcome(missed: int, replica_s: float) -> Outcome:
    return Outcome(requests=1000, missed=missed, replica_s=replica_s, p99_ms=1, most=1)


def test_a_rival_is_compared_at_our_cost() -> None:
    rival = at_equal_cost(lambda setting: {"a": outcome(round(10 * setting), 1000 / setting)}, 1, 16, 150)
    assert rival.relative_cost == pytest.approx(1, abs=0.1)
    assert rival.missed_percent == pytest.approx(6.67, abs=0.3)
    assert rival.outcomes == {"a": outcome(round(10 * rival.setting), 1000 / rival.setting)}
    assert [tried["setting"] for tried in rival.settings] == sorted(tried["setting"] for tried in rival.settings)


def test_goals_are_judged_per_family_and_say_what_limits_them() -> None:
    def one(missed: int, replica_s: float) -> dict[str, Outcome]:
        return {"t": outcome(missed, replica_s)}

    steps = Trace(name="t", family="steps", arrivals=np.array([0.0]), duration_s=1)
    shared = Setup(profile=profile(), capacity=capacity(load_report(profile())), traces=[steps])
    outcomes = {OURS: one(30, 110), "clairvoyant": one(10, 100), "clairvoyant, unforeseen": one(25, 100)}
    families = by_family(shared, outcomes)
    assert families["steps"][OURS] == {"missed_percent": 3.0, "relative_cost": 1.1}
    rival = at_equal_cost(lambda _: one(150, 110), 1, 2, 110)
    judged = {(goal["traces"], goal["goal"]): goal for goal in goals(families, {"KEDA": rival}, 12)}
    missed = judged["steps", "at most 1 % of requests over the SLO"]
    assert (missed["measured"], missed["met"]) == (3.0, False)
    assert "misses 2.5 %" in missed["limit"]
    assert judged["all", "at most 1.15x the clairvoyant's replica-seconds"]["met"]
    assert judged["all", "5x fewer over the SLO than KEDA, at equal cost"]["measured"] == 5.0
    assert missed_percent(outcomes[OURS].values()) == 3.0
    assert table(families).row_count == 3
