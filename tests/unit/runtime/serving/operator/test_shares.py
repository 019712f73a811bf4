import random

import pytest

from shiplift.runtime.serving.operator.shares import consistent, requests_needed


@pytest.mark.parametrize("percent", [1, 2, 5, 10, 25, 50, 75, 90, 99])
def test_enough_requests_tell_a_share_from_none_and_all(percent: int) -> None:
    needed = requests_needed(percent)
    assert 40 <= needed <= 600
    assert not consistent(0, needed, percent)
    assert not consistent(needed, needed, percent)
    assert consistent(round(needed * percent / 100), needed, percent)


@pytest.mark.parametrize(("percent", "neighbour"), [(10, 50), (50, 10), (10, 30), (5, 25), (50, 90)])
def test_and_from_its_neighbours(percent: int, neighbour: int) -> None:
    needed = requests_needed(percent)
    assert not consistent(round(needed * neighbour / 100), needed, percent)


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
@pytest.mark.parametrize("asked", [40, 240])
def test_the_interval_is_the_one_of_clopper_and_pearson(percent: int, asked: int) -> None:
    from scipy.stats import beta

    for answered in range(1, asked):
        low = beta.ppf(0.005, answered, asked - answered + 1)
        high = beta.ppf(0.995, answered + 1, asked - answered)
        assert consistent(answered, asked, percent) == (low <= percent / 100 <= high)


def test_a_true_share_is_rarely_doubted() -> None:
    generator, needed = random.Random(1), requests_needed(10)
    counts = [sum(generator.random() < 0.1 for _ in range(needed)) for _ in range(300)]
    assert sum(not consistent(count, needed, 10) for count in counts) <= 9


def test_all_means_all() -> None:
    assert consistent(60, 60, 100)
    assert not consistent(59, 60, 100)
    assert not consistent(0, 0, 100)
    assert consistent(0, 60, 0)
