"""The intervals of scores: how often they contain the truth, what pairing gains, and what they decide."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binom

from shiplift.runtime.precision.scoring import bootstrap, metrics
from shiplift.runtime.precision.scoring.bootstrap import interval, paired, rounded, samples_to_decide
from shiplift.runtime.precision.scoring.estimates import Estimate, score_of, slice_of, worse_of
from shiplift.runtime.records.precision import SCALES, Evaluation, Metric, Slice

Drawn = tuple[dict[str, NDArray[Any]], NDArray[Any]]
_SAMPLES, _TRIALS = 80, 100
_level = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


def evaluated(metric: Metric, outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> Evaluation:
    score = metrics.score(metric, outputs, labels)
    return Evaluation(score=score.value, score_error=score.error, resamples=score.resamples, samples=len(labels))


# --- coverage ---


def classified(rng: np.random.Generator, size: int) -> Drawn:
    labels = rng.integers(0, 3, size)
    return {"label": np.where(rng.uniform(size=size) < 0.85, labels, rng.integers(0, 3, size))}, labels


def ranked(rng: np.random.Generator, size: int) -> Drawn:
    labels = rng.integers(0, 2, size)
    return {"score": (labels + rng.normal(0, 1, size))[:, None].astype(np.float32)}, labels


def regressed(rng: np.random.Generator, size: int) -> Drawn:
    labels = rng.normal(0, 3, size)
    return {"out": labels + rng.normal(0, 1, size)}, labels


def transcribed(rng: np.random.Generator, size: int) -> Drawn:
    labels = rng.integers(0, 50, (size, 12))
    return {"tokens": np.where(rng.uniform(size=labels.shape) < 0.9, labels, 99)}, labels


@pytest.mark.parametrize(
    ("metric", "draw"),
    [
        ("accuracy", classified),
        ("rmse", regressed),
        *(
            pytest.param(metric, draw, marks=pytest.mark.slow)
            for metric, draw in (
                ("f1", classified),
                ("roc_auc", ranked),
                ("log_loss", ranked),
                ("mae", regressed),
                ("wer", transcribed),
            )
        ),
    ],
)
def test_nineteen_of_twenty_intervals_hold_the_truth(
    metric: Metric, draw: Callable[[np.random.Generator, int], Drawn]
) -> None:
    rng = np.random.default_rng(5)
    truth = metrics.METRICS[metric]
    outputs, labels = draw(rng, 200_000)
    evaluate = truth.score or (lambda values: float(values.mean()))
    expected = evaluate(*metrics.rows_of(metric, outputs, labels))
    held = 0
    for _ in range(_TRIALS):
        estimate = score_of(evaluated(metric, *draw(rng, _SAMPLES)), metric, 0.95)
        held += estimate.low <= expected <= estimate.high
    assert binom.ppf(0.001, _TRIALS, 0.95) <= held <= 0.995 * _TRIALS  # fewer: once in 1,000 correct intervals


@pytest.mark.parametrize("difference", [pytest.param(0.0, marks=pytest.mark.slow), 0.05])
def test_differences_of_paired_models_are_held_too_and_far_narrower(difference: float) -> None:
    rng = np.random.default_rng(6)
    held, widths, apart = 0, [], []
    for _ in range(_TRIALS):
        labels = rng.integers(0, 2, 300)
        base = np.where(rng.uniform(size=300) < 0.8, labels, 1 - labels)
        flipped = rng.uniform(size=300) < 0.05  # answers that differ; the rest is the same, right or wrong
        harmful = rng.uniform(size=300) < 0.5 + 10 * difference / 2
        other = np.where(flipped, np.where(harmful, 1 - labels, labels), base)
        first, second = evaluated("accuracy", {"label": base}, labels), evaluated("accuracy", {"label": other}, labels)
        worse = worse_of(first, second, "accuracy", 0.95)
        expected = 0.05 * (0.8 - (1 - (0.5 + 10 * difference / 2)))
        held += worse.low <= expected <= worse.high
        widths.append(worse.high - worse.low)
        alone = score_of(second, "accuracy", 0.95)
        apart.append(alone.high - alone.low)
    assert 0.9 <= held / _TRIALS <= 0.995  # ten answers differ on average: few and skewed
    assert np.mean(widths) < 0.6 * np.mean(apart)


def test_a_large_set_is_resampled_in_part_and_its_error_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs, labels = regressed(np.random.default_rng(7), 40_000)
    part = metrics.score("rmse", outputs, labels)
    rows = metrics.rows_of("rmse", outputs, labels)
    monkeypatch.setattr(bootstrap, "_MOST_VALUES", 10**9)
    whole = bootstrap.resampled(metrics.METRICS["rmse"].score, rows, part.value, 40_000)  # type: ignore[arg-type]
    assert part.error == pytest.approx(float(whole.std()), rel=0.25)


# --- shape ---


@given(st.lists(st.floats(0, 1), min_size=20, max_size=60), st.integers(2, 10_000), _level)
def test_an_interval_holds_its_estimate_and_grows_with_confidence(
    resamples: list[float], samples: int, level: float
) -> None:
    estimate = float(np.mean(resamples))
    low, high = interval(estimate, resamples, samples, confidence=level)
    assert low <= estimate <= high
    wider = interval(estimate, resamples, samples, confidence=0.995)
    assert wider[0] <= low + 1e-12
    assert wider[1] >= high - 1e-12


@pytest.mark.parametrize(("samples", "lowest"), [(64, 0.944), (300, 0.988)])
def test_samples_without_an_error_leave_room_for_one(samples: int, lowest: float) -> None:
    labels = np.arange(samples) % 3
    estimate = score_of(evaluated("accuracy", {"label": labels}, labels), "accuracy", 0.95)
    assert (estimate.value, estimate.high) == (1, 1)
    assert estimate.low == pytest.approx(lowest, abs=1e-3)  # as Clopper and Pearson have it


def test_no_resamples_are_no_interval_and_too_few_say_nothing() -> None:
    assert interval(0.9, (), 100, confidence=0.95) == (0.9, 0.9)
    assert interval(0.9, (0.9, 0.8), 100, confidence=0.95) == (-math.inf, math.inf)
    assert interval(0.9, (0.9,) * 50, 1, confidence=0.95) == (-math.inf, math.inf)
    assert interval(0.9, (math.nan,) * 50, 100, confidence=0.95) == (-math.inf, math.inf)


def test_an_interval_stays_within_the_metric_s_range() -> None:
    labels = np.arange(10)
    right = np.where(np.arange(10) == 0, 5, labels)
    estimate = score_of(evaluated("accuracy", {"label": right}, labels), "accuracy", 0.95)
    assert estimate.high == 1
    assert estimate.low > 0


@given(st.floats(0, 1, width=32), st.floats(0, 1), st.integers(2, 1000))
def test_a_slice_has_student_s_interval(score: float, error: float, samples: int) -> None:
    estimate = slice_of(Slice(name="a=1", score=score, error=error, samples=samples), "accuracy", 0.95)
    assert 0 <= estimate.low <= score <= estimate.high <= 1


def test_models_scored_on_other_samples_are_not_paired() -> None:
    assert paired((1.0, 2.0), (1.0,), 1) == ()
    rng = np.random.default_rng(0)
    few, many = evaluated("mae", *regressed(rng, 50)), evaluated("mae", *regressed(rng, 60))
    worse = worse_of(few, many, "mae", 0.95)
    assert worse.low == worse.value == worse.high


def test_the_same_answers_are_worth_the_same_on_every_resample() -> None:
    rng = np.random.default_rng(0)
    outputs, labels = classified(rng, 90)
    first, second = (evaluated("f1", outputs, labels) for _ in range(2))
    assert first == second
    assert worse_of(first, second, "f1", 0.95).value == 0


def test_resamples_are_kept_with_six_digits() -> None:
    assert rounded(np.array([1 / 3, 1e-9 / 3, 123456.789])) == (0.333333, 3.33333e-10, 123457.0)
    outputs, labels = classified(np.random.default_rng(0), 64)
    body = evaluated("accuracy", outputs, labels).model_dump_json()
    assert len(body) < 3000  # records travel through workflows


# --- decisions ---


def estimate(value: float, low: float, high: float, samples: int = 100) -> Estimate:
    return Estimate(value=value, low=low, high=high, samples=samples)


@pytest.mark.parametrize(
    ("value", "low", "high", "passes", "surely", "fails"),
    [
        (0.0, -0.01, 0.005, True, True, False),
        (0.005, -0.01, 0.02, True, False, False),
        (0.02, 0.005, 0.03, False, False, False),
        (0.03, 0.02, 0.04, False, False, True),
        (0.01, 0.01, 0.01, True, True, False),
        (math.nan, math.nan, math.nan, False, False, True),
    ],
)
def test_a_limit_is_passed_by_the_score_and_exceeded_by_the_whole_interval(
    value: float, low: float, high: float, passes: bool, surely: bool, fails: bool
) -> None:
    worse = estimate(value, low, high)
    assert worse.within(0.01, "score") is passes
    assert worse.within(0.01, "interval") is surely
    assert worse.beyond(0.01) is fails


@pytest.mark.parametrize("true", [0.0, 0.05])
def test_as_many_samples_as_it_says_decide_it(true: float) -> None:
    rng = np.random.default_rng(8)

    def drawn(size: int) -> Evaluation:
        labels = rng.integers(0, 2, size)
        return evaluated(
            "accuracy", {"label": np.where(rng.uniform(size=size) < 0.9 - true, labels, 1 - labels)}, labels
        )

    limit, few = 0.93, drawn(60)
    at_first = score_of(few, "accuracy", 0.95)
    assert at_first.low <= limit <= at_first.high
    more = samples_to_decide(at_first.value, at_first.high, limit, 60)
    assert more is not None
    decided = sum(score_of(drawn(60 + 4 * more), "accuracy", 0.95).high < limit for _ in range(20))
    assert decided >= 15


def test_no_number_of_samples_decides_what_lies_on_the_limit() -> None:
    assert samples_to_decide(0.9, 0.85, 0.9, 100) is None
    assert samples_to_decide(0.9, -math.inf, 0.8, 100) is None
    assert "any number of them" in estimate(0.02, -0.1, 0.1).remedy(0.02)
    assert estimate(0.02, 0.0, 0.04).remedy(0.01) == "100 samples can't decide it, about 300 more would"


def test_every_metric_has_a_scale_and_says_what_it_takes() -> None:
    assert set(metrics.METRICS) == set(SCALES)
    assert all(metric.takes for metric in metrics.METRICS.values())
    assert all(scale.unit and scale.lowest < scale.highest for scale in SCALES.values())
