"""Quantization: every precision the target allows, built here, scored on the validation set and timed in turn.

A candidate stays only if it costs no more accuracy than allowed and is faster than the one above it; the record says
why one was dropped. Speeds come from one process with the sides alternated, so that noise hits all of them alike.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from runtime import metrics, onnx_models, quantization
from runtime.artifacts import ArtifactStore
from runtime.datasets import load_samples, load_slices
from runtime.errors import DataInvalid, QuantizeFailed
from runtime.progress import measuring, progress
from runtime.records import Artifact, Candidate, Candidates, Datasets, Exported, Precision, Site, SliceScore
from runtime.spec import Data, Quantization, Target
from runtime.tensors import Arrays, batch_of, load_npz

_SCORE_BATCH = 256
_TIMED_BATCH = 8
_ROUNDS = 15


@dataclass(frozen=True, kw_only=True)
class _Samples:
    """The logged data as this model's inputs. `labels` is None where there is nothing to score."""

    validation: Arrays | None
    labels: Any
    slices: Any
    calibration: Arrays | None
    notes: tuple[str, ...]


def quantize(
    site: Site, target: Target, exported: Exported, datasets: Datasets, data: Data, quantization: Quantization
) -> Candidates:
    """Builds, scores and times each precision of the target.

    Raises:
        DataInvalid: the logged data do not fit the model.
        QuantizeFailed: not even fp32 can be built.
    """
    store = ArtifactStore(site.artifacts_uri)
    samples = _samples(store, exported, datasets, data)
    with TemporaryDirectory(prefix="shiplift-quantize-", dir=site.home) as folder:
        base = store.fetch(exported.model, Path(folder) / "fp32") / "model.onnx"
        built, notes = _build(base, target, samples, quantization, Path(folder))
        sessions = {name: onnx_models.session(path) for name, path in built.items()}
        scored = {name: _score(name, running, samples, data) for name, running in sessions.items()}
        with measuring():
            times = _time(sessions, _example(store, exported))
        candidates = tuple(
            Candidate(
                precision=name,
                model=exported.model if name == "fp32" else _put(store, path),
                score=scored[name].value,
                score_error=scored[name].error,
                samples=scored[name].count,
                latency_ms=times[name],
                latency_batch=_TIMED_BATCH,
                size_bytes=path.stat().st_size,
                dropped=scored[name].nan,
                slices=scored[name].slices,
            )
            for name, path in built.items()
        )
    return Candidates(
        target=target.name,
        metric=data.metric if samples.labels is not None else None,
        validation=datasets.validation.sha256 if datasets.validation else "",
        candidates=_judged(candidates, target, data, quantization.max_score_drop),
        notes=(*samples.notes, *notes),
    )


def _samples(store: ArtifactStore, exported: Exported, datasets: Datasets, data: Data) -> _Samples:
    notes: list[str] = []
    validation, labels, slices, calibration = None, None, None, None
    inputs = exported.signature.inputs
    if datasets.validation:
        body = store.read(datasets.validation)
        validation, labels = load_samples(body, datasets.validation_name, inputs, data.label, data.slice)
        if data.slice:
            count = len(next(iter(validation.values())))
            slices = load_slices(body, datasets.validation_name, data.slice, count)
        if labels is None:
            notes.append(f"{datasets.validation_name} has no {data.label!r}: nothing can be scored")
    else:
        notes.append(f"no validation data were logged at {data.validation}: nothing can be scored")
    if datasets.calibration:
        calibration, _ = load_samples(store.read(datasets.calibration), datasets.calibration_name, inputs, data.label)
    elif validation is not None:
        calibration = validation
        notes.append("int8 is calibrated on samples of the validation set: no calibration data were logged")
    if calibration is not None and len(next(iter(calibration.values()))) < 2:
        raise DataInvalid("the calibration data have fewer than 2 samples", do="Log at least 2, better 256.")
    picked = quantization.pick(calibration, data.calibration_samples) if calibration is not None else None
    return _Samples(validation=validation, labels=labels, slices=slices, calibration=picked, notes=tuple(notes))


def _build(
    base: Path, target: Target, samples: _Samples, how: Quantization, folder: Path
) -> tuple[dict[Precision, Path], list[str]]:
    built: dict[Precision, Path] = {"fp32": base}
    notes: list[str] = []
    if "int8" not in target.precisions:
        return built, notes
    if samples.calibration is None:
        return built, ["int8 was not built: no calibration data were logged"]
    progress("calibrating int8")
    (folder / "int8").mkdir()
    try:
        with measuring():
            built["int8"] = quantization.quantize_int8(base, samples.calibration, how, folder / "int8" / "model.onnx")
    except QuantizeFailed as error:
        notes.append(error.what)
    return built, notes


