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


def test_several_looks_share_what_one_may_err() -> None:
    assert shared(0.9, 1) == pytest.approx(0.9)
    assert shared(0.9, 4) == pytest.approx(0.975)
    assert shared(0.9, 0) == pytest.approx(0.9)


def test_without_a_word_there_was_one_look() -> None:
    values = [0.8, 1.1, 1.3, 0.9]
    assert ratio_interval(values) == ratio_interval(values, looks=1, confidence=0.95)
    assert smallest_difference(values) == smallest_difference(values, looks=1, confidence=0.95)
    assert rounds_to_decide(values, 1.2) == rounds_to_decide(values, 1.2, looks=1, confidence=0.95)


def test_the_ratio_is_the_geometric_mean() -> None:
    assert ratio_interval([0.5, 2.0]).estimate == pytest.approx(1.0)
    assert ratio_interval([1.1] * 5).estimate == pytest.approx(1.1)


@pytest.mark.parametrize("few", [[], [1.3]])
def test_too_few_rounds_bound_nothing(few: list[float]) -> None:
    interval = ratio_interval(few)
    assert (interval.low, interval.high) == (0, math.inf)
    assert smallest_difference(few) == math.inf
    assert rounds_to_decide(few, 2.0) is None


def test_student_s_interval_of_two_rounds_is_that_of_the_formula() -> None:
    values = [math.exp(-0.1), math.exp(0.1)]  # the standard error of their logarithms is 0.1
    interval = ratio_interval(values)
    assert (interval.confidence, interval.rounds) == (0.95, 2)
    assert interval.low == pytest.approx(math.exp(-12.706 * 0.1), rel=1e-4)
    assert interval.high == pytest.approx(math.exp(12.706 * 0.1), rel=1e-4)
    assert smallest_difference(values) == pytest.approx(100 * (math.exp((12.706 + 1.376) * 0.1) - 1), rel=1e-3)


@pytest.mark.parametrize("outlier", [20.0, 1 / 20])
def test_an_outlier_among_many_widens_the_interval_on_its_side_beyond_student_s(outlier: float) -> None:
    values = [1.0] * 39 + [outlier]
    interval = ratio_interval(values, confidence=0.98)
    mean, error = math.log(outlier) / 40, abs(math.log(outlier)) / 40
    low, high = mean - student(0.98, 39) * error, mean + student(0.98, 39) * error
    if outlier > 1:
        assert math.log(interval.low) == pytest.approx(low)
        assert math.log(interval.high) == pytest.approx(4 * mean)  # of 100 resamples, the 99th has it four times
    else:
        assert math.log(interval.low) == pytest.approx(4 * mean)
        assert math.log(interval.high) == pytest.approx(high)


def test_rounds_too_noisy_for_a_float_bound_nothing_on_that_side() -> None:
    interval = ratio_interval([1e-300, 1e300])
    assert (interval.low, interval.high) == (0, math.inf)
    assert smallest_difference([1e-300, 1e300]) == math.inf


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


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2, 0.6])
@pytest.mark.parametrize("looks", [1, 5])
def test_fewer_rounds_than_it_says_would_not_decide_it(spread: float, looks: int) -> None:
    values, limit = [math.exp(sign * spread) for sign in (-1, 1, -1, 1)], 1.1
    deviation = float(np.log(values).std(ddof=1))

    def decides(rounds: int) -> bool:
        half = student(shared(0.95, looks), rounds - 1) * deviation / math.sqrt(rounds)
        return half < math.log(limit)

    assert rounds_to_decide(values, limit, looks=looks) == next(rounds for rounds in range(2, 1001) if decides(rounds))


@pytest.mark.parametrize("limit", [0.0, -0.5])
def test_no_number_of_rounds_decides_a_limit_that_no_ratio_reaches(limit: float) -> None:
    assert rounds_to_decide([1.0, 1.1, 0.9], limit) is None


def test_a_thousand_rounds_are_the_most() -> None:
    values = [math.exp(-0.1), math.exp(0.1)]
    half = student(0.95, 999) * float(np.log(values).std(ddof=1)) / math.sqrt(1000)
    assert rounds_to_decide(values, math.exp(half * 1.0001)) == 1000
    assert rounds_to_decide(values, math.exp(half * 0.9999)) is None


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
