import math

import pytest

from shiplift.runtime.gates.checks import CheckReading, check, check_limit, fail_if, judged
from shiplift.runtime.gates.remedies import CheckKind
from shiplift.runtime.records.precision import JudgeBy
from shiplift.runtime.records.verdict import Outcome

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE


def reading(low: float, value: float, high: float, judge_by: JudgeBy = "interval") -> CheckReading:
    return CheckReading(value=value, low=low, high=high, text="it is so", remedy="measure more", judge_by=judge_by)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(8, 10, PASS), (8, 10.1, INCONCLUSIVE), (10, 12, INCONCLUSIVE), (10.1, 12, FAIL)],
)
def test_a_bound_on_the_limit_is_within_it(low: float, high: float, verdict: Outcome) -> None:
    assert judged(reading(low, (low + high) / 2, high), 10, upper=True) is verdict
    assert judged(reading(-high, -(low + high) / 2, -low), -10, upper=False) is verdict


@pytest.mark.parametrize(("value", "verdict"), [(10, PASS), (10.1, INCONCLUSIVE)])
def test_a_score_passes_by_its_value_alone(value: float, verdict: Outcome) -> None:
    assert judged(reading(8, value, 12, "score"), 10, upper=True) is verdict


@pytest.mark.parametrize("value", [None, math.nan])
def test_what_has_no_number_decides_nothing(value: float | None) -> None:
    missing = CheckReading(value=value, low=-math.inf, high=math.inf, text="it was not asked for")
    result = check_limit(CheckKind.MEMORY, "size", missing, 10, "MB")
    assert (result.verdict, result.measured, result.low, result.high) == (INCONCLUSIVE, None, None, None)
    assert result.reason == ("it was not asked for" if value is None else "size could not be measured")


def test_a_reason_gives_the_limit_and_what_would_decide_it() -> None:
    failed = check_limit(CheckKind.MEMORY, "size", reading(11, 12, 13), 10, "MB")
    assert (failed.verdict, failed.reason) == (FAIL, "it is so, the limit is 10")
    undecided = check_limit(CheckKind.MEMORY, "size", reading(9, 10, 11), 10, "MB")
    assert (undecided.verdict, undecided.reason) == (INCONCLUSIVE, "it is so, the limit is 10: measure more")
    assert (undecided.measured, undecided.low, undecided.high, undecided.unit) == (10, 9, 11, "MB")


def test_without_a_limit_whatever_is_measured_passes_and_blocks_by_default() -> None:
    result = check_limit(CheckKind.MEMORY, "size", reading(1, 2, 3), None, "MB")
    assert (result.verdict, result.reason, result.severity) == (PASS, "", "block")
    assert check_limit(CheckKind.MEMORY, "size", reading(1, 2, 3), None, "MB", severity="warn").severity == "warn"


def test_a_lower_limit_is_asked_for() -> None:
    assert check_limit(CheckKind.MEMORY, "rate", CheckReading.exact(11, "11"), 10, "/s", upper=False).verdict is PASS
    assert check_limit(CheckKind.MEMORY, "rate", CheckReading.exact(11, "11"), 10, "/s").verdict is FAIL


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((5.0, 5.0), (None, None)),
        ((4.0, 5.0), (4.0, 5.0)),
        ((-math.inf, 6.0), (None, 6.0)),
        ((4.0, math.nan), (4.0, None)),
    ],
)
def test_bounds_are_told_if_they_say_more_than_the_number(
    bounds: tuple[float, float], expected: tuple[float | None, float | None]
) -> None:
    result = check(CheckKind.MEMORY, "size", 5.0, 10, "MB", fail_if(False), "", bounds=bounds)
    assert (result.low, result.high) == expected
    assert result.verdict is PASS