@dataclass(frozen=True, kw_only=True)
class _Score:
    """A candidate's metric on the validation set; `nan` says where it gave no numbers."""

    value: float | None = None
    error: float | None = None
    count: int = 0
    nan: str = ""
    slices: tuple[SliceScore, ...] = ()


def _score(name: Precision, running: Any, samples: _Samples, data: Data) -> _Score:
    if samples.validation is None:
        return _Score()
    progress(f"scoring {name}")
    with measuring():
        outputs = _answers(running, samples.validation)
    bad = [key for key, array in outputs.items() if array.dtype.kind == "f" and np.isnan(array).any()]
    if bad:
        return _Score(nan=f"{', '.join(bad)} holds NaN on the validation set")
    if samples.labels is None:
        return _Score()
    value, error = metrics.score(data.metric, outputs, samples.labels)
    parts = _parts(outputs, samples, data) if samples.slices is not None else ()
    return _Score(value=value, error=error, count=len(samples.labels), slices=parts)


def _parts(outputs: Arrays, samples: _Samples, data: Data) -> tuple[SliceScore, ...]:
    """The metric on each part of the validation set, in the order of their names."""
    found = []
    for name in sorted(set(samples.slices)):
        inside = samples.slices == name
        value, error = metrics.score(
            data.metric, {key: array[inside] for key, array in outputs.items()}, samples.labels[inside]
        )
        found.append(SliceScore(name=name, score=value, error=error, samples=int(inside.sum())))
    return tuple(found)


def _answers(running: Any, samples: Arrays) -> Arrays:
    size = len(next(iter(samples.values())))
    pieces = [
        onnx_models.answer(running, {name: array[at : at + _SCORE_BATCH] for name, array in samples.items()})
        for at in range(0, size, _SCORE_BATCH)
    ]
    return onnx_models.stacked(pieces)


def _example(store: ArtifactStore, exported: Exported) -> Arrays:
    arrays = load_npz(store.read(exported.reference))
    inputs = {spec.name: arrays[f"input/{spec.name}"] for spec in exported.signature.inputs}
    return batch_of(inputs, _TIMED_BATCH)


def _time(sessions: dict[Precision, Any], inputs: Arrays) -> dict[Precision, float]:
    """The median of alternated runs, in ms per batch."""
    progress("timing the candidates in turn")
    spent: dict[Precision, list[float]] = {name: [] for name in sessions}
    for round_ in range(_ROUNDS + 2):
        for name, running in sessions.items():
            started = time.perf_counter()
            onnx_models.answer(running, inputs)
            if round_ >= 2:  # the first runs allocate
                spent[name].append(time.perf_counter() - started)
    return {name: median(times) * 1000 for name, times in spent.items()}


def _judged(candidates: tuple[Candidate, ...], target: Target, data: Data, max_drop: float) -> tuple[Candidate, ...]:
    """Fastest first among those kept; each lower rung must be within the budget and faster than the one above."""
    base, *lower = candidates
    kept: list[Candidate] = [base]
    dropped: list[Candidate] = []
    for candidate in lower:
        why = candidate.dropped or _objection(candidate, base, kept[-1], data, max_drop)
        (dropped if why else kept).append(candidate.model_copy(update={"dropped": why}))
    if base.precision not in target.precisions and not base.dropped:
        kept.remove(base)
        dropped.append(base.model_copy(update={"dropped": f"target {target.name} does not allow {base.precision}"}))
    kept, empty = [c for c in kept if not c.dropped], [c for c in kept if c.dropped]
    return (*sorted(kept, key=lambda c: c.latency_ms), *empty, *dropped)


def _objection(candidate: Candidate, base: Candidate, above: Candidate, data: Data, max_drop: float) -> str:
    if candidate.score is None or base.score is None:
        return "its accuracy is unknown: there are no labels to score it with"
    drop = (base.score - candidate.score) * metrics.better(data.metric)
    if not drop <= max_drop:  # NaN is no number to keep
        return (
            f"{data.metric} {candidate.score:.4f} is {drop:.4f} worse than {base.precision}'s {base.score:.4f}, "
            f"the budget is {max_drop:g}"
        )
    if candidate.latency_ms >= above.latency_ms:
        return (
            f"{candidate.latency_ms:.3f} ms a batch of {_TIMED_BATCH} is not faster than {above.precision}'s "
            f"{above.latency_ms:.3f} ms"
        )
    return ""


def _put(store: ArtifactStore, model: Path) -> Artifact:
    return store.put_tree(model.parent)
