"""Quantization: the ladder of precisions that the target allows, each built, scored, timed and compared with fp32.

A rung stays only if it loses no more accuracy than allowed, overall and in every slice, and is faster than the one
above it; the record says why a rung was dropped. Rungs are built independently. Their speeds are measured in one
process, in alternation, so that noise affects all of them alike.
"""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from shiplift.runtime.base.errors import DataInvalid, Temporary
from shiplift.runtime.base.progress import measuring, progress
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.datasets import load_columns, load_samples
from shiplift.runtime.model.tensors import Arrays, batch_of, dump_npz, load_npz
from shiplift.runtime.precision import quantization as building
from shiplift.runtime.precision import rungs, tensorrt_plans
from shiplift.runtime.precision.evaluation import Validation, answers, over_budget
from shiplift.runtime.precision.sensitivity import graph_digest
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.model import Datasets, Exported
from shiplift.runtime.records.precision import Candidate, Candidates, Evaluation, Metric, Precision
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.store.lessons import lessons
from shiplift.runtime.targets import machine, operators

_TIMED_BATCH = 8
_ROUNDS = 15
_MIN_TIMING_S = 0.05  # per rung, so that fast models get more rounds
_ASKED = 64
_SENSITIVITIES = "sensitivities"
_KINDS: dict[Precision, tuple[rungs.Kind, ...]] = {
    "fp32": (),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "int8": ("int8 static", "int8 dynamic"),
    "fp8": ("fp8",),
}
_LADDER: tuple[Precision, ...] = ("fp16", "bf16", "int8", "fp8")


def quantize(
    site: Site, target: Target, exported: Exported, datasets: Datasets, data: Data, quantization: Quantization
) -> Candidates:
    """Builds, scores and times each precision of the target.

    Raises:
        DataInvalid: the logged data do not match the model.
        ExportFailed: fp32 does not load, or needs a newer ONNX Runtime than the target has.
        Temporary: this machine is not the target: the target vanished, or a pod was put on the wrong node.
        MissingTool: the target is a GPU, and this environment can't run models on GPUs.
    """
    if reason := machine.mismatch(target, machine.this_machine()):
        raise Temporary(f"target {target.name} is not this machine: {reason}", do="Check its node selector.")
    store = ArtifactStore(site.artifacts_uri)
    with TemporaryDirectory(prefix="shiplift-quantize-", dir=site.home) as name:
        folder = Path(name)
        base = store.fetch(exported.model, folder / "fp32") / "model.onnx"
        operators.require_operators(base, target)
        running = onnx_models.session(base, gpu=target.gpu, lean=True)
        validation, calibration, notes = _samples(store, exported, datasets, data, running)
        progress("scoring fp32")
        with measuring():
            evaluation = validation.evaluate(running)
        del running  # each rung may need as much memory
        onnx_models.release_memory()
        top = Candidate(precision="fp32", method="as exported", model=exported.model, **_scores(evaluation))
        jobs, more = _jobs(folder, base, site, exported, target, quantization, validation, calibration, evaluation)
        with measuring(), lessons(site, f"layers of {graph_digest(base)}", folder / _SENSITIVITIES):
            built = rungs.build_all(jobs)
        files = {index: Path(rung.file) for index, rung in enumerate(built, 1) if rung.file} | {0: base}
        with measuring():
            measured = _measure(files, _example(store, exported), folder, gpu=target.gpu)
        candidates = [top, *(_candidate(store, rung) for rung in built)]
    ladder = tuple(c.model_copy(update=measured.get(index, {})) for index, c in enumerate(candidates))
    judged = _judged(ladder, target, validation.metric, quantization)
    return Candidates(
        target=target.name,
        metric=validation.metric,
        validation=datasets.validation.sha256 if datasets.validation else "",
        candidates=_with_plans(site, store, target, exported, judged),
        notes=(*notes, *more),
    )


# --- what it is measured on -----------------------------------------------------------------------------------------


