from collections.abc import Callable

import numpy as np
import pytest

from shiplift.runtime.gates import comparison
from shiplift.runtime.measure.comparing import ComparisonPlan, compare, incomparable, looks_within
from shiplift.runtime.model.generation.signature import SIGNATURE
from shiplift.runtime.records.measurement import Comparison, LoadPoint
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.measurement import ComparisonTarget, Load
from tests.unit.examples import champion, package, point

TARGET = ComparisonTarget(p99_percent=50, throughput_percent=25)


def machine(noise: float, ratio: float, order: list[str]) -> tuple[Callable[[], LoadPoint], Callable[[], LoadPoint]]:
    """A champion at 1000/s and a challenger `ratio` times as fast, on a noisy machine."""
    rng = np.random.default_rng(4)

    def side(name: str, rate: float) -> Callable[[], LoadPoint]:
        def measure() -> LoadPoint:
            order.append(name)
            measured = rate * float(np.exp(rng.normal(0, noise)))
            return point(throughput_per_s=measured, p99_ms=10_000 / measured)

        return measure

    return side("A", 1000), side("B", 1000 * ratio)


def run(noise: float, ratio: float, *, rounds: int = 4, budget_s: float = 1e9) -> tuple[list[str], Comparison]:
    order: list[str] = []
    return order, compare(
        *machine(noise, ratio, order), 7, 16, ComparisonPlan(rounds=rounds, budget_s=budget_s, target=TARGET)
    )


def verdicts(result: Comparison) -> set[Outcome]:
    return {check.verdict for check in comparison.speed_checks(result, TARGET)}


@pytest.fixture(autouse=True)
def one_second_per_round(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1_000_000))
    monkeypatch.setattr("shiplift.runtime.measure.comparing.time.monotonic", lambda: float(next(ticks)))


def test_the_champion_is_measured_against_itself_first_and_then_in_turn() -> None:
    order, result = run(0.001, 1.0)
    assert order == list("AAAA" + "ABBA" * 2)
    assert (result.version, result.concurrency, result.rounds) == (7, 16, 4)
    assert len(result.noise_p99_ratios) == len(result.noise_throughput_ratios) == 2


def test_a_quiet_machine_needs_only_the_minimum_of_rounds() -> None:
    assert run(0.01, 1.0)[1].rounds == 4
    assert verdicts(run(0.01, 1.0)[1]) == {Outcome.PASS}
    assert verdicts(run(0.01, 0.5)[1]) == {Outcome.FAIL}


def test_a_noisy_machine_takes_more_rounds_until_the_limits_are_decided() -> None:
    _, result = run(0.35, 1.0)
    assert result.rounds > 4
    assert verdicts(result) == {Outcome.PASS}


def test_when_time_runs_out_the_checks_say_how_many_more_rounds_are_needed() -> None:
    _, result = run(0.6, 0.9, rounds=2, budget_s=1)
    assert result.rounds == 2
    checks = list(comparison.speed_checks(result, TARGET))
    assert Outcome.INCONCLUSIVE in {check.verdict for check in checks}
    assert any("would decide it" in check.reason for check in checks)


def test_the_number_of_looks_is_fixed_before_the_first_round() -> None:
    plan = ComparisonPlan(rounds=4, budget_s=40, target=TARGET)
    assert [looks_within(plan, seconds) for seconds in (100, 10, 5, 2.5, 1, 0)] == [1, 1, 2, 3, 4, 1]


@pytest.mark.parametrize("releases", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_an_equal_challenger_is_seldom_refused_however_often_it_looks(releases: int) -> None:
    rng = np.random.default_rng(5)
    target = ComparisonTarget(p99_percent=0, throughput_percent=0)
    refused = 0
    for _ in range(releases):

        def side() -> LoadPoint:
            return point(throughput_per_s=1000 * float(np.exp(rng.normal(0, 0.1))), p99_ms=10)

        result = compare(side, side, 1, 4, ComparisonPlan(rounds=3, budget_s=60, target=target))
        failed = [c for c in comparison.speed_checks(result, target) if c.name.startswith("throughput")]
        refused += failed[0].verdict is Outcome.FAIL
    assert refused / releases <= 0.06


def test_why_a_champion_is_not_compared_with_a_challenger() -> None:
    streams = package(signature=SIGNATURE)
    assert "this one streams its answers" in incomparable(champion(), streams, Load())
    assert incomparable(champion(signature=SIGNATURE), streams, Load()) == ""
    assert incomparable(champion(), package(), Load()) == ""
    assert incomparable(Champion(), package(), Load()) == "there is no champion to compare with"
    assert "not promoted by Shiplift" in incomparable(Champion(version=3), package(), Load())
    assert "takes at most" in incomparable(champion(), package(), Load(batch=1000))
