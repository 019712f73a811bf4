import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import policy
from runtime.records import Champion, Check, Outcome, Package
from runtime.spec import Data, Parity, Quality, Regression, Slo

from .examples import case, champion, comparison, load_report, package, point

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
DATA = Data(min_samples=100)


def named(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


def explained(check: Check) -> bool:
    """A pass needs no reason; anything else has one."""
    return (check.verdict is PASS) == (check.reason == "")


# --- parity ---


@pytest.mark.parametrize(
    ("max_abs", "max_rel", "verdict"),
    [
        (1e-4, 1.0, PASS),
        (1.0, 1e-3, PASS),
        (1e-3, 1e-2, PASS),
        (2e-3, 2e-2, FAIL),
        (math.inf, math.inf, FAIL),
        (math.nan, math.nan, FAIL),
        (0, 0, PASS),
    ],
)
def test_parity_passes_within_the_absolute_or_the_relative_limit(
    max_abs: float, max_rel: float, verdict: Outcome
) -> None:
    limits = Quality(parity=Parity(max_abs=1e-3, max_rel=1e-2))
    check = policy.parity_check((case(), case(max_abs, max_rel)), limits)
    assert (check.verdict, explained(check)) == (verdict, True)


def test_the_worst_failing_inputs_are_named() -> None:
    cases = (case(5, 1e-9, "fine"), case(2, 2, "random-7", 7), case(1, 1, "random-1", 1))
    check = policy.parity_check(cases, Quality())
    assert (check.verdict, check.measured) == (FAIL, 2)
    assert "on random-7 (batch 7) the exported model is 2 off" in check.reason


# --- the task metric ---


def score(value: float | None, samples: int = 500, limit: float | None = 0.9, metric: Any = "accuracy") -> Check | None:
    return policy.score_check(
        value, samples, metric, Quality(min_score=limit), DATA.model_copy(update={"metric": metric})
    )


def test_no_limit_is_no_check() -> None:
    assert score(0.5, limit=None) is None


@pytest.mark.parametrize(
    ("metric", "limit", "value", "verdict"),
    [
        ("accuracy", 0.9, 0.9, PASS),
        ("accuracy", 0.9, 0.91, PASS),
        ("accuracy", 0.9, 0.8999, FAIL),
        ("mae", 2.0, 2.0, PASS),
        ("mae", 2.0, 1.0, PASS),
        ("mae", 2.0, 2.1, FAIL),
        ("mae", 2.0, math.inf, FAIL),
        ("accuracy", 0.9, math.nan, INCONCLUSIVE),
        ("mae", 2.0, math.nan, INCONCLUSIVE),
        ("accuracy", 0.9, None, INCONCLUSIVE),
    ],
)
def test_a_score_is_judged_in_the_direction_of_its_metric(
    metric: str, limit: float, value: float | None, verdict: Outcome
) -> None:
    check = score(value, limit=limit, metric=metric)
    assert check is not None
    assert (check.verdict, explained(check)) == (verdict, True)


def test_a_score_without_data_says_where_to_log_them() -> None:
    check = policy.score_check(None, 0, None, Quality(min_score=0.9), DATA)
    assert check is not None
    assert check.verdict is INCONCLUSIVE
    assert DATA.validation in check.reason


@pytest.mark.parametrize(("samples", "verdict"), [(99, INCONCLUSIVE), (100, PASS)])
def test_too_few_samples_decide_nothing_however_good(samples: int, verdict: Outcome) -> None:
    check = score(1.0, samples)
    assert check is not None
    assert check.verdict is verdict


# --- load ---


def test_a_service_runs_where_throughput_is_highest_within_the_limit() -> None:
    report = load_report(point(1, 100, 5), point(4, 300, 20), point(16, 500, 60))
    assert policy.operating_point(report, Slo(p99_ms=20)).concurrency == 4
    assert policy.operating_point(report, Slo()).concurrency == 16
    assert policy.operating_point(report, Slo(p99_ms=1)).concurrency == 1


@pytest.mark.parametrize(
    ("slo", "failing"),
    [
        (Slo(), set()),
        (Slo(p99_ms=10, throughput_per_s=1000, failures=0, memory_mb=200), set()),
        (Slo(p99_ms=9.9), {"p99"}),
        (Slo(throughput_per_s=1000.1), {"throughput"}),
        (Slo(memory_mb=199), {"memory"}),
        (Slo(p99_ms=1, throughput_per_s=1e6, memory_mb=1), {"p99", "throughput", "memory"}),
    ],
)
def test_each_limit_fails_its_own_check(slo: Slo, failing: set[str]) -> None:
    checks = named(policy.load_checks(load_report(), slo))
    assert list(checks) == ["p99", "throughput", "failures", "memory"]
    assert {name for name, check in checks.items() if check.verdict is FAIL} == failing
    assert all(explained(check) for check in checks.values())


@pytest.mark.parametrize(("failures", "allowed", "verdict"), [(0, 0, PASS), (1, 0, FAIL), (3, 3, PASS), (4, 3, FAIL)])
def test_failed_requests_are_counted_against_what_is_allowed(failures: int, allowed: int, verdict: Outcome) -> None:
    checks = named(policy.load_checks(load_report(failures=failures), Slo(failures=allowed)))
    assert checks["failures"].verdict is verdict


def test_throughput_counts_only_where_latency_is_within_its_limit() -> None:
    report = load_report(point(4, 300, 20), point(16, 900, 60))
    checks = named(policy.load_checks(report, Slo(p99_ms=30, throughput_per_s=500)))
    assert (checks["p99"].verdict, checks["throughput"].verdict) == (PASS, FAIL)
    assert "300 inferences/s at concurrency 4, the limit is 500" in checks["throughput"].reason


@pytest.mark.parametrize(
    ("p99_ms", "verdict"),
    [(95, INCONCLUSIVE), (105, INCONCLUSIVE), (100, INCONCLUSIVE), (10, PASS), (400, FAIL)],
)
def test_an_unstable_measurement_near_its_limit_decides_nothing(p99_ms: float, verdict: Outcome) -> None:
    report = load_report(point(p99_ms=p99_ms, stable=False, spread_percent=30))
    check = named(policy.load_checks(report, Slo(p99_ms=100)))["p99"]
    assert (check.verdict, explained(check)) == (verdict, True)


def test_an_unstable_measurement_says_what_would_decide_it() -> None:
    report = load_report(point(throughput_per_s=490, stable=False, spread_percent=30))
    check = named(policy.load_checks(report, Slo(throughput_per_s=500)))["throughput"]
    assert check.verdict is INCONCLUSIVE
    assert "load.attempts" in check.reason


def test_a_stable_measurement_is_taken_at_its_word() -> None:
    report = load_report(point(p99_ms=100.1, stable=True, spread_percent=30))
    assert named(policy.load_checks(report, Slo(p99_ms=100)))["p99"].verdict is FAIL


# --- the champion ---


def against(
    given_: Any = None, *, slo: Slo | None = None, before: Champion | None = None, **score_: Any
) -> dict[str, Check]:
    mine: dict[str, Any] = {"score": 0.95, "metric": "accuracy", "validation": "v" * 64} | score_
    return named(
        policy.champion_checks(
            given_, before or champion(), mine["score"], mine["metric"], mine["validation"], slo or Slo()
        )
    )


def test_without_a_champion_there_is_nothing_to_compare() -> None:
    assert against(comparison(), before=Champion()) == {}
    assert against(comparison(), before=Champion(version=3)) == {}


def test_a_champion_that_was_not_measured_beside_it_decides_nothing() -> None:
    assert against(None)["champion"].verdict is INCONCLUSIVE


@pytest.mark.parametrize(
    ("p99_ratio", "noise", "verdict"),
    [
        (1.0, 2, PASS),
        (1.5, 100, PASS),
        (1.51, 2, INCONCLUSIVE),
        (1.6, 10.1, INCONCLUSIVE),
        (1.6, 9.9, FAIL),
        (5.0, 2, FAIL),
        (5.0, math.inf, INCONCLUSIVE),
        (0.2, math.inf, PASS),
        (math.nan, 1, INCONCLUSIVE),
    ],
)
def test_latency_against_the_champion_is_judged_with_its_noise(
    p99_ratio: float, noise: float, verdict: Outcome
) -> None:
    slo = Slo(regression=Regression(p99_percent=50))
    check = against(comparison(p99_ratio=p99_ratio, p99_noise=noise), slo=slo)["p99 against the champion"]
    assert (check.verdict, explained(check)) == (verdict, True)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [(1.3, 2, PASS), (0.76, 2, PASS), (0.74, 2, INCONCLUSIVE), (0.7, 1, FAIL), (math.nan, 1, INCONCLUSIVE)],
)
def test_throughput_against_the_champion_is_judged_with_its_noise(ratio: float, noise: float, verdict: Outcome) -> None:
    slo = Slo(regression=Regression(throughput_percent=25))
    found = against(comparison(throughput_ratio=ratio, throughput_noise=noise), slo=slo)
    assert found["throughput against the champion"].verdict is verdict