def _samples(
    store: ArtifactStore, exported: Exported, datasets: Datasets, data: Data, running: Any
) -> tuple[Validation, Arrays | None, list[str]]:
    """The validation set, the calibration samples, and notes about both."""
    notes: list[str] = []
    inputs, labels, columns, calibration = None, None, Arrays(), None
    specs = exported.signature.inputs
    if datasets.validation:
        body, name = store.read(datasets.validation), datasets.validation_name
        inputs, labels = load_samples(body, name, specs, data.label, data.slices)
        columns = load_columns(body, name, data.slices, len(next(iter(inputs.values()))))
        if labels is None:
            notes.append(f"{name} has no {data.label!r}, so nothing can be scored")
    else:
        notes.append(f"no validation data were logged at {data.validation}, so nothing can be scored")
    if datasets.calibration:
        body, name = store.read(datasets.calibration), datasets.calibration_name
        calibration, _ = load_samples(body, name, specs, data.label, data.slices)
    elif inputs is not None:
        calibration = inputs
        notes.append("int8 is calibrated on samples of the validation set: no calibration data were logged")
    if calibration is not None and len(next(iter(calibration.values()))) < 2:
        raise DataInvalid("the calibration data have fewer than 2 samples", do="Log at least 2, preferably 256.")
    picked = building.pick(calibration, data.calibration_samples) if calibration is not None else None
    asked = building.pick(inputs, _ASKED) if inputs is not None else _example(store, exported)
    metric: Metric | None = data.metric if labels is not None else None
    validation = Validation(
        metric=metric, asked=asked, reference=answers(running, asked), inputs=inputs, labels=labels, columns=columns
    )
    return validation, picked, notes


def _example(store: ArtifactStore, exported: Exported) -> Arrays:
    arrays = load_npz(store.read(exported.reference))
    return batch_of({spec.name: arrays[f"input/{spec.name}"] for spec in exported.signature.inputs}, _TIMED_BATCH)


# --- the rungs ------------------------------------------------------------------------------------------------------


def _jobs(
    folder: Path, base: Path, site: Site, exported: Exported, target: Target, settings: Quantization,
    validation: Validation, calibration: Arrays | None, evaluation: Evaluation,
) -> tuple[list[rungs.Job], list[str]]:  # fmt: skip
    kinds = [kind for precision in _LADDER if precision in target.precisions for kind in _KINDS[precision]]
    notes = []
    eight_bit = [precision for precision in ("int8", "fp8") if precision in target.precisions]
    if calibration is None and eight_bit:
        kinds = [kind for kind in kinds if not kind.startswith(("int8", "fp8"))]
        notes += [f"{precision} was not built: no calibration data were logged" for precision in eight_bit]
    if "int8 dynamic" in kinds and (target.gpu or not building.has_attention(base)):
        kinds.remove("int8 dynamic")  # it helps transformers and recurrent models, on CPUs
    if not kinds:
        return [], notes
    arrays = rungs.write_arrays(folder / "arrays.npz", calibration, validation)
    jobs = []
    for kind in kinds:
        work = folder / kind.replace(" ", "-")
        work.mkdir()
        jobs.append(
            rungs.Job(
                kind=kind, model=str(base), folder=str(work), arrays=str(arrays), signature=exported.signature,
                sensitivities=str(folder / _SENSITIVITIES), metric=validation.metric, base=evaluation,
                target=target, settings=settings, modelopt=site.modelopt,
            )
        )  # fmt: skip
    return jobs, notes


def _candidate(store: ArtifactStore, rung: rungs.Rung) -> Candidate:
    return Candidate(
        precision=rung.precision,
        method=rung.method or rung.kind,
        float_layers=rung.float_layers,
        model=_put(store, Path(rung.file)) if rung.file else None,
        build_seconds=rung.seconds,
        build_peak_mb=rung.peak_mb,
        **_scores(rung.evaluation) | ({"dropped": rung.failed} if rung.failed else {}),
    )


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    fields = evaluation.model_dump(include={"score", "score_error", "samples", "relative_error"})
    return fields | {"slices": evaluation.slices, "dropped": evaluation.problem}


def _put(store: ArtifactStore, model: Path) -> Artifact:
    return store.put_tree(model.parent)


