"""The ladder of precisions that a target allows; each is built, scored, timed and compared with fp32.

A rung stays only if it loses no more accuracy than allowed, overall and in every slice, and is faster than the one
above it; the record says why a rung was dropped. Rungs are built independently, and their speeds are measured in one
process. All of this runs the model on the author's data, so it runs only in a sandbox.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import DataInvalid, MissingTool, QuantizeFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.datasets import load_columns, load_samples
from shiplift.runtime.model.tensors import Arrays, DataLimits, batch_of, load_npz
from shiplift.runtime.model.text import fronts
from shiplift.runtime.model.text.samples import tokenized
from shiplift.runtime.precision import (
    nncf_graphs,
    openvino_rungs,
    quantization,
    rungs,
    tensorrt_plans,
    timing,
    trees_rung,
)
from shiplift.runtime.precision.budgets import constant_score, with_budgets
from shiplift.runtime.precision.evaluation import UNKNOWN, Validation, answers, over_budget, task_metric
from shiplift.runtime.precision.openvino_rungs import Bf16First, bf16_first
from shiplift.runtime.precision.scoring import jpegs
from shiplift.runtime.precision.selection import judged
from shiplift.runtime.precision.trees_rung import Trees
from shiplift.runtime.records.precision import (
    AS_EXPORTED,
    Built,
    Engine,
    Evaluation,
    JpegScore,
    Ladder,
    Precision,
)
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.target import Target

LAYERS, TIMINGS = "layers", "timings"  # folders of earlier releases' findings, to which this one adds
_ASKED = 64
_CALIBRATE = "(`np.savez('calibration.npz', INPUT=x)`, then `mlflow.log_artifact('calibration.npz', 'shiplift')`)"
_KINDS: dict[Precision, tuple[rungs.Kind, ...]] = {
    "fp64": (),
    "fp32": (),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "int8": ("int8 static", "int8 dynamic", "int8 nncf"),
    "fp8": ("fp8",),
}
_LADDER: tuple[Precision, ...] = ("fp16", "bf16", "int8", "fp8")


@dataclass(frozen=True, kw_only=True)
class LoggedDataset:
    """A logged file; `name` says what kind it is."""

    file: Path
    name: str


@dataclass(frozen=True, kw_only=True)
class Text:
    """What clients send to a model that takes text, and the folder of the files around its graph."""

    inputs: tuple[TensorSpec, ...]
    front: Path


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What a ladder is built from.

    `model` is the exported model's file, in this `precision`, below `work`, and `reference` the NPZ with its example
    inputs. Everything is written below `work`, where `trees` are too, if it is an ensemble of these. Its folders LAYERS
    and TIMINGS hold the findings of earlier releases. `metric_file` is the author's own metric, if the spec names one;
    `modelopt` the Python with NVIDIA's tool, if any; `built_on` this machine's compute capability. All processes
    together may use `memory_mb`.
    """

    model: Path
    reference: Path
    work: Path
    signature: Signature
    target: Target
    data: Data
    settings: Quantization
    memory_mb: int
    limits: DataLimits
    validation: LoggedDataset | None = None
    calibration: LoggedDataset | None = None
    text: Text | None = None
    trees: Trees | None = None
    precision: Precision = "fp32"
    metric_file: str = ""
    modelopt: str = ""
    built_on: str = ""

    def build(self) -> Ladder:
        """Builds, scores, times and judges every precision.

        Raises:
            DataInvalid: the logged data do not match the model.
            ExportFailed: fp32 does not load.
            MissingTool: the target is a GPU, and this environment can't run models on GPUs.
        """
        cores = usable_cores()
        running = onnx_models.session(self.model, gpu=self.target.gpu, lean=True, threads=cores)
        validation, evaluation, calibration, notes = self._samples(running)
        scored = tuple(self._jpegs(running, validation))
        if self.data.jpeg_qualities and not scored:
            notes.append("nothing was scored as JPEG: no validation data with labels were logged")
        del running  # each rung may need as much memory
        onnx_models.release_memory()
        budgeted = replace(self, settings=with_budgets(self.settings, validation.metric, validation.labels))
        return budgeted._ladder(validation, evaluation, calibration, scored, notes)

    def _ladder(
        self,
        validation: Validation,
        evaluation: Evaluation,
        calibration: Arrays | None,
        scored: tuple[JpegScore, ...],
        notes: list[str],
    ) -> Ladder:
        """Every precision, within budgets that are in the metric's unit."""
        own, runs, more = self._scored(validation, evaluation, calibration)
        measured = timing.measure(runs, self._example())
        ladder = tuple(rung.model_copy(update=measured.get(index, {})) for index, rung in enumerate(own))
        candidates = self._with_plans(judged(ladder, self.target, validation.metric, self.settings))
        lean = tuple(each.model_copy(update={"resamples": ()}) if each.dropped else each for each in candidates)
        return Ladder(
            metric=validation.metric,
            constant_score=constant_score(validation.metric, validation.labels),
            candidates=lean,
            jpegs=scored,
            notes=(*notes, *more),
        )

    def rehearse(self) -> None:
        """Builds and scores as `build` does, and keeps nothing: both engines have then done their first work."""
        running = onnx_models.session(self.model, lean=True, threads=usable_cores())
        validation, evaluation, calibration, _ = self._samples(running)
        self._scored(validation, evaluation, calibration)

    def _scored(
        self, validation: Validation, evaluation: Evaluation, calibration: Arrays | None
    ) -> tuple[list[Built], dict[int, timing.RunnableCandidate], list[str]]:
        """Every candidate with its score, the index of each that runs with how to run it, and notes."""
        first = self._bf16_first(validation, evaluation)
        wins = first.wins if first else ""
        jobs, later, more = self._jobs(validation, calibration, evaluation, wins)
        if validation.metric is None:  # nothing that is built could be kept
            built = [rungs.Rung(kind=job.kind, failed=UNKNOWN) for job in jobs]
        else:
            built = self._built(jobs, later, validation, evaluation, search=not wins)
        own = [self._top(evaluation), *(self._candidate(rung) for rung in built)]
        runs = {index: self._run(Path(rung.file), own[index]) for index, rung in enumerate(built, 1) if rung.file}
        own, runs = self._with_openvino(own, {0: self._run(self.model, own[0]), **runs}, validation, first)
        own, runs = self._with_trees(own, runs, validation)
        return own, runs, more

    # --- the data it is measured on ---

    def _samples(self, running: Any) -> tuple[Validation, Evaluation, Arrays | None, list[str]]:
        """The validation set, fp32's score on it, the calibration samples, and notes."""
        inputs, labels, columns, notes = self._validation()
        calibration, more = self._calibration(inputs)
        picked = quantization.pick(calibration, self.data.calibration_samples) if calibration is not None else None
        progress(f"scoring {self.precision}")
        sent = self._example() if inputs is None else inputs
        outputs = answers(running, sent)
        asked, reference, rows = sent, outputs, None
        if inputs is not None:
            rows = quantization.picked(len(next(iter(inputs.values()))), _ASKED)
            asked, reference = ({name: array[rows] for name, array in each.items()} for each in (sent, outputs))
        validation = Validation(
            metric=task_metric(self.data, self.metric_file) if labels is not None else None,
            metric_file=self.metric_file,
            asked=asked,
            reference=reference,
            inputs=inputs,
            labels=labels,
            columns=columns,
            rows=rows,
        )
        return validation, validation.judge(outputs), picked, [*notes, *more]

    def _validation(self) -> tuple[Arrays | None, Any, Arrays, list[str]]:
        """The inputs, labels and slicing columns of the validation data, and notes."""
        logged, data = self.validation, self.data
        if logged is None:
            note = f"no validation data were logged at {data.validation}, so nothing can be scored"
            return None, None, {}, [note]
        body = logged.file.read_bytes()
        inputs, labels = self._load(body, logged.name)
        count = len(next(iter(inputs.values())))
        columns = load_columns(body, logged.name, data.slices, count, self.limits)
        unlabelled = f"{logged.name} has no {data.label!r}, so nothing can be scored"
        return inputs, labels, columns, [unlabelled] if labels is None else []

    def _load(self, body: bytes, name: str) -> tuple[Arrays, Any]:
        """A data file's inputs, as the graph takes them, and labels."""
        inputs, labels, own = self._logged(body, name)
        return (inputs, labels) if self.text is None or own else tokenized(inputs, labels, self.text.front, name)

    def _logged(self, body: bytes, name: str) -> tuple[Arrays, Any, bool]:
        """A data file's inputs and labels as they were logged, and whether the inputs are the graph's own.

        A text model's inputs are texts. An image model's inputs may also be its pixels.
        """

        def read(specs: tuple[TensorSpec, ...]) -> tuple[Arrays, Any]:
            return load_samples(body, name, specs, self.data.label, self.data.slices, self.limits)

        if self.text is None:
            return *read(self.signature.inputs), True
        if fronts.takes_pixels(self.text.front):
            with suppress(DataInvalid):
                return *read(self.signature.inputs), True
        return *read(self.text.inputs), False

    def _jpegs(self, running: Any, validation: Validation) -> Iterator[JpegScore]:
        """How much JPEG costs a model of images, on validation images with labels.

        Raises:
            SpecInvalid: the model takes no images.
        """
        qualities, logged = self.data.jpeg_qualities, self.validation
        if not qualities or self.text is None or logged is None or validation.metric is None:
            return
        if not fronts.takes_images(self.text.front):
            raise jpegs.no_images()
        yield from jpegs.scores(
            self._images(logged, self.text), qualities, validation, lambda feeds: answers(running, feeds)
        )

    def _images(self, logged: LoggedDataset, text: Text) -> jpegs.ValidationImages:
        inputs, _, own = self._logged(logged.file.read_bytes(), logged.name)
        if own:
            return jpegs.ValidationImages(front=text.front, tensors=next(iter(inputs.values())))
        around, _ = fronts.load_front(text.front)
        return jpegs.ValidationImages(front=text.front, files=around.as_files(around.samples(inputs)))

    def _calibration(self, inputs: Arrays | None) -> tuple[Arrays | None, list[str]]:
        """The calibration samples, or else the validation set's `inputs`, and notes."""
        logged, calibration, notes = self.calibration, inputs, []
        if logged is not None:
            body = logged.file.read_bytes()
            calibration, _ = self._load(body, logged.name)
        elif inputs is not None:
            notes.append("int8 is calibrated on samples of the validation set: no calibration data were logged")
        calibration = calibration and quantization.complete(calibration)
        if calibration is not None and len(next(iter(calibration.values()))) < 2:
            raise DataInvalid(
                "the calibration data have fewer than 2 samples",
                do="Log at least 2, preferably 256: `numpy.savez('calibration.npz', INPUT=x[:256])`.",
            )
        return calibration, notes

    def _example(self) -> Arrays:
        arrays = load_npz(self.reference)
        return batch_of({spec.name: arrays[f"input/{spec.name}"] for spec in self.signature.inputs}, timing.TIMED_BATCH)

    # --- the rungs ---

    def _bf16_first(self, validation: Validation, evaluation: Evaluation) -> Bf16First | None:
        """bf16 on OpenVINO, if the target has it: it decides what else is worth building."""
        if not self._in_bf16 or not openvino_rungs.serves(self.signature):
            return None
        if validation.metric is None:
            return Bf16First(scored=openvino_rungs.left_out("bf16", UNKNOWN), wins="")
        top = self._top(evaluation)
        run = self._run(self.model, top)
        return bf16_first(top, run, self._example(), validation, evaluation, self.settings)

    def _built(
        self,
        jobs: list[rungs.RungJob],
        later: list[rungs.RungJob],
        validation: Validation,
        evaluation: Evaluation,
        *,
        search: bool,
    ) -> list[rungs.Rung]:
        """The rungs of these jobs, and of those for `later` if none of the first is within the budget.

        Layers are left in float only if no other 8-bit graph is within the budget, and only with `search`: finding the
        fewest such layers takes longer than everything else, which is too long where bf16 wins.
        """

        def within(rung: rungs.Rung) -> bool:
            return not rung.failed and not over_budget(evaluation, rung.evaluation, validation.metric, self.settings)

        built = list(rungs.build_all(jobs, memory_mb=self.memory_mb))
        if not any(map(within, built)):
            built += rungs.build_all(later, memory_mb=self.memory_mb)
        by_kind = {job.kind: job for job in (*jobs, *later)}
        for kinds in rungs.SEARCHES if search else ():
            accurate = {rung.kind for rung in built if within(rung)}
            again = [
                by_kind[rung.kind].model_copy(update={"improved": rung})
                for rung in built
                if rung.kind in kinds and rungs.worth_improving(rung, accurate)
            ]
            better = {rung.kind: rung for rung in rungs.build_all(again, memory_mb=self.memory_mb)}
            built = [_added(rung, better[rung.kind]) if rung.kind in better else rung for rung in built]
        return built

    def _jobs(
        self, validation: Validation, calibration: Arrays | None, evaluation: Evaluation, wins: str
    ) -> tuple[list[rungs.RungJob], list[rungs.RungJob], list[str]]:
        """What to build, what to build if none of that is accurate enough, and notes. `wins`: how bf16 wins, if so."""
        kinds, notes = self._kinds(calibrated=calibration is not None)
        kinds, later = self._without_need(kinds, notes, wins) if wins else (kinds, [])
        if not kinds:
            return [], [], notes
        arrays = rungs.write_arrays(self.work / "arrays.npz", calibration, validation)
        jobs = []
        for kind in (*kinds, *later):
            folder = self.work / kind.replace(" ", "-")
            folder.mkdir()
            jobs.append(
                rungs.RungJob(
                    kind=kind,
                    model=str(self.model),
                    folder=str(folder),
                    arrays=str(arrays),
                    signature=self.signature,
                    sensitivities=str(self.work / LAYERS),
                    metric=validation.metric,
                    base=evaluation,
                    metric_file=self.metric_file,
                    target=self.target,
                    settings=self.settings,
                    modelopt=self.modelopt,
                )
            )
        return jobs[: len(kinds)], jobs[len(kinds) :], notes

    def _without_need(
        self, kinds: list[rungs.Kind], notes: list[str], wins: str
    ) -> tuple[list[rungs.Kind], list[rungs.Kind]]:
        """What is still worth building where bf16 wins, and what to build only if bf16 turns out too inaccurate.

        For transformers, bf16 is about as fast as int8 and much closer to fp32. Convolutions gain from int8, most of
        all from NNCF's graphs; our own calibrations take longest.
        """
        if any(kind.startswith("int8") for kind in kinds) and quantization.has_attention(self.model):
            notes.append(f"int8 was not built: {wins}, about as much as int8 gains for transformers")
            return [kind for kind in kinds if not kind.startswith("int8")], []
        if "int8 nncf" in kinds and "int8 static" in kinds:
            return [kind for kind in kinds if kind != "int8 static"], ["int8 static"]
        return kinds, []

    def _kinds(self, *, calibrated: bool) -> tuple[list[rungs.Kind], list[str]]:
        target, notes = self.target, []
        if target.engines == ("trees",):
            return [], []
        if self.precision == "fp64":
            return [], ["no lower precision was built of a graph in fp64"]
        kinds = [kind for precision in _LADDER if precision in target.precisions for kind in _KINDS[precision]]
        eight_bit = [precision for precision in ("int8", "fp8") if precision in target.precisions]
        if self._in_bf16:
            kinds.remove("bf16")  # it is a hint to OpenVINO; ONNX Runtime has no bf16 kernels for CPUs
        if not calibrated and eight_bit:
            kinds = [kind for kind in kinds if not kind.startswith(("int8", "fp8"))]
            why = f"no calibration data were logged {_CALIBRATE}"
            notes += [f"{precision} was not built: {why}" for precision in eight_bit]
        attentive = quantization.has_attention(self.model)
        if "int8 dynamic" in kinds and (target.gpu or not attentive):
            kinds.remove("int8 dynamic")  # it helps transformers and recurrent models, on CPUs
        if "int8 nncf" in kinds and (target.gpu or quantization.model_bytes(self.model) < nncf_graphs.SMALLEST_BYTES):
            kinds.remove("int8 nncf")
        return kinds, notes

    @property
    def _in_bf16(self) -> bool:
        """Whether OpenVINO may compute in bf16 on this target."""
        return self._with_hints and "bf16" in self.target.precisions

    @property
    def _with_hints(self) -> bool:
        """Whether OpenVINO may compute; it does so in fp32 at most."""
        return "openvino" in self.target.engines and self.precision != "fp64"

    def _top(self, evaluation: Evaluation) -> Built:
        return Built(
            engine=self._engine,
            precision=self.precision,
            method="as exported",
            folder=AS_EXPORTED,
            **_scores(evaluation),
        )

    @property
    def _engine(self) -> Engine:
        """The engine of the files that are built here; OpenVINO's candidates come later."""
        return self.target.engines[0] if self.target.engines[0] not in ("openvino", "trees") else "onnxruntime"

    def _run(self, file: Path, candidate: Built) -> timing.RunnableCandidate:
        return timing.RunnableCandidate(
            file=file,
            outputs=tuple(spec.name for spec in self.signature.outputs),
            precision=candidate.precision,
            gpu=self.target.gpu,
        )

    def _with_openvino(
        self,
        own: list[Built],
        runs: dict[int, timing.RunnableCandidate],
        validation: Validation,
        first: Bf16First | None,
    ) -> tuple[list[Built], dict[int, timing.RunnableCandidate]]:
        """Adds OpenVINO's candidates from the same files, if the target may use it."""
        if not self._with_hints:
            return own, runs
        known: dict[Precision, openvino_rungs.Scored] = {"bf16": first.scored} if first else {}
        if first and first.wins:
            known["fp32"] = openvino_rungs.left_out("fp32", f"not tried: {first.wins}")
        added = openvino_rungs.scored(own, runs, self.target, self.signature, validation, known)
        indices = range(len(own), len(own) + len(added))
        more = {index: run for index, (_, run) in zip(indices, added, strict=True) if run is not None}
        return [*own, *(built for built, _ in added)], {**runs, **more}

    def _with_trees(
        self, own: list[Built], runs: dict[int, timing.RunnableCandidate], validation: Validation
    ) -> tuple[list[Built], dict[int, timing.RunnableCandidate]]:
        """Adds exact trees, if the model is an ensemble of these and the target may use them."""
        if self.trees is None or "trees" not in self.target.engines:
            return own, runs
        try:
            folder = self._relative(self.trees.file)
            built, run = trees_rung.scored(self.trees, self.signature, folder, validation)
        except (MissingTool, QuantizeFailed) as problem:
            return [*own, trees_rung.without(problem)], runs
        return [*own, built], {**runs, len(own): run} if run else runs

    def _candidate(self, rung: rungs.Rung) -> Built:
        return Built(
            engine=self._engine,
            precision=rung.precision,
            method=rung.method or rung.kind,
            float_layers=rung.float_layers,
            folder=self._relative(Path(rung.file)) if rung.file else "",
            build_seconds=rung.seconds,
            build_peak_mb=rung.peak_mb,
            **_scores(rung.evaluation) | ({"dropped": rung.failed} if rung.failed else {}),
        )

    def _relative(self, model: Path) -> str:
        return model.parent.relative_to(self.work).as_posix()

    def _with_plans(self, candidates: tuple[Built, ...]) -> tuple[Built, ...]:
        """Adds, for a TensorRT target, a plan to each candidate that is kept; built where it will run."""
        if self.target.engine != "tensorrt":
            return candidates
        trt = tensorrt_plans.library()
        return tuple(
            candidate if candidate.dropped or not candidate.folder else self._with_plan(candidate, trt)
            for candidate in candidates
        )

    def _with_plan(self, candidate: Built, trt: Any) -> Built:
        progress(f"building the TensorRT plan of {candidate.precision}")
        if candidate.folder == AS_EXPORTED:
            candidate = candidate.model_copy(update={"folder": self._relative(self.model)})
        tensorrt_plans.build_plan(
            self.work / candidate.folder / "model.onnx",
            self.signature,
            self.target,
            self.work / TIMINGS,
            trt,
            built_on=self.built_on,
        )
        return candidate


def _added(rung: rungs.Rung, improved: rungs.Rung) -> rungs.Rung:
    """The improved rung, with the time of both; the one before if improving failed."""
    took = {"seconds": round(rung.seconds + improved.seconds, 3), "peak_mb": max(rung.peak_mb, improved.peak_mb)}
    return (rung if improved.failed else improved).model_copy(update=took)


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    fields: dict[str, Any] = evaluation.model_dump(
        include={"score", "score_error", "resamples", "samples", "relative_error"}
    )
    return fields | {"slices": evaluation.slices, "dropped": evaluation.problem}
