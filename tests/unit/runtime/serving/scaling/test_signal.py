import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.scaling.signal import Sample, Scaling, decide

SCALING = Scaling(capacity=Capacity(peak_per_s=100, within_slo_per_s=85), minimum=2, maximum=20)
NOW = 1000.0

rates = st.lists(st.floats(0, 5000), min_size=1, max_size=80)
waits = st.floats(0, 5000)
counts = st.integers(1, 20)


def history(values: list[float], waiting: float = 0.0, last: float = NOW) -> list[Sample]:
    """Samples every 5 s up to `last`; only the last has requests that wait."""
    first = last - 5 * (len(values) - 1)
    samples = [Sample(first + 5 * number, value, 0.0) for number, value in enumerate(values)]
    return [*samples[:-1], samples[-1]._replace(waiting=waiting)]


def replicas(values: list[float], waiting: float = 0.0) -> int:
    return decide(history(values, waiting), NOW, 2, SCALING).replicas


def test_a_steady_rate_gets_its_replicas_and_the_measured_headroom() -> None:
    # 280/s and the headroom of Poisson arrivals, 15/s x (1 + 0.6), are 304/s
    assert replicas([280.0] * 80) == 4
    assert replicas([270.0] * 80) == 3


def test_a_burstier_service_gets_more_headroom() -> None:
    bursty = [280.0 + swing for swing in (-60, 40, 55, -45, 25, -30, 60, -45) for _ in range(2)] * 5
    assert replicas(bursty) > replicas([280.0] * 80)


def test_a_ramp_is_followed_ahead_of_time() -> None:
    ramp = [200.0] * 40 + [200.0 + 25 * step for step in range(1, 9)]  # 5/s more each second: 400 now, 475 in 15 s
    decision = decide(history(ramp), NOW, 3, SCALING)
    assert (decision.replicas, decision.reason) == (5, "trend")


def test_a_short_trough_removes_nothing() -> None:
    trough = [380.0] * 70 + [40.0] * 3
    assert decide(history(trough), NOW, 4, SCALING) == (4, "held")
    assert decide(history([380.0] * 60 + [40.0] * 30), NOW, 4, SCALING).replicas == 2


def test_what_waits_is_worked_off_in_time() -> None:
    assert replicas([300.0] * 80, waiting=3000) == 6  # 300/s in the queue's 10 s, on top of 300/s


@pytest.mark.parametrize(
    "samples",
    [
        [],
        history([50.0] * 10, last=NOW - 60),
        history([math.nan] * 10),
        history([math.inf]),
        [Sample(NOW, 50.0, math.nan)],
        history([50.0] * 10, last=NOW + 60)[-1:],
    ],
    ids=["empty", "stale", "NaN", "infinite", "NaN waits", "from the future"],
)
@given(current=counts)
def test_without_fresh_finite_samples_nothing_is_removed(samples: list[Sample], current: int) -> None:
    decision = decide(samples, NOW, current, SCALING)
    assert decision == (max(current, SCALING.minimum), "no metrics")


@given(values=rates, current=counts, starting=st.integers(1, 5))
def test_nothing_is_removed_while_a_replica_starts(values: list[float], current: int, starting: int) -> None:
    decision = decide(history(values), NOW, current, SCALING, starting=starting)
    assert decision.replicas >= min(current, SCALING.maximum)


@given(values=rates, waiting=waits, current=counts)
def test_the_wish_is_within_the_bounds(values: list[float], waiting: float, current: int) -> None:
    decision = decide(history(values, waiting), NOW, current, SCALING)
    assert SCALING.minimum <= decision.replicas <= SCALING.maximum


@given(values=rates, waiting=waits, times=st.floats(1, 10))
def test_more_traffic_never_means_fewer_replicas(values: list[float], waiting: float, times: float) -> None:
    assert replicas([times * value for value in values], waiting) >= replicas(values, waiting)


@given(values=rates, waiting=waits, more=waits)
def test_a_longer_queue_never_means_fewer_replicas(values: list[float], waiting: float, more: float) -> None:
    assert replicas(values, waiting + more) >= replicas(values, waiting)


@given(values=rates, lost=st.sets(st.integers(0, 79)))
def test_lost_samples_in_between_are_left_out(values: list[float], lost: set[int]) -> None:
    samples = history([*values, 100.0])
    holes = [s._replace(arrivals_per_s=math.nan) if n in lost else s for n, s in enumerate(samples[:-1])]
    left = [s for n, s in enumerate(samples[:-1]) if n not in lost]
    assert decide([*holes, samples[-1]], NOW, 3, SCALING) == decide([*left, samples[-1]], NOW, 3, SCALING)
