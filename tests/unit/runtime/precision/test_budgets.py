from typing import Any

import numpy as np

from shiplift.runtime.precision.budgets import with_budgets
from shiplift.runtime.precision.evaluation import over_budget
from shiplift.runtime.precision.scoring import metrics
from shiplift.runtime.records.precision import Evaluation
from shiplift.runtime.spec.model import Quantization

RATES = np.random.default_rng(0).normal(0.004, 0.001, size=(500, 1))


def evaluated(metric: Any, answers: Any, labels: Any) -> Evaluation:
    score = metrics.score(metric, {"output": answers}, labels)
    return Evaluation(score=score.value, resamples=score.resamples, samples=len(labels))


def test_a_loss_is_measured_by_what_a_constant_loses() -> None:
    """INT8 that answers 0.0 is 0.004 worse: within 0.01, and all that there is."""
    for factor in (1.0, 1e8):
        labels = RATES * factor
        for metric in ("mae", "rmse"):
            base, lost, fine = (evaluated(metric, labels * share, labels) for share in (0.99, 0.0, 0.9901))
            limits = with_budgets(Quantization(), metric, labels)
            assert "the budget is" in over_budget(base, lost, metric, limits), (metric, factor)
            assert not over_budget(base, fine, metric, limits), (metric, factor)


def test_a_metric_with_a_range_has_shares_of_it() -> None:
    labels = np.arange(500) % 4
    cases: list[tuple[Any, Any, float]] = [
        ("accuracy", labels, 0.01),
        ("r2", RATES, 0.01),
        ("log_loss", labels, 0.01 * np.log(4)),
        ("mape", np.array([[1.0], [2.0], [4.0]]), 0.01 * (1 + 0 + 0.5) / 3),
        (None, None, 0.01),
    ]
    for metric, given, budget in cases:
        limits = with_budgets(Quantization(), metric, given)
        np.testing.assert_allclose([limits.score_drop, limits.slice_drop], [budget, 5 * budget], err_msg=str(metric))


def test_what_the_spec_says_holds() -> None:
    limits = with_budgets(Quantization(max_score_drop=0.5), "mae", RATES)
    assert limits.score_drop == 0.5
    assert limits.slice_drop < 1e-4
