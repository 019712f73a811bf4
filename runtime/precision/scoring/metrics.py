"""The task metrics by name, and the score of a validation set by one of them, with its standard error and resamples.

A new metric is a `TaskMetric`, a line in the table, and its scale in `records.precision`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring import classes, detection, embeddings, regressions, segmentation, sequences
from shiplift.runtime.precision.scoring.bootstrap import RESAMPLES, Rows, resampled, rounded
from shiplift.runtime.precision.scoring.task_metric import Mismatch, TaskMetric, mismatch
from shiplift.runtime.records.precision import Metric

METRICS: dict[Metric, TaskMetric] = {
    "accuracy": classes.ACCURACY,
    "f1": classes.F1,
    "exact_match": sequences.EXACT_MATCH,
    "roc_auc": classes.ROC_AUC,
    "log_loss": classes.LOG_LOSS,
    "mae": regressions.MAE,
    "rmse": regressions.RMSE,
    "r2": regressions.R2,
    "mape": regressions.MAPE,
    "cosine": embeddings.COSINE,
    "recall_at_10": embeddings.RECALL_AT_10,
    "ndcg_at_10": embeddings.NDCG_AT_10,
    "mean_iou": segmentation.MEAN_IOU,
    "map": detection.MEAN_AVERAGE_PRECISION,
    "wer": sequences.WER,
    "cer": sequences.CER,
}


class Score(NamedTuple):
    """A score, its standard error (infinite for a single sample), and the scores of bootstrap resamples."""

    value: float
    error: float
    resamples: tuple[float, ...]


def rows_of(metric: Metric, outputs: Arrays, labels: NDArray[Any]) -> Rows:
    """Arrays with one entry per sample, from which any samples are scored.

    Raises:
        DataInvalid: outputs and labels can't be compared by this metric; both are named with shapes and dtypes.
        MissingTool: the library that computes it is not installed here.
    """
    try:
        return METRICS[metric].rows(outputs, labels)
    except Mismatch as error:
        raise mismatch(metric, METRICS[metric].takes, outputs, labels, str(error)) from error


def score(metric: Metric, outputs: Arrays, labels: NDArray[Any]) -> Score:
    """The score of all samples; raises what `rows_of` does."""
    return score_of(METRICS[metric], rows_of(metric, outputs, labels))


def score_of(metric: TaskMetric, rows: Rows, resamples: int = RESAMPLES) -> Score:
    """The score of rows. The error of a mean has a closed form; that of others is the spread of their resamples."""
    evaluate = metric.score or _mean
    value = evaluate(*rows)
    if math.isnan(value):
        return Score(value, float("nan"), ())
    scores = resampled(evaluate, rows, value, metric.most_rows, resamples)
    return Score(value, _mean_error(rows[0]) if metric.score is None else _spread(scores), rounded(scores))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())


def _mean_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else math.inf


def _spread(resamples: NDArray[np.float64]) -> float:
    return float(np.nanstd(resamples)) if np.isfinite(resamples).any() else math.inf
