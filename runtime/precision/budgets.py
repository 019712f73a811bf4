"""What a lower precision may lose where the spec does not say: a share of what the metric has to give.

A metric from 0 to 1 has that range. An error in the label's unit, or a loss, has none: there a constant prediction says
what is much. With prices near 300,000 an error of 0.01 is nothing, with rates near 0.004 it is all there is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.precision.scoring.classes import comparable
from shiplift.runtime.precision.scoring.metrics import METRICS
from shiplift.runtime.records.precision import TaskMetricName
from shiplift.runtime.spec.model import Quantization

_CENTRES: dict[str, Callable[..., Any]] = {  # the constants that do best, or nearly
    "mae": np.median,
    "mape": np.median,
    "rmse": np.mean,
}


def with_budgets(
    settings: Quantization, metric: TaskMetricName | None, labels: NDArray[np.generic] | None
) -> Quantization:
    """The settings with budgets in the metric's unit, on a validation set with these labels."""
    scale = constant_score(metric, labels)
    drops = {"max_score_drop": settings.score_drop * scale, "max_slice_drop": settings.slice_drop * scale}
    return settings.model_copy(update={name: drop for name, drop in drops.items() if getattr(settings, name) is None})


def constant_score(metric: TaskMetricName | None, labels: NDArray[np.generic] | None) -> float:
    """What a constant prediction scores by a metric without a range; 1 for others, and where labels are no numbers."""
    scale = 1.0 if metric is None or labels is None else _scale(metric, labels)
    return scale if np.isfinite(scale) else 1.0


def _scale(metric: TaskMetricName, labels: NDArray[np.generic]) -> float:
    """What a constant prediction scores by a metric without a range; 1 for others."""
    if metric == "log_loss":
        _, counts = np.unique(comparable(labels.reshape(-1)), return_counts=True)
        shares = counts / counts.sum()
        return float(-(shares * np.log(shares)).sum())
    if not isinstance(metric, str) or metric not in _CENTRES:
        return 1.0
    constant = np.broadcast_to(_CENTRES[metric](labels, axis=0), labels.shape)
    (errors,) = METRICS[metric].rows({"constant": constant.astype(np.float64)}, labels)
    score: Callable[..., Any] = METRICS[metric].score or np.mean
    return float(score(errors))
