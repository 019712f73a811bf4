"""How much accuracy a precision costs: its answers on the validation set against fp32's, overall and per slice.

The same rule judges a rung while it is built (are enough layers in float?) and at the end (is it kept?).
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision.scoring import author_metric, metrics
from shiplift.runtime.precision.scoring.bootstrap import Rows
from shiplift.runtime.precision.scoring.classes import f1_of
from shiplift.runtime.precision.scoring.estimates import worse_of
from shiplift.runtime.records.precision import AuthorMetric, Evaluation, Metric, Slice, TaskMetricName, scale_of
from shiplift.runtime.spec.model import Data, OwnMetric, Quantization

_BATCH = 4  # a larger batch is hardly faster with one thread, and its activations need more memory
_BATCH_BYTES = 1 << 20  # of inputs
_MAX_SLICES = 100  # of all columns together, because slices are part of records
_MAX_VALUE_LENGTH = 40
_OF_A_SLICE = 50  # resamples: enough for a standard error, and there may be many slices
UNKNOWN = "its accuracy is unknown: there are no labels to score it with"
_CLASSES = "label"  # the name of the slices by class


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A validation set: inputs by name, with labels and slicing columns if there are any.

    `reference` holds fp32's answers to `asked`, a few samples: the only comparison if nothing can be scored. If the
    `asked` samples are among the `inputs`, `rows` says which they are. `metric_file` is the author's own metric.
    """

    metric: TaskMetricName | None
    asked: Arrays
    reference: Arrays
    inputs: Arrays | None = None
    labels: NDArray[Any] | None = None
    columns: Arrays = field(default_factory=dict)
    metric_file: str = ""
    rows: NDArray[Any] | None = None

    def evaluate(self, running: Any) -> Evaluation:
        """Runs a session on the whole set, each sample once.

        Raises:
            DataInvalid: the labels can't be compared with the answers.
        """
        if self.inputs is None or self.rows is not None:
            return self.judge(answers(running, self.asked if self.inputs is None else self.inputs))
        error, problem = self._against_reference(answers(running, self.asked))
        if problem:
            return Evaluation(relative_error=error, problem=problem)
        return self._judged(answers(running, self.inputs), error)

    def judge(self, outputs: Arrays) -> Evaluation:
        """Judges answers to all `inputs`, for which `rows` must be known; without inputs, answers to `asked`.

        Raises:
            DataInvalid: the labels can't be compared with the answers.
        """
        asked = outputs if self.inputs is None else {name: array[self.rows] for name, array in outputs.items()}
        error, problem = self._against_reference(asked)
        if problem or self.inputs is None:
            return Evaluation(relative_error=error, problem=problem)
        return self._judged(outputs, error)

    def _judged(self, outputs: Arrays, error: float | None) -> Evaluation:
        natural = [name for name, exact in self.reference.items() if _nan(exact).any()]
        known = {name: array for name, array in outputs.items() if name not in natural}
        if problem := _nan_problem(known, "the validation set"):
            return Evaluation(relative_error=error, problem=problem)
        if self.labels is None or self.metric is None:
            return Evaluation(relative_error=error)
        if isinstance(self.metric, AuthorMetric):
            score, resamples = author_metric.scored(Path(self.metric_file), outputs, self.labels)
            spread = float(np.nanstd(resamples)) if resamples else None
            return Evaluation(
                score=score, score_error=spread, resamples=resamples, samples=len(self.labels), relative_error=error
            )
        return self._scored(self.metric, outputs, error)

    def _scored(self, metric: Metric, outputs: Arrays, error: float | None) -> Evaluation:
        labels: NDArray[Any] = self.labels  # type: ignore[assignment]
        rows = metrics.rows_of(metric, outputs, labels)
        score = metrics.score_of(metrics.METRICS[metric], rows)
        return Evaluation(
            score=score.value,
            score_error=score.error,
            resamples=score.resamples,
            samples=len(labels),
            relative_error=error,
            slices=self._slices(metric, rows),
        )

    def _against_reference(self, outputs: Arrays) -> tuple[float | None, str]:
        """How far the answers to `asked` are off, and what is wrong with them."""
        for name, exact in self.reference.items():
            if outputs[name].shape != exact.shape:
                return None, f"{name!r} has shape {outputs[name].shape}, fp32's has {exact.shape}"
        others = {name: array[~_nan(self.reference[name])] for name, array in outputs.items() if name in self.reference}
        if problem := _nan_problem(outputs | others, "the first samples"):
            return None, problem
        floats = [(a, outputs[name]) for name, a in self.reference.items() if a.dtype.kind == "f" and a.size]
        if not floats:
            return None, ""
        return max(_relative_error(exact, rough) for exact, rough in floats), ""

    def _slices(self, metric: Metric, rows: Rows) -> tuple[Slice, ...]:
        """Scores by the spec's metric, per value of each column, and per class if the labels are classes.

        Columns with too many values, or with long texts, are skipped.
        """
        columns = {name: column.reshape(-1) for name, column in self.columns.items()}
        if metric in ("accuracy", "f1") and self.labels is not None:
            columns[_CLASSES] = self.labels.reshape(-1)
        slices: list[Slice] = []
        for name, values in columns.items():
            slices += _slices_by(name, values, metric, rows, limit=_MAX_SLICES - len(slices))
        return tuple(slices)


