"""What a precision costs: its answers on the validation set against fp32's, overall, per slice and per number.

The same rule judges a rung while it is being built (are enough layers in float?) and at the end (is it kept?).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision import metrics
from shiplift.runtime.records.precision import Evaluation, Metric, Slice
from shiplift.runtime.spec.model import Quantization

_BATCH = 4  # one thread is hardly faster with more, and activations grow with it
_BATCH_BYTES = 1 << 20  # of inputs
_MOST_SLICES = 100  # of all columns together: they travel in records
_LONGEST = 40
_CLASSES = "label"  # the name of the slices by class


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A validation set: inputs by name, and labels and slicing columns where there are any.

    `reference` is what fp32 answers to `asked`, a few samples: all that there is where nothing can be scored.
    """

    metric: Metric | None
    asked: Arrays
    reference: Arrays
    inputs: Arrays | None = None
    labels: NDArray[Any] | None = None
    columns: Arrays = field(default_factory=dict)

    def evaluate(self, running: Any) -> Evaluation:
        """Runs a session on all of it.

        Raises:
            DataInvalid: the labels can't be compared with the answers.
        """
        error, problem = self._against_reference(running)
        if problem or self.inputs is None:
            return Evaluation(relative_error=error, problem=problem)
        outputs = answers(running, self.inputs)
        if problem := _not_numbers(outputs, "the validation set"):
            return Evaluation(relative_error=error, problem=problem)
        if self.labels is None or self.metric is None:
            return Evaluation(relative_error=error)
        score, spread = metrics.score(self.metric, outputs, self.labels)
        return Evaluation(
            score=score, score_error=spread, samples=len(self.labels), relative_error=error,
            slices=self._slices(outputs),
        )  # fmt: skip

    def _against_reference(self, running: Any) -> tuple[float | None, str]:
        got = answers(running, self.asked)
        if problem := _not_numbers(got, "the first samples"):
            return None, problem
        for name, wanted in self.reference.items():
            if got[name].shape != wanted.shape:
                return None, f"{name!r} has shape {got[name].shape}, fp32 gives {wanted.shape}"
        floats = [(w, got[name]) for name, w in self.reference.items() if w.dtype.kind == "f" and w.size]
        if not floats:
            return None, ""
        return max(_relative(wanted, array) for wanted, array in floats), ""

    def _slices(self, outputs: Arrays) -> tuple[Slice, ...]:
        """By the spec's metric: per column, and per class where the labels are classes.

        A column with more values than there is room for, or with texts for values, is none to slice by.
        """
        if self.labels is None or self.metric is None:
            return ()
        by = {name: column.reshape(-1) for name, column in self.columns.items()}
        if self.metric in ("accuracy", "f1"):
            by[_CLASSES] = self.labels.reshape(-1)
        found: list[Slice] = []
        for name, values in by.items():
            found += self._by(name, values, outputs, room=_MOST_SLICES - len(found))
        return tuple(found)

    def _by(self, name: str, values: NDArray[Any], outputs: Arrays, *, room: int) -> Iterator[Slice]:
        labels: NDArray[Any] = self.labels  # type: ignore[assignment]
        metric: Metric = self.metric  # type: ignore[assignment]
        values = values.astype(str) if values.dtype.kind == "O" else values
        found = np.unique(values)
        if len(found) > room or any(len(str(one)) > _LONGEST for one in found):
            return
        for one in found:
            at = np.flatnonzero(values == one)
            if name == _CLASSES and metric == "f1":
                score, error = metrics.class_f1(outputs, labels, one)
            else:
                score, error = metrics.score(metric, {key: array[at] for key, array in outputs.items()}, labels[at])
            yield Slice(name=f"{name}={one}", score=score, error=error, samples=len(at))


def answers(running: Any, samples: Arrays) -> Arrays:
    """A session's outputs for all samples, asked in batches that stay small in memory."""
    size = len(next(iter(samples.values())))
    bytes_each = sum(array.nbytes for array in samples.values()) / max(size, 1)
    step = int(max(1, min(_BATCH, _BATCH_BYTES // max(bytes_each, 1))))
    pieces = [
        onnx_models.answer(running, {name: array[at : at + step] for name, array in samples.items()})
        for at in range(0, size, step)
    ]
    return onnx_models.concatenate(pieces)


def over_budget(base: Evaluation, it: Evaluation, metric: Metric | None, limits: Quantization) -> str:
    """Why a precision costs more than allowed against fp32; empty: it does not."""
    if it.problem:
        return it.problem
    if it.relative_error is not None and not it.relative_error <= limits.max_error:
        return f"its outputs are off by {it.relative_error:.3g} of fp32's, at most {limits.max_error:g} is allowed"
    if metric is None or it.score is None or base.score is None:
        return "its accuracy is unknown: there are no labels to score it with"
    drop = (base.score - it.score) * metrics.better(metric)
    if not drop <= limits.max_score_drop:  # NaN is no number to keep
        return (
            f"{metric} {it.score:.4f} is {drop:.4f} worse than fp32's {base.score:.4f}, "
            f"the budget is {limits.max_score_drop:g}"
        )
    return _slice_over_budget(base, it, metric, limits)


def _slice_over_budget(base: Evaluation, it: Evaluation, metric: Metric, limits: Quantization) -> str:
    before = {one.name: one for one in base.slices if one.samples >= limits.min_slice_samples}
    drops = [
        ((before[one.name].score - one.score) * metrics.better(metric), one) for one in it.slices if one.name in before
    ]
    if not drops:
        return ""
    worst, where = max(drops, key=lambda pair: pair[0])
    if worst <= limits.max_slice_drop:
        return ""
    return (
        f"{where.name} ({where.samples} samples) scores {where.score:.4f}, {worst:.4f} worse than fp32's, "
        f"the budget of a slice is {limits.max_slice_drop:g}"
    )


def _not_numbers(outputs: Arrays, where: str) -> str:
    bad = [name for name, array in outputs.items() if array.dtype.kind == "f" and np.isnan(array).any()]
    return f"{', '.join(bad)} holds NaN on {where}" if bad else ""


def _relative(wanted: NDArray[Any], got: NDArray[Any]) -> float:
    finite = np.isfinite(wanted)
    exact = wanted[finite].astype(np.float64)
    off = float(np.linalg.norm(got[finite].astype(np.float64) - exact))
    norm = float(np.linalg.norm(exact))
    return off / norm if norm else (0.0 if off == 0 else float("inf"))