def _with_plans(
    site: Site, store: ArtifactStore, target: Target, exported: Exported, judged: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """Adds, for a TensorRT target, a plan to each candidate that is kept; built where it will run."""
    if target.engine != "tensorrt":
        return judged
    trt, candidates = tensorrt_plans.library(), []
    for candidate in judged:
        if candidate.dropped or candidate.model is None:
            candidates.append(candidate)
            continue
        progress(f"building the TensorRT plan of {candidate.precision}")
        with TemporaryDirectory(prefix="shiplift-plan-", dir=site.home) as folder, measuring():
            model = store.fetch(candidate.model, Path(folder) / "model")
            with lessons(site, tensorrt_plans.lesson_of(target), Path(folder) / "timing") as timings:
                tensorrt_plans.build_plan(
                    model / "model.onnx", exported.signature, target, timings, trt,
                    built_on=machine.this_machine().capability,
                )  # fmt: skip
            candidates.append(candidate.model_copy(update={"model": store.put_tree(model)}))
    return tuple(candidates)


# --- speed and memory -----------------------------------------------------------------------------------------------


def _measure(files: dict[int, Path], inputs: Arrays, folder: Path, *, gpu: bool) -> dict[int, dict[str, Any]]:
    """The measured fields of each candidate, by index: latency, memory, size."""
    progress("timing the candidates in alternation")
    times = _time({index: onnx_models.session(file, gpu=gpu) for index, file in files.items()}, inputs)
    example = folder / "example.npz"
    example.write_bytes(dump_npz(inputs))
    return {
        index: {
            "latency_ms": times[index],
            "latency_batch": _TIMED_BATCH,
            "size_bytes": building.model_bytes(file),
            "memory_mb": _footprint(file, example),
        }
        for index, file in files.items()
    }


def _time(sessions: dict[int, Any], inputs: Arrays) -> dict[int, float]:
    """The median of alternated runs, in ms per batch."""
    spent: dict[int, list[float]] = {index: [] for index in sessions}
    for running in sessions.values():  # the first runs allocate
        onnx_models.answer(running, inputs)
    started = time.perf_counter()
    while len(spent[0]) < _ROUNDS or time.perf_counter() - started < _MIN_TIMING_S * len(sessions):
        for index, running in sessions.items():
            before = time.perf_counter()
            onnx_models.answer(running, inputs)
            spent[index].append(time.perf_counter() - before)
    return {index: median(times) * 1000 for index, times in spent.items()}


def _footprint(model: Path, inputs: Path) -> float:
    """The memory of a session of the model, in MiB; 0 if it could not be measured."""
    program = Path(rungs.__file__).with_name("footprint.py")
    completed = subprocess.run(
        [sys.executable, "-P", program, model, inputs], capture_output=True, text=True, check=False
    )
    return float(completed.stdout) if completed.returncode == 0 else 0.0


# --- the verdict ----------------------------------------------------------------------------------------------------


def _judged(
    candidates: tuple[Candidate, ...], target: Target, metric: Metric | None, settings: Quantization
) -> tuple[Candidate, ...]:
    """The kept candidates, fastest first, then the dropped ones with their reasons.

    Each lower rung must be within the budget, and faster than the one above.
    """
    base, *lower = candidates
    kept: list[Candidate] = [base]
    dropped: list[Candidate] = []
    for candidate in lower:
        reason = candidate.dropped or _objection(candidate, base, kept[-1], metric, settings)
        (dropped if reason else kept).append(candidate.model_copy(update={"dropped": reason}))
    if base.precision not in target.precisions and not base.dropped:
        kept.remove(base)
        dropped.append(base.model_copy(update={"dropped": f"target {target.name} does not allow {base.precision}"}))
    kept, slower = _fastest_per_precision(sorted(kept, key=lambda c: c.latency_ms))
    kept, empty = [c for c in kept if not c.dropped], [c for c in kept if c.dropped]
    return (*kept, *empty, *slower, *dropped)


def _fastest_per_precision(fastest_first: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Keeps the fastest candidate of each precision, since packages are named by precision."""
    kept: dict[Precision, Candidate] = {}
    slower = []
    for candidate in fastest_first:
        if candidate.precision in kept:
            faster = kept[candidate.precision]
            reason = f"{faster.method} is faster: {faster.latency_ms:.3f} ms"
            slower.append(candidate.model_copy(update={"dropped": reason}))
        else:
            kept[candidate.precision] = candidate
    return list(kept.values()), slower


def _objection(
    candidate: Candidate, base: Candidate, above: Candidate, metric: Metric | None, settings: Quantization
) -> str:  # fmt: skip
    if reason := over_budget(_evaluation(base), _evaluation(candidate), metric, settings):
        return reason
    if candidate.latency_ms >= above.latency_ms:
        return (
            f"{candidate.latency_ms:.3f} ms per batch of {_TIMED_BATCH} is not faster than {above.precision}'s "
            f"{above.latency_ms:.3f} ms"
        )
    return ""


def _evaluation(candidate: Candidate) -> Evaluation:
    return Evaluation(
        score=candidate.score, samples=candidate.samples, slices=candidate.slices,
        relative_error=candidate.relative_error,
    )  # fmt: skip
