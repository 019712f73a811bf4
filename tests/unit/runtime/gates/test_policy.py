import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiplift.runtime.gates import policy, quality
from shiplift.runtime.gates.quality import parity_check, score_check
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Streaming
from shiplift.runtime.records.precision import AuthorMetric, Slice
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.verdict import Check, GateEvidence, Outcome, Scored, Verdict
from shiplift.runtime.spec.groups import Requirements
from shiplift.runtime.spec.measurement import Regression, Slo
from shiplift.runtime.spec.model import Data, OwnMetric, Parity, Quality
from shiplift.runtime.spec.rules import Policy, Rule
from shiplift.runtime.spec.serving_settings import Rollout
from tests.unit.examples import case, champion, comparison, deployment, exported, load_report, package, point

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE
DATA = Data(min_samples=100)


def named(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


def explained(check: Check) -> bool:
    """A pass needs no reason and no advice; anything else has both."""
    return {bool(check.reason), bool(check.do)} == {check.verdict is not PASS}


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
    check = parity_check((case(), case(max_abs, max_rel)), limits)
    assert check
    assert (check.name, check.verdict, explained(check)) == ("parity", verdict, True)


def test_without_an_export_there_is_no_parity_to_check() -> None:
    assert parity_check((), Quality()) is None


def test_the_worst_failing_inputs_are_named() -> None:
    cases = (case(5, 1e-9, "fine"), case(2, 2, "random-7", 7), case(1, 1, "random-1", 1))
    check = parity_check(cases, Quality())
    assert check
    assert (check.verdict, check.measured) == (FAIL, 2)
    assert "on random-7 (batch 7) the exported model is off by 2" in check.reason


def test_what_can_not_be_compared_fails_however_near_its_numbers_are() -> None:
    other = case(0, 0).model_copy(update={"problem": "token 3 is another"})
    check = parity_check((case(0, 0), other), Quality())
    assert check
    assert (check.verdict, "token 3 is another" in check.reason) == (FAIL, True)


# --- the task metric ---


def score(value: float | None, samples: int = 500, limit: float | None = 0.9, metric: Any = "accuracy") -> Check | None:
    scored = Scored(version=2, target="local-cpu", score=value, samples=samples, metric=metric)
    return score_check(scored, Quality(min_score=limit), DATA.model_copy(update={"metric": metric}))


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


@pytest.mark.parametrize(
    ("metric", "value", "reason"),
    [
        ("accuracy", 0.85, "accuracy 0.8500 is under the budget of 0.9 (500 samples)"),
        ("mae", 0.95, "mae 0.9500 is over the budget of 0.9 (500 samples)"),
    ],
)
def test_a_failed_score_says_on_which_side_of_the_budget_it_is(metric: str, value: float, reason: str) -> None:
    check = score(value, metric=metric)
    assert check is not None
    assert (check.verdict, check.reason) == (FAIL, reason)


def test_a_score_without_data_says_where_to_log_them() -> None:
    check = score_check(Scored(version=2, target="local-cpu"), Quality(min_score=0.9), DATA)
    assert check is not None
    assert check.verdict is INCONCLUSIVE
    assert DATA.validation in check.reason


@pytest.mark.parametrize(("samples", "verdict"), [(99, INCONCLUSIVE), (100, PASS)])
def test_too_few_samples_decide_nothing_however_good(samples: int, verdict: Outcome) -> None:
    check = score(1.0, samples)
    assert check is not None
    assert check.verdict is verdict


# --- intervals of scores ---


def spread_around(value: float, error: float) -> tuple[float, ...]:
    """Resamples of a score with such a standard error."""
    return tuple((value + error * np.random.default_rng(0).normal(size=200)).tolist())


@pytest.mark.parametrize(
    ("value", "judge_by", "verdict"),
    [
        (0.91, "score", PASS),
        (0.91, "interval", INCONCLUSIVE),
        (0.89, "score", INCONCLUSIVE),
        (0.89, "interval", INCONCLUSIVE),
        (0.95, "interval", PASS),
        (0.85, "score", FAIL),
        (0.85, "interval", FAIL),
    ],
)
def test_a_score_fails_if_its_whole_interval_does_and_passes_as_the_spec_says(
    value: float, judge_by: Any, verdict: Outcome
) -> None:
    resamples = spread_around(value, 0.01)
    scored = Scored(version=2, target="t", score=value, resamples=resamples, samples=500, metric="accuracy")
    check = score_check(scored, Quality(min_score=0.9, judge_by=judge_by), DATA)
    assert check is not None
    assert (check.verdict, explained(check)) == (verdict, True)
    assert check.low is not None
    assert check.high is not None
    assert check.low < value < check.high
    if verdict is INCONCLUSIVE:
        assert re.search(r"against the budget of 0.9: 500 samples can't decide it, about \d+ more would", check.reason)


def test_a_champion_scored_on_the_same_samples_is_compared_sample_by_sample() -> None:
    common = np.random.default_rng(1).normal(size=200) * 0.02  # the same samples are hard for both
    own = np.random.default_rng(2).normal(size=200) * 0.002
    before = champion(score=0.93, resamples=tuple(0.93 + common))
    harmed: dict[str, Any] = {"score": 0.91, "resamples": tuple(0.91 + common + own)}
    name = "accuracy against the champion"
    assert against(before=before, **harmed)[name].verdict is FAIL
    apart: dict[str, Any] = {"score": 0.91, "resamples": spread_around(0.91, 0.02)}
    check = against(before=before, **apart)[name]
    assert check.verdict is INCONCLUSIVE
    assert "worse than version 1's 0.9300, the limit is 0.01: 500 samples can't decide it" in check.reason
    assert "more would" in check.reason
    alike: dict[str, Any] = {"score": 0.925, "resamples": spread_around(0.925, 0.02)}
    assert against(before=before, **alike)[name].verdict is PASS


def test_rules_on_scores_have_intervals_too() -> None:
    part = Slice(name="label=3", score=0.88, error=0.02, samples=200)
    mine = quality.scored(package(score=0.89, resamples=spread_around(0.89, 0.01), slices=(part,)))
    evidence = GateEvidence(parity=(case(),), challenger=mine)
    rules = (
        Rule(metric="score", comparison=">=", limit=0.9),
        Rule(metric="score", comparison=">=", limit=0.95),
        Rule(metric="score", comparison=">=", limit=0.9, slice="label=3"),
        Rule(metric="score", comparison=">=", limit=0.85, slice="label=3"),
    )
    checks = list(policy.rule_checks(evidence, LIMITS.model_copy(update={"policy": Policy(rules=rules)})))
    assert [check.verdict for check in checks] == [INCONCLUSIVE, FAIL, INCONCLUSIVE, PASS]
    assert all(check.low is not None for check in checks)


def test_an_author_s_metric_is_judged_in_its_direction_and_against_the_same_file_alone() -> None:
    metric = AuthorMetric(python="cost.py", better="smaller", sha256="1" * 64)
    mine: dict[str, Any] = {"metric": metric, "score": 3.0, "resamples": spread_around(3.0, 0.1)}
    data = DATA.model_copy(update={"metric": OwnMetric(python="cost.py", better="smaller")})
    for limit, verdict in ((4.0, PASS), (2.0, FAIL), (2.95, INCONCLUSIVE)):
        check = score_check(quality.scored(package(**mine)), Quality(min_score=limit), data)
        assert check is not None
        assert (check.name, check.verdict, explained(check)) == ("cost.py", verdict, True)
    before = champion(metric=metric, score=2.0, resamples=spread_around(2.0, 0.1))
    assert against(before=before, **mine)["cost.py against the champion"].verdict is FAIL
    edited = champion(metric=metric.model_copy(update={"sha256": "2" * 64}), score=2.0)
    assert "cost.py against the champion" not in against(before=edited, **mine)


def test_what_was_scored_before_there_were_intervals_is_judged_by_its_score() -> None:
    check = score(0.8999)
    assert check is not None
    assert (check.verdict, check.low, check.high) == (FAIL, None, None)


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
    assert {name: check.unit for name, check in checks.items()} == {
        "p99": "ms",
        "throughput": "inferences/s",
        "failures": "requests",
        "memory": "MiB",
    }
    assert {name for name, check in checks.items() if check.verdict is FAIL} == failing
    assert all(explained(check) for check in checks.values())


STREAMING = Streaming(ttft_p50_ms=20, ttft_p99_ms=50, inter_token_p50_ms=4, inter_token_p99_ms=9, tokens_per_s=300)


@pytest.mark.parametrize(
    ("slo", "failing"),
    [
        (Slo(), set()),
        (Slo(ttft_p99_ms=50, tokens_per_s=300), set()),
        (Slo(ttft_p99_ms=49), {"time to first token"}),
        (Slo(tokens_per_s=301), {"tokens"}),
    ],
)
def test_streamed_answers_are_judged_by_their_first_token_and_their_rate(slo: Slo, failing: set[str]) -> None:
    checks = named(policy.load_checks(load_report(point(streaming=STREAMING)), slo))
    assert list(checks) == ["p99", "throughput", "time to first token", "tokens", "failures", "memory"]
    assert {name for name, check in checks.items() if check.verdict is FAIL} == failing
    first, rate = checks["time to first token"], checks["tokens"]
    assert (first.measured, first.unit, rate.measured, rate.unit) == (50, "ms", 300, "tokens/s")
    assert all(explained(check) for check in checks.values())


def test_a_limit_on_tokens_decides_nothing_about_a_model_that_does_not_stream() -> None:
    checks = named(policy.load_checks(load_report(), Slo(ttft_p99_ms=1, tokens_per_s=1)))
    for name in ("time to first token", "tokens"):
        assert (checks[name].verdict, checks[name].measured) == (INCONCLUSIVE, None)
        assert "the model does not stream" in checks[name].reason


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


def test_an_unstable_measurement_is_anywhere_within_twice_its_spread() -> None:
    report = load_report(point(p99_ms=50, stable=False, spread_percent=30))
    check = named(policy.load_checks(report, Slo(p99_ms=100)))["p99"]
    assert (check.low, check.measured, check.high) == (20, 50, 80)


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
    mine = quality.scored(package(**score_))
    theirs = (before or champion()).package
    limits = LIMITS.model_copy(update={"slo": slo or Slo()})
    return named(policy.champion_checks(given_, quality.scored(theirs) if theirs else None, mine, limits))


def test_without_a_champion_there_is_nothing_to_compare() -> None:
    assert against(comparison(), before=Champion()) == {}
    assert against(comparison(), before=Champion(version=3)) == {}


def test_a_champion_that_was_not_measured_beside_it_decides_nothing() -> None:
    assert against(None)["champion"].verdict is INCONCLUSIVE


def test_why_it_was_not_measured_is_the_checks_reason() -> None:
    why = "champion 1 can't be measured beside the challenger: its pods exceed the quota"
    report = load_report().model_copy(update={"uncompared": why})
    evidence = policy.evidence_of(exported(), deployment(), report, champion())
    check = named(policy.judge(evidence, LIMITS))["champion"]
    assert (check.verdict, check.reason) == (INCONCLUSIVE, why)


@pytest.mark.parametrize(
    ("p99_ratio", "spread", "verdict"),
    [
        (1.0, 0.02, PASS),
        (1.4, 0.02, PASS),
        (1.4, 0.3, INCONCLUSIVE),
        (1.5, 0.02, INCONCLUSIVE),
        (1.6, 0.1, INCONCLUSIVE),
        (1.6, 0.02, FAIL),
        (5.0, 0.02, FAIL),
        (1.0, 0.9, INCONCLUSIVE),
        (0.2, 0.02, PASS),
        (math.nan, 0.01, INCONCLUSIVE),
    ],
)
def test_latency_against_the_champion_is_decided_by_its_whole_interval(
    p99_ratio: float, spread: float, verdict: Outcome
) -> None:
    slo = Slo(regression=Regression(p99_percent=50))
    check = against(comparison(p99_ratio=p99_ratio, spread=spread), slo=slo)["p99 against the champion"]
    assert (check.verdict, explained(check)) == (verdict, True)


@pytest.mark.parametrize(
    ("ratio", "spread", "verdict"),
    [(1.3, 0.02, PASS), (0.80, 0.02, PASS), (0.75, 0.02, INCONCLUSIVE), (0.7, 0.02, FAIL), (math.nan, 1, INCONCLUSIVE)],
)
def test_throughput_against_the_champion_is_decided_by_its_whole_interval(
    ratio: float, spread: float, verdict: Outcome
) -> None:
    slo = Slo(regression=Regression(throughput_percent=25))
    checks = against(comparison(throughput_ratio=ratio, spread=spread), slo=slo)
    assert checks["throughput against the champion"].verdict is verdict


def test_one_round_decides_nothing() -> None:
    assert against(comparison(rounds=1))["p99 against the champion"].verdict is INCONCLUSIVE


def test_what_is_not_decided_says_how_many_rounds_would() -> None:
    check = against(comparison(p99_ratio=1.3, spread=0.2))["p99 against the champion"]
    assert check.verdict is INCONCLUSIVE
    assert re.search(r"4 rounds show differences of \d+ % and more; about \d+ more would decide it", check.reason)
    near = against(comparison(p99_ratio=1.5, spread=0.001))["p99 against the champion"]
    assert "too close to the limit" in near.reason


def test_a_surer_answer_needs_a_narrower_interval() -> None:
    sure, surer = Slo(regression=Regression(confidence_percent=60)), Slo(regression=Regression(confidence_percent=99.9))
    measured = comparison(p99_ratio=1.3, spread=0.05)
    assert against(measured, slo=sure)["p99 against the champion"].verdict is PASS
    assert against(measured, slo=surer)["p99 against the champion"].verdict is INCONCLUSIVE


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
    checks = against(comparison(), slo=slo, before=champion(score=before, metric=metric), score=now, metric=metric)
    check = checks[f"{metric} against the champion"]
    assert (check.verdict, explained(check)) == (verdict, True)


def test_what_is_much_worse_than_the_champion_depends_on_what_a_constant_scores() -> None:
    for scale in (0.004, 1.0, 300_000.0):
        before = champion(score=0.1 * scale, metric="mae")
        for worse, slo, verdict in (
            (0.005 * scale, Slo(), PASS),
            (0.02 * scale, Slo(), FAIL),
            (0.02 * scale, Slo(regression=Regression(score=0.03 * scale)), PASS),
        ):
            now: dict[str, Any] = {"score": 0.1 * scale + worse, "metric": "mae", "constant_score": scale}
            assert against(comparison(), slo=slo, before=before, **now)["mae against the champion"].verdict is verdict


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
    checks = against(comparison(), before=champion(**before), score=0.1)
    assert [name for name in checks if "accuracy" in name] == []
    assert {check.verdict for check in checks.values()} == {PASS}


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
    checks = named(policy.load_checks(report, Slo(p99_ms=10, throughput_per_s=10, memory_mb=10)))
    assert (checks["p99"].verdict is PASS) == (p99 <= 10)
    assert (checks["throughput"].verdict is PASS) == (throughput >= 10)
    assert (checks["memory"].verdict is PASS) == (memory <= 10)


def test_a_package_carries_what_its_score_is_compared_by() -> None:
    assert {"score", "samples", "metric", "validation"} <= set(Package.model_fields)
    assert package().score == 0.95


# --- rules ---

LIMITS = Requirements(quality=Quality(), data=DATA, slo=Slo(p99_ms=50), policy=Policy())
PARTS = (
    Slice(name="region=north", score=0.99, error=0.01, samples=400),
    Slice(name="label=7", score=1, error=0, samples=9),
)


def ruled(metric: str, how: Any, limit: Any, **more: Any) -> Check:
    """The one check that a rule gives on a release with everything measured."""
    rule = Rule(metric=metric, comparison=how, limit=limit, **more)
    measured = load_report(
        point(4),
        point(16, 3000, 40, streaming=STREAMING),
        comparison=comparison(p99_ratio=1.2),
        max_rate_per_s=900.0,
        open_points=(point(0, 500, 30, rate_per_s=500.0),),
    )
    given_ = policy.evidence_of(exported(), deployment(slices=PARTS), measured, champion())
    (check,) = policy.rule_checks(given_, LIMITS.model_copy(update={"policy": Policy(rules=(rule,))}))
    return check


@pytest.mark.parametrize(
    ("metric", "how", "limit", "slice_", "verdict", "measured"),
    [
        ("p99_ms", "<=", 40, "", PASS, 40),
        ("p99_ms", "<=", "0.02 s", "", FAIL, 40),
        ("p99_ms", "<=", 10, "concurrency=4", PASS, 10),
        ("p95_ms", "<=", 10, "concurrency=7", INCONCLUSIVE, None),
        ("open_p99_ms", "<=", 30, "", PASS, 30),
        ("ttft_p99_ms", "<=", "0.05 s", "", PASS, 50),
        ("inter_token_p99_ms", "<=", 8, "", FAIL, 9),
        ("tokens_per_s", ">=", 300, "concurrency=16", PASS, 300),
        ("tokens_per_s", ">=", 1, "concurrency=4", INCONCLUSIVE, None),
        ("throughput_per_s", ">=", 2000, "", PASS, 3000),
        ("throughput_per_s", ">=", "200000/min", "", FAIL, 3000),
        ("max_rate_per_s", ">=", 1000, "", FAIL, 900),
        ("memory_mb", "<=", "1 GiB", "", PASS, 200),
        ("failures", "<=", 0, "", PASS, 0),
        ("score", ">=", 0.9, "", PASS, 0.95),
        ("score", ">=", 0.98, "region=north", PASS, 0.99),
        ("score", ">=", 0.5, "label=7", INCONCLUSIVE, None),
        ("score", ">=", 0.5, "region=nowhere", INCONCLUSIVE, None),
        ("score_worse", "<=", 0.01, "", PASS, 0),
        ("parity_max_abs", "<=", 1e-3, "", PASS, 1e-6),
        ("p99_worse_percent", "<=", "50 %", "", PASS, 20),
        ("p99_worse_percent", "<=", 10, "", FAIL, 20),
        ("p99_worse_percent", "<=", 20, "", INCONCLUSIVE, 20),
    ],
)
def test_a_rule_reads_its_metric(
    metric: str, how: str, limit: Any, slice_: str, verdict: Outcome, measured: float | None
) -> None:
    check = ruled(metric, how, limit, slice=slice_)
    assert (check.verdict, explained(check)) == (verdict, True)
    assert check.measured == (measured if measured is None else pytest.approx(measured, rel=1e-2))


def test_memory_that_nobody_measured_decides_nothing_and_only_where_it_is_limited() -> None:
    unmeasured = load_report(memory_mb=None)
    rules = Policy(rules=(Rule(metric="memory_mb", comparison="<=", limit="1 GiB"),))
    given_ = policy.evidence_of(exported(), deployment(), unmeasured, Champion())
    (ruled_,) = policy.rule_checks(given_, LIMITS.model_copy(update={"policy": rules}))
    verdicts = {
        limit: next(c for c in policy.load_checks(unmeasured, Slo(memory_mb=limit)) if c.name == "memory")
        for limit in (None, 100)
    }
    assert [verdicts[None].verdict, verdicts[100].verdict, ruled_.verdict] == [PASS, INCONCLUSIVE, INCONCLUSIVE]
    assert explained(verdicts[100])


@pytest.mark.parametrize("slice_", ["", "rate=500"])
def test_a_rule_on_open_load_decides_nothing_where_none_was_measured(slice_: str) -> None:
    rules = Policy(rules=(Rule(metric="open_p99_ms", comparison="<=", limit=30, slice=slice_),))
    given_ = policy.evidence_of(exported(), deployment(), load_report(), Champion())
    (check,) = policy.rule_checks(given_, LIMITS.model_copy(update={"policy": rules}))
    assert (check.verdict, check.measured) == (INCONCLUSIVE, None)
    assert f"it was not measured at {slice_ or 'any rate'}" in check.reason


def test_a_rule_is_for_its_target_alone() -> None:
    rules = Policy(rules=(Rule(metric="failures", comparison="<=", limit=0, target="edge"),))
    given_ = policy.evidence_of(exported(), deployment(), load_report(), Champion())
    assert list(policy.rule_checks(given_, LIMITS.model_copy(update={"policy": rules}))) == []


# --- targets that serve beside the first ---


def beside(p99_ms: float, *rules: Rule, failed_target: Any = "refuse", reported: str = "edge") -> Verdict:
    """The verdict on a release whose target `edge` serves beside a first that is fine."""
    report = load_report(comparison=comparison(), others=(load_report(point(p99_ms=p99_ms), target=reported),))
    given_ = policy.evidence_of(exported(), deployment(), report, champion())
    given_ = given_.model_copy(update={"others": (quality.scored(package(target="edge", score=0.9)),)})
    rollout = Rollout(failed_target=failed_target)
    limits = LIMITS.model_copy(
        update={"quality": Quality(min_score=0.92), "policy": Policy(rules=rules), "rollout": rollout}
    )
    return policy.verdict(given_, limits)


def test_another_target_is_judged_by_its_own_score_and_load() -> None:
    checks = named(beside(60).checks)
    assert (checks["p99 on edge"].verdict, checks["p99 on edge"].measured) == (FAIL, 60)
    assert (checks["accuracy on edge"].verdict, checks["accuracy on edge"].measured) == (FAIL, 0.9)
    assert (checks["p99"].verdict, checks["accuracy"].verdict) == (PASS, PASS)
    assert "p99 on edge" not in named(beside(60, reported="elsewhere").checks)


def test_another_target_is_compared_with_no_champion_unless_a_rule_names_it() -> None:
    worse: dict[str, Any] = {"metric": "p99_worse_percent", "comparison": "<=", "limit": 50}
    absolute = Rule(metric="p99_ms", comparison="<=", limit=55)
    checks = named(beside(60, absolute, Rule(**worse)).checks)
    assert [name for name in checks if name.endswith("on edge") and "champion" in name] == []
    assert checks[f"{absolute.name} on edge"].verdict is FAIL
    assert f"{Rule(**worse).name} on edge" not in checks
    named_ = Rule(**worse, target="edge")
    assert checks.keys() < named(beside(60, absolute, Rule(**worse), named_).checks).keys()


@pytest.mark.parametrize(
    ("failed_target", "left_out", "severity", "outcome"),
    [("refuse", (), "block", FAIL), ("leave_out", ("edge",), "warn", PASS)],
)
def test_a_target_that_fails_is_refused_or_left_out_as_the_spec_says(
    failed_target: str, left_out: tuple[str, ...], severity: str, outcome: Outcome
) -> None:
    verdict = beside(60, failed_target=failed_target)
    assert (verdict.left_out, verdict.outcome) == (left_out, outcome)
    assert named(verdict.checks)["p99 on edge"].severity == severity


def test_targets_that_are_not_served_are_warned_of() -> None:
    given_ = policy.evidence_of(exported(), deployment(), load_report(), Champion(), not_served=("edge",))
    check = named(policy.judge(given_, LIMITS))["targets"]
    assert (check.measured, check.limit, check.unit) == (1, 2, "targets served")
    assert (check.verdict, check.severity) == (FAIL, "warn")


def test_a_version_that_was_quarantined_is_warned_of_and_passes() -> None:
    why = "it was quarantined: it crashed 3 times, the last time on 2026-11-28 22:00:00: its worker died of SIGFPE"
    for told, expected in ((why, FAIL), ("", None)):
        given_ = policy.evidence_of(exported(), deployment(), load_report(), Champion(quarantined=told))
        verdict = policy.verdict(given_, LIMITS)
        check = named(verdict.checks).get("quarantine")
        assert verdict.outcome is PASS
        assert (check.verdict if check else None) is expected
        assert check is None or (check.severity, why in check.reason) == ("warn", True)


def test_the_same_evidence_under_the_same_limits_is_the_same_verdict() -> None:
    given_ = policy.evidence_of(exported(), deployment(), load_report(comparison=comparison()), champion())
    again = GateEvidence.model_validate_json(given_.model_dump_json())
    assert policy.verdict(again, LIMITS) == policy.verdict(given_, LIMITS)