@pytest.mark.parametrize(
    ("metric", "before", "now", "verdict"),
    [
        ("accuracy", 0.95, 0.95, PASS),
        ("accuracy", 0.95, 0.99, PASS),
        ("accuracy", 0.95, 0.93, FAIL),
        ("mae", 1.0, 0.5, PASS),
        ("mae", 1.0, 1.5, FAIL),
        ("accuracy", 0.95, math.nan, INCONCLUSIVE),
        ("accuracy", math.nan, 0.95, INCONCLUSIVE),
    ],
)
def test_a_worse_score_than_the_champion_s_is_refused(metric: str, before: float, now: float, verdict: Outcome) -> None:
    slo = Slo(regression=Regression(score=0.01))
    found = against(comparison(), slo=slo, before=champion(score=before, metric=metric), score=now, metric=metric)
    check = found[f"{metric} against the champion"]
    assert (check.verdict, explained(check)) == (verdict, True)


@pytest.mark.parametrize(
    "before",
    [
        {"score": None},
        {"metric": "f1"},
        {"metric": None},
        {"validation": "w" * 64},
    ],
)
def test_scores_on_other_samples_or_in_another_unit_are_not_compared(before: dict[str, Any]) -> None:
    found = against(comparison(), before=champion(**before), score=0.1)
    assert [name for name in found if "accuracy" in name] == []
    assert {check.verdict for check in found.values()} == {PASS}