def task_metric(data: Data, metric_file: str) -> TaskMetricName:
    """The spec's metric; an author's metric comes with the digest of its file."""
    metric = data.metric
    if not isinstance(metric, OwnMetric):
        return metric
    return AuthorMetric(**metric.model_dump(), sha256=hashlib.sha256(Path(metric_file).read_bytes()).hexdigest())


def _slices_by(name: str, values: NDArray[Any], metric: Metric, rows: Rows, *, limit: int) -> Iterator[Slice]:
    values = values.astype(str) if values.dtype.kind == "O" else values
    unique = np.unique(values)
    if len(unique) > limit or any(len(str(value)) > _MAX_VALUE_LENGTH for value in unique):
        return
    for value in unique:
        at = np.flatnonzero(values == value)
        if name == _CLASSES and metric == "f1":
            score = metrics.score_of(f1_of(value), rows, _OF_A_SLICE)
        else:
            score = metrics.score_of(metrics.METRICS[metric], tuple(array[at] for array in rows), _OF_A_SLICE)
        if not math.isnan(score.value):  # for example ROC AUC if all samples have one class
            yield Slice(name=f"{name}={value}", score=score.value, error=score.error, samples=len(at))


def answers(running: Any, samples: Arrays) -> Arrays:
    """A session's outputs for all samples, computed in small batches to save memory."""
    size = len(next(iter(samples.values())))
    bytes_each = sum(array.nbytes for array in samples.values()) / max(size, 1)
    step = int(max(1, min(_BATCH, _BATCH_BYTES // max(bytes_each, 1))))
    return onnx_models.answer(running, samples, step=1 if onnx_models.takes_one_sample(running) else step)


def over_budget(base: Evaluation, candidate: Evaluation, metric: TaskMetricName | None, limits: Quantization) -> str:
    """Why a precision loses more accuracy against fp32 than allowed; empty if it does not."""
    if candidate.problem:
        return candidate.problem
    if candidate.relative_error is not None and not candidate.relative_error <= limits.max_error:
        return f"its outputs are off by {candidate.relative_error:.3g} of fp32's, the limit is {limits.max_error:g}"
    if metric is None or candidate.score is None or base.score is None:
        return UNKNOWN
    return _score_over_budget(base, candidate, metric, limits) or _slice_over_budget(base, candidate, metric, limits)


def _score_over_budget(base: Evaluation, candidate: Evaluation, metric: TaskMetricName, limits: Quantization) -> str:
    drop = worse_of(base, candidate, metric, limits.confidence_percent / 100)
    if drop.within(limits.score_drop, limits.judge_by):
        return ""
    reason = (
        f"{metric} {candidate.score:.4f} is {drop.text} worse than fp32's {base.score:.4f}, "
        f"the budget is {limits.score_drop:g}"
    )
    return reason if drop.beyond(limits.score_drop) else f"{reason}: {drop.remedy(limits.score_drop)}"


def _slice_over_budget(base: Evaluation, candidate: Evaluation, metric: TaskMetricName, limits: Quantization) -> str:
    before = {s.name: s.score for s in base.slices if s.samples >= limits.min_slice_samples}
    drops = [((before[s.name] - s.score) * scale_of(metric).better, s) for s in candidate.slices if s.name in before]
    if not drops:
        return ""
    drop, worst = max(drops, key=lambda pair: pair[0])
    if drop <= limits.slice_drop:
        return ""
    return (
        f"{worst.name} ({worst.samples} samples) scores {worst.score:.4f}, {drop:.4f} worse than fp32's, "
        f"the budget of a slice is {limits.slice_drop:g}"
    )


def _nan(array: NDArray[Any]) -> NDArray[np.bool_]:
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)


def _nan_problem(outputs: Arrays, samples: str) -> str:
    bad = [name for name, array in outputs.items() if _nan(array).any()]
    return f"{', '.join(bad)} holds NaN on {samples}" if bad else ""


def _relative_error(exact: NDArray[Any], rough: NDArray[Any]) -> float:
    finite = np.isfinite(exact)
    values = exact[finite].astype(np.float64)
    error = float(np.linalg.norm(rough[finite].astype(np.float64) - values))
    norm = float(np.linalg.norm(values))
    return error / norm if norm else (0.0 if error == 0 else float("inf"))
