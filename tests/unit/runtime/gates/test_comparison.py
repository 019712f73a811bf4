import math
import re

import pytest

from shiplift.runtime.gates.comparison import decided, interval_of, speed_checks, worse_reading
from shiplift.runtime.gates.statistics import ratio_interval, rounds_to_decide
from shiplift.runtime.records.measurement import Comparison
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.spec.measurement import ComparisonTarget
from tests.unit.examples import comparison

TARGET = ComparisonTarget(p99_percent=50, throughput_percent=25, confidence_percent=90)


def noisy(p99_ratio: float = 1.3, throughput_ratio: float = 0.9, looks: int = 1) -> Comparison:
    measured = comparison(p99_ratio=p99_ratio, throughput_ratio=throughput_ratio, spread=0.2)
    return measured.model_copy(update={"looks": looks})


@pytest.mark.parametrize("looks", [1, 3])
def test_each_side_s_interval_is_of_its_ratios_at_the_target_s_confidence(looks: int) -> None:
    measured = noisy(looks=looks)
    for side, ratios in (("p99", measured.p99_ratios), ("throughput", measured.throughput_ratios)):
        assert interval_of(measured, side, 90) == ratio_interval(ratios, confidence=0.9, looks=looks)


def test_worse_is_more_p99_and_less_throughput() -> None:
    measured = comparison(p99_ratio=1.2, throughput_ratio=0.9, spread=0.01)
    p99, throughput = (worse_reading(measured, side, 50, TARGET) for side in ("p99", "throughput"))
    assert p99.value == pytest.approx(20, abs=0.1)
    assert throughput.value == pytest.approx(10, abs=0.1)
    for reading in (p99, throughput):
        assert reading.value is not None
        assert reading.low < reading.value < reading.high
        assert reading.text == f"{reading.value:.1f} % worse ({reading.low:.1f} to {reading.high:.1f} %)"


def test_each_side_has_its_own_limit() -> None:
    checks = list(speed_checks(comparison(spread=0.01), TARGET))
    assert [(check.name, check.limit, check.unit) for check in checks] == [
        ("p99 against the champion", 50, "% worse"),
        ("throughput against the champion", 25, "% worse"),
    ]


@pytest.mark.parametrize(("side", "limit", "bound"), [("p99", 50, 1.5), ("throughput", 25, 0.75)])
@pytest.mark.parametrize("looks", [1, 3])
def test_the_rounds_that_are_missing_are_those_needed_less_those_there_are(
    side: str, limit: float, bound: float, looks: int
) -> None:
    measured = noisy(looks=looks)
    ratios = measured.p99_ratios if side == "p99" else measured.throughput_ratios
    needed = rounds_to_decide(ratios, bound, confidence=0.9, looks=looks)
    assert needed is not None
    assert needed > 5
    assert "4 rounds show differences of" in worse_reading(measured, side, limit, TARGET).remedy
    assert f"about {needed - 4} more would decide it" in worse_reading(measured, side, limit, TARGET).remedy


def test_one_round_shows_nothing() -> None:
    remedy = worse_reading(comparison(rounds=1), "p99", 50, TARGET).remedy
    assert remedy.startswith("1 rounds show nothing; it is too close to the limit")


def test_a_limit_of_all_throughput_is_decided_by_no_number_of_rounds() -> None:
    assert "any number of rounds" in worse_reading(noisy(), "throughput", 100, TARGET).remedy


def test_there_is_always_one_round_more_to_do() -> None:
    steady = Comparison(version=1, concurrency=4, p99_ratios=(1.0,) * 5, throughput_ratios=(1.0,) * 5)
    assert "about 1 more would decide it" in worse_reading(steady, "p99", 50, TARGET).remedy


@pytest.mark.parametrize(
    ("p99_ratio", "throughput_ratio", "expected"),
    [(1.0, 1.0, True), (3.0, 1.0, True), (1.5, 1.0, False), (1.0, 0.75, False), (math.nan, 1.0, False)],
)
def test_a_comparison_is_decided_when_both_sides_are(p99_ratio: float, throughput_ratio: float, expected: bool) -> None:
    assert decided(comparison(p99_ratio=p99_ratio, throughput_ratio=throughput_ratio), TARGET) is expected


def test_rounds_without_a_ratio_are_told() -> None:
    reading = worse_reading(comparison(p99_ratio=math.nan), "p99", 50, TARGET)
    assert (reading.value, reading.text) == (None, "its rounds yielded no ratio")
    (check, _) = speed_checks(comparison(p99_ratio=math.nan), TARGET)
    assert check.verdict is Outcome.INCONCLUSIVE
    assert re.search("no ratio", check.reason)