# --- noise ---


def test_one_value_has_no_interval() -> None:
    assert policy.confidence_half_width([]) == policy.confidence_half_width([1.0]) == math.inf


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_an_interval_is_as_wide_as_the_values_differ(values: list[float]) -> None:
    width = policy.confidence_half_width(values)
    assert width >= 0
    assert policy.confidence_half_width([2 * value for value in values]) == pytest.approx(2 * width)
    assert (width == 0) == (len(set(values)) == 1) or max(values) - min(values) < 1e-9


def test_an_interval_is_that_of_students_distribution() -> None:
    assert policy.confidence_half_width([1.0, 3.0]) == pytest.approx(12.71)  # one degree of freedom
    assert policy.confidence_half_width([1.0, 3.0] * 50) == pytest.approx(1.96 * (100 / 99 / 100) ** 0.5)


_numbers = st.none() | st.floats()


@given(value=_numbers, samples=st.integers(0, 1000), limit=st.floats(0, 1))
def test_nothing_but_a_number_within_its_limit_ever_passes(value: float | None, samples: int, limit: float) -> None:
    check = score(value, samples, limit)
    assert check is not None
    good = value is not None and value >= limit and samples >= DATA.min_samples
    assert (check.verdict is PASS) == good


@given(p99=st.floats(), throughput=st.floats(), memory=st.floats())
def test_no_measurement_that_is_not_a_number_ever_passes_a_limit(p99: float, throughput: float, memory: float) -> None:
    report = load_report(point(throughput_per_s=throughput, p99_ms=p99), memory_mb=memory)
    found = named(policy.load_checks(report, Slo(p99_ms=10, throughput_per_s=10, memory_mb=10)))
    assert (found["p99"].verdict is PASS) == (p99 <= 10)
    assert (found["throughput"].verdict is PASS) == (throughput >= 10)
    assert (found["memory"].verdict is PASS) == (memory <= 10)


def test_a_package_carries_what_its_score_is_compared_by() -> None:
    assert {"score", "samples", "metric", "validation"} <= set(Package.model_fields)
    assert package().score == 0.95
