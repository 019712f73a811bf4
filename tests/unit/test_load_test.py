import math

import pytest

from runtime.records import LoadPoint
from steps.load_test import _ratios

from .examples import point


def rounds(*pairs: tuple[float, float]) -> list[tuple[LoadPoint, LoadPoint]]:
    """Rounds of champion and challenger, each a throughput; p99 is its inverse."""
    return [tuple(point(throughput_per_s=t, p99_ms=1000 / t) for t in pair) for pair in pairs]  # type: ignore[misc]


def test_ratios_are_challenger_over_champion() -> None:
    found = _ratios(7, 16, rounds((100, 200), (100, 200), (100, 200)))
    assert (found.version, found.concurrency, found.rounds) == (7, 16, 3)
    assert (found.throughput_ratio, found.p99_ratio) == (2, 0.5)
    assert (found.throughput_noise, found.p99_noise) == (0, 0)


def test_one_bad_round_moves_the_noise_and_not_the_ratio() -> None:
    found = _ratios(1, 4, rounds((100, 110), (100, 110), (100, 20), (100, 110), (100, 110)))
    assert found.throughput_ratio == pytest.approx(1.1)
    assert found.throughput_noise > 30


def test_a_round_is_compared_with_itself_so_a_slow_machine_changes_nothing() -> None:
    found = _ratios(1, 4, rounds((100, 120), (10, 12), (50, 60)))
    assert found.throughput_ratio == pytest.approx(1.2)
    assert found.throughput_noise == pytest.approx(0, abs=1e-9)


def test_a_single_round_has_no_bound_on_its_noise() -> None:
    assert _ratios(1, 4, rounds((100, 100))).p99_noise == math.inf
