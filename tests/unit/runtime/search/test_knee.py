import math

import pytest

from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.knee import knee, told
from tests.unit.examples import config, trial


def at(throughput: float, p99: float, batch: int = 1, **more: object) -> Trial:
    return trial(**{"throughput_per_s": throughput, "p99_ms": p99, "config": config(batch)} | more)


@pytest.mark.parametrize(
    ("trials", "chosen"),
    [
        ([at(1000, 40), at(970, 12)], 1),  # a little throughput costs much latency
        ([at(1000, 40), at(970, 38)], 0),  # or hardly any
        ([at(1000, 40), at(940, 1)], 0),  # throughput is what was asked for
        ([at(1000, 40), at(970, 12), at(960, 11.7)], 1),
        ([at(1000, 40), at(1000, 40)], 0),
        ([at(1000, 0)], 0),
        ([at(1000, 40), at(0, 1, error="died")], 0),
    ],
)
def test_the_knee_gives_up_a_little_throughput_for_much_latency(trials: list[Trial], chosen: int) -> None:
    assert knee(trials, Goal()) == chosen


def test_the_knee_is_told_with_what_was_given_up() -> None:
    fast, best = at(1000, 40, 32), at(970, 12, 8)
    text = "the knee of the curve was chosen: 970 inferences per second with a p99 of 12 ms"
    assert told([fast, best], best, Goal()) == f"{text}; the fastest measurement is 1000 with 40 ms"
    assert "which is the fastest configuration" in told([fast, best], fast, Goal())


def test_nothing_is_told_where_a_limit_decided_or_there_was_no_choice() -> None:
    fast, best = at(1000, 40, 32), at(970, 12, 8)
    assert told([fast, best], best, Goal(p99_ms=20)) == ""
    assert told([best], best, Goal()) == ""
    assert told([], best, Goal()) == ""


def test_short_windows_do_not_count_beside_long_ones() -> None:
    lucky, best = at(5000, 1, 32, window_ms=100), at(970, 12, 8, window_ms=300)
    assert "which is the fastest configuration" in told([lucky, best], best, Goal())
    assert math.isfinite(Goal().utility(lucky))
