import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.gates.statistics import ratio_interval, rounds_to_decide, shared, smallest_difference, student

ratios = st.lists(st.floats(0.1, 10), min_size=2, max_size=12)


def test_quantiles_are_those_of_the_tables() -> None:
    assert student(0.95, 1) == pytest.approx(12.706, abs=1e-3)
    assert student(0.95, 10) == pytest.approx(2.228, abs=1e-3)
    assert student(0.95, 10_000) == pytest.approx(1.960, abs=1e-3)


def test_the_ratio_is_the_geometric_mean() -> None:
    assert ratio_interval([0.5, 2.0]).estimate == pytest.approx(1.0)
    assert ratio_interval([1.1] * 5).estimate == pytest.approx(1.1)


@pytest.mark.parametrize("few", [[], [1.3]])
def test_too_few_rounds_bound_nothing(few: list[float]) -> None:
    interval = ratio_interval(few)
    assert (interval.low, interval.high) == (0, math.inf)
    assert smallest_difference(few) == math.inf
    assert rounds_to_decide(few, 2.0) is None


@pytest.mark.parametrize("bad", [[1.0, math.nan], [1.0, math.inf], [1.0, 0.0]])
def test_what_is_no_ratio_bounds_nothing(bad: list[float]) -> None:
    interval = ratio_interval(bad)
    assert math.isnan(interval.estimate)
    assert (interval.low, interval.high) == (0, math.inf)


@given(ratios)
def test_an_interval_holds_its_estimate_and_does_not_care_which_side_is_which(values: list[float]) -> None:
    interval, inverse = ratio_interval(values), ratio_interval([1 / value for value in values])
    assert interval.low <= interval.estimate * (1 + 1e-9)
    assert interval.estimate <= interval.high * (1 + 1e-9)
    assert interval.estimate == pytest.approx(1 / inverse.estimate)


@given(ratios, st.integers(2, 6))
def test_looking_more_often_makes_it_wider(values: list[float], looks: int) -> None:
    once, often = ratio_interval(values), ratio_interval(values, looks=looks)
    assert often.low <= once.low * (1 + 1e-9)
    assert often.high >= once.high * (1 - 1e-9)
    assert shared(0.95, looks) > 0.95


@pytest.mark.parametrize("rounds", [3, 5, 10])
def test_nineteen_of_twenty_intervals_hold_the_truth(rounds: int) -> None:
    rng = np.random.default_rng(1)
    truth, trials = 1.2, 300
    held = 0
    for _ in range(trials):
        interval = ratio_interval(list(truth * np.exp(rng.normal(0, 0.2, rounds))))
        held += interval.low <= truth <= interval.high
    assert held / trials >= 0.92


def test_a_difference_of_the_smallest_size_is_seen_four_times_of_five() -> None:
    rng = np.random.default_rng(2)
    size, seen, trials = 10, 0, 300
    change = 1 + smallest_difference(list(np.exp(rng.normal(0, 0.1, 400)[:size])), confidence=0.95) / 100
    for _ in range(trials):
        seen += ratio_interval(list(change * np.exp(rng.normal(0, 0.1, size)))).low > 1
    assert 0.6 < seen / trials < 0.97


@pytest.mark.parametrize("limit", [1.2, 1.5, 0.7])
def test_as_many_rounds_as_it_says_decide_it(limit: float) -> None:
    rng = np.random.default_rng(3)
    values = list(np.exp(rng.normal(0, 0.15, 6)))
    needed = rounds_to_decide(values, limit)
    assert needed is not None
    logs = np.log(values)
    more = list(np.exp(rng.normal(logs.mean(), logs.std(ddof=1), 2 * needed + 4)))
    interval = ratio_interval(more)
    assert interval.high < limit or interval.low > limit


def test_no_number_of_rounds_decides_what_lies_on_the_limit() -> None:
    assert rounds_to_decide([0.9, 1.1, 0.95, 1.06], 1.0005) is None


@given(ratios)
def test_quieter_rounds_need_no_more_of_them(values: list[float]) -> None:
    limit = 100.0
    noisy = rounds_to_decide(values, limit)
    middle = math.exp(float(np.log(values).mean()))
    quiet = rounds_to_decide([middle * math.sqrt(value / middle) for value in values], limit)
    if noisy is not None:
        assert quiet is not None
        assert quiet <= noisy
