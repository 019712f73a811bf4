"""The fast half of the scaling rule."""

import math

from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.scaling.burst import FRESH_S, Burst, QueueReading, at_least

RULE = Burst(capacity=Capacity(peak_per_s=100, within_slo_per_s=80), maximum=10)


def readings(
    arrivals: float, served: float, *, waiting: float = 0, ready: int = 1, count: int = 3
) -> list[QueueReading]:
    """What two-second readings show of steady arrivals and a server that ends as many as it can."""
    growth = 2 * max(0.0, arrivals - served)
    ended = 2 * min(arrivals, served)
    return [QueueReading(2.0 * at, ended * at, waiting + growth * at, ready) for at in range(count)]


def test_a_queue_that_grows_gets_replicas_for_what_arrives_and_for_what_waits() -> None:
    assert at_least(readings(250, 100), 4, 1, RULE) == math.ceil((250 + 600 / 10) / 100)


def test_a_queue_within_patience_gets_no_pods() -> None:
    assert at_least(readings(100, 100, waiting=19), 4, 1, RULE) == 1
    assert at_least(readings(100, 100, waiting=21), 4, 1, RULE) == 2


def test_stale_or_single_readings_do_not_count() -> None:
    step = readings(500, 100)
    assert at_least(step, 4 + FRESH_S + 0.1, 1, RULE) == 1
    assert at_least(step[-1:], 4, 1, RULE) == 1
    assert at_least([], 4, 1, RULE) == 1


def test_a_server_that_is_gone_takes_its_count_along() -> None:
    before, after = QueueReading(0, 5000, 0, 2), QueueReading(2, 2600, 60, 1)
    assert at_least([before, after], 2, 2, RULE) == 2


@given(st.lists(st.tuples(*[st.floats(0, 1e9)] * 3, st.integers(0, 9)), max_size=5), st.integers(1, 10))
def test_it_never_takes_a_replica_away_and_keeps_the_maximum(rows: list[tuple[float, ...]], current: int) -> None:
    some = [QueueReading(at, ended, waiting, int(ready)) for at, ended, waiting, ready in sorted(rows)]
    now = some[-1].at if some else 0.0
    assert current <= at_least(some, now, current, RULE) <= max(current, RULE.maximum)
