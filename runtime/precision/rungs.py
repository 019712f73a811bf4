"""One rung of the precision ladder: built, scored and compared with fp32, in its own process or in this one.

A job is a JSON file with its arrays in an NPZ; the process `python -m ....rungs JOB` writes its rung as JSON. A
separate process returns all its memory and has a measurable peak; small models are built in this process.
"""

import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import psutil

from shiplift.runtime.base.errors import MissingTool, QuantizeFailed, ShipliftError
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.processes import inherited, own_memory_mb, own_module, start_child
from shiplift.runtime.host.processor import usable_cores
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays, as_input, dump_npz, load_npz
from shiplift.runtime.precision import modelopt, nncf_graphs, quantization, sensitivity
from shiplift.runtime.precision.evaluation import Validation, over_budget
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.precision import Evaluation, Precision, TaskMetricName
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Method, Quantization
from shiplift.runtime.spec.target import Target

Kind = Literal["fp16", "bf16", "int8 static", "int8 dynamic", "int8 nncf", "fp8"]
_SMALL_BYTES = 16 << 20
_PROCESS_BYTES = 400 << 20  # Python with ONNX Runtime and its tools
_PEAK_FACTOR = 3  # a rung's peak memory, in sizes of the model
_SENSITIVITY_SAMPLES = 16
# The graphs that can leave layers in float, in the order in which they are tried. NNCF's comes last, because each try
# collects statistics again.
SEARCHES: tuple[frozenset[Kind], ...] = (frozenset({"int8 static", "int8 dynamic"}), frozenset({"int8 nncf"}))
_POLL_S = 0.02


class Rung(Record):
    """The result of a job: a model file and its evaluation, or the reason why there is none.

    `peak_mb` is the peak memory in MiB, beyond Python, its libraries and the samples.
    """

    kind: Kind
    method: str = ""
    file: str = ""
    float_layers: tuple[str, ...] = ()
    evaluation: Evaluation = Evaluation()
    failed: str = ""
    seconds: float = 0.0
    peak_mb: float = 0.0

    @property
    def precision(self) -> Precision:
        """The rung's precision."""
        return self.kind.split()[0]  # type: ignore[return-value]


class RungJob(Record):
    """What a rung is built from.

    `arrays` is an NPZ with `calibration/NAME`, `validation/NAME`, `asked/NAME`, `reference/NAME`, `column/NAME` and
    `label` and `rows`. `sensitivities` is the folder of layer rankings. `modelopt` is the Python with NVIDIA's tool, if
    any, and `metric_file` the author's own metric. `threads` are for scoring. `improved` is a rung of an earlier job in
    the same folder: more layers are left in float until it is within the budget.
    """

    kind: Kind
    model: str
    folder: str
    arrays: str
    sensitivities: str
    signature: Signature
    metric: TaskMetricName | None
    metric_file: str = ""
    base: Evaluation
    target: Target
    settings: Quantization
    modelopt: str = ""
    threads: int = 1
    improved: Rung | None = None

    @property
    def by_modelopt(self) -> bool:
        """Whether NVIDIA's modelopt builds it."""
        return self.target.gpu and bool(self.modelopt)


def write_arrays(to: Path, calibration: Arrays | None, validation: Validation) -> Path:
    """Writes the arrays of a job."""
    groups: dict[str, Arrays] = {
        "calibration": calibration or {},
        "validation": validation.inputs or {},
        "asked": validation.asked,
        "reference": validation.reference,
        "column": validation.columns,
    }
    flat = {f"{group}/{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
    single = {"label": validation.labels, "rows": validation.rows}
    to.write_bytes(dump_npz(flat | {name: array for name, array in single.items() if array is not None}))
    return to


def build_all(jobs: Sequence[RungJob], *, memory_mb: int) -> tuple[Rung, ...]:
    """Builds every job: small models in this process, others in as many processes as `memory_mb` and cores allow."""
    if not jobs:
        return ()
    if quantization.model_bytes(Path(jobs[0].model)) >= _SMALL_BYTES:
        return _build_in_processes(jobs, memory_mb)
    built = []
    for job in jobs:
        progress(f"building {job.kind}")
        built.append(
            build(job).model_copy(update={"peak_mb": 0.0})
        )  # this process's peak says nothing about the rung's peak
    return tuple(built)


def parallel_builds(jobs: int, model_bytes: int, free_bytes: int, cores: int) -> int:
    """How many rungs to build at a time: each may hold three times the model, and needs a core."""
    each = _PEAK_FACTOR * model_bytes + _PROCESS_BYTES
    return max(1, min(jobs, cores, free_bytes // each))


def _build_in_processes(jobs: Sequence[RungJob], memory_mb: int) -> tuple[Rung, ...]:
    cores = usable_cores()
    size = quantization.model_bytes(Path(jobs[0].model))
    free = min(psutil.virtual_memory().available, (memory_mb << 20) - int(own_memory_mb()[0] * 2**20))
    limit = parallel_builds(len(jobs), size, free, cores)
    threads = max(1, cores // limit)
    jobs = [job.model_copy(update={"threads": threads}) for job in jobs]
    waiting, running, ended = list(enumerate(jobs)), dict[int, _Child](), dict[int, Rung]()
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                index, job = waiting.pop(0)
                progress(f"building {job.kind}")
                running[index] = _Child.start(job)
            for index, child in list(running.items()):
                if (rung := child.result()) is not None:
                    ended[index] = rung
                    del running[index]
            time.sleep(_POLL_S)
    finally:
        for child in running.values():
            child.process.kill()
            child.process.wait()
    return tuple(ended[index] for index in range(len(jobs)))


@dataclass(frozen=True)
class _Child:
    """A job in its own process, which dies with this one."""

    job: RungJob
    process: "subprocess.Popen[bytes]"

    @classmethod
    def start(cls, job: RungJob) -> "_Child":
        folder = Path(job.folder)
        (folder / "job.json").write_text(job.model_dump_json())
        environment = {**inherited(), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        command = own_module("shiplift.runtime.precision.rungs", folder / "job.json")
        log = folder / "log"
        # It stays in the sandbox's session, so that it and its child modelopt are killed with the sandbox.
        child = start_child(command, environment=environment, log=log, folder=folder, own_session=False)
        return cls(job, child)

    def result(self) -> Rung | None:
        """The rung, or None while the process runs."""
        if self.process.poll() is None:
            return None
        file = Path(self.job.folder) / "rung.json"
        if self.process.returncode == 0 and file.is_file():
            return Rung.model_validate_json(file.read_text())
        log = (Path(self.job.folder) / "log").read_text(errors="replace").strip().splitlines()
        reason = "it was killed: not enough memory" if self.process.returncode == -9 else " ".join(log[-1:])[:300]
        return Rung(kind=self.job.kind, failed=f"{self.job.kind} can't be built: {reason}")


# --- building -------------------------------------------------------------------------------------------------------


def build(job: RungJob) -> Rung:
    """Builds the job's rung. A failure becomes a rung with a reason, since the other rungs may succeed."""
    started, arrays = time.monotonic(), _Arrays.of(job)
    before, _ = own_memory_mb()
    try:
        rung = _improve(job, arrays, job.improved) if job.improved else _BUILDERS[job.kind](job, arrays)
    except ShipliftError as error:
        rung = Rung(kind=job.kind, failed=error.what)
    peak = round(own_memory_mb()[1] - before, 1)
    return rung.model_copy(update={"seconds": round(time.monotonic() - started, 3), "peak_mb": peak})


@dataclass(frozen=True, kw_only=True)
class _Arrays:
    """A job's arrays, in the model's dtypes."""

    calibration: Arrays
    validation: Validation

    @classmethod
    def of(cls, job: RungJob) -> "_Arrays":
        flat = load_npz(Path(job.arrays))
        specs = {spec.name: spec for spec in job.signature.inputs}

        def group(name: str) -> Arrays:
            members = {k.removeprefix(f"{name}/"): array for k, array in flat.items() if k.startswith(f"{name}/")}
            return {key: as_input(array, specs[key]) if key in specs else array for key, array in members.items()}

        validation = Validation(
            metric=job.metric,
            metric_file=job.metric_file,
            asked=group("asked"),
            reference=group("reference"),
            columns=group("column"),
            inputs=group("validation") or None,
            labels=flat.get("label"),
            rows=flat.get("rows"),
        )
        return cls(calibration=group("calibration"), validation=validation)


def _half(job: RungJob, arrays: _Arrays) -> Rung:
    kind = job.kind
    if kind == "bf16" and not job.target.gpu:
        raise QuantizeFailed("bf16 can't be built: ONNX Runtime has no BF16 kernels for CPUs", do="Leave bf16 out.")
    to = _output_path(job, "model.onnx")
    if job.by_modelopt:
        samples = modelopt.write_samples(
            arrays.calibration or arrays.validation.asked, Path(job.folder) / "samples.npz"
        )
        command = modelopt.autocast_command(job.modelopt, Path(job.model), to, kind, samples)  # type: ignore[arg-type]
        return _rung(job, arrays, modelopt.run(command, to), "modelopt autocast, kept inputs and outputs")
    file = quantization.to_half(Path(job.model), kind, to)  # type: ignore[arg-type]
    return _rung(job, arrays, file, "mixed, FP32 inputs and outputs")


def _dynamic(job: RungJob, arrays: _Arrays) -> Rung:
    form = quantization.scheme(Path(job.model), job.target, job.settings)
    method = "dynamic" + (", per channel" if form.per_channel else "")
    file = quantization.quantize_dynamic(_prepared(job), form, _output_path(job, "model.onnx"))
    return _rung(job, arrays, file, method)


def _nncf(job: RungJob, arrays: _Arrays) -> Rung:
    form = quantization.scheme(Path(job.model), job.target, job.settings)
    return _rung(job, arrays, _by_nncf(_prepared(job), arrays, form, _output_path(job, "model.onnx")), "NNCF")


def _by_nncf(
    prepared: Path, arrays: _Arrays, form: quantization.Scheme, to: Path, excluded: tuple[str, ...] = ()
) -> Path:
    return nncf_graphs.quantize(
        prepared, arrays.calibration, to, attentive=form.attentive, narrow=form.reduce_range, excluded=excluded
    )


def _fp8(job: RungJob, arrays: _Arrays) -> Rung:
    if not job.by_modelopt:
        raise MissingTool(
            f"{job.kind} can't be built here: its graphs come from NVIDIA's modelopt, which is in the image for GPUs",
            do="Name that image as `images.gpu` in the values, or leave fp8 out of the target's precisions.",
        )
    return _by_modelopt(job, arrays, "fp8", "minmax")


def _by_modelopt(job: RungJob, arrays: _Arrays, mode: Literal["int8", "fp8"], method: Method) -> Rung:
    samples = modelopt.write_samples(arrays.calibration, Path(job.folder) / "samples.npz")
    to = _output_path(job, method, "model.onnx")
    command = modelopt.quantize_command(job.modelopt, Path(job.model), to, mode, method, samples)
    return _rung(job, arrays, modelopt.run(command, to), f"modelopt {mode}, {modelopt.METHODS[method]}")


def _static(job: RungJob, arrays: _Arrays) -> Rung:
    """The rung of the calibration method that is closest to fp32."""
    if job.by_modelopt:
        methods: list[Method] = [method for method in job.settings.methods if method in modelopt.METHODS] or ["minmax"]
        built = {method: _by_modelopt(job, arrays, "int8", method) for method in methods}
        return built[closest(built)]
    form = quantization.scheme(Path(job.model), job.target, job.settings)
    prepared = _prepared(job)
    if not quantization.layers(prepared):
        raise QuantizeFailed(
            "int8 can't be built: the model has no convolution and no matrix product with weights",
            do="Leave int8 out of the precisions.",
        )
    ranges = quantization.ranges(prepared, arrays.calibration, form.op_types, job.settings, Path(job.folder))
    tried = {
        method: _rung(
            job,
            arrays,
            quantization.quantize_static(prepared, file, form, _output_path(job, method, "model.onnx")),
            f"static {method}" + (", per channel" if form.per_channel else ""),
        )
        for method, file in ranges.items()
    }
    return tried[closest(tried)]


def closest(tried: dict[Method, Rung]) -> Method:
    """The method whose outputs are closest to fp32's; of equal ones, the simpler."""

    def error_of(method: Method) -> float:
        error = tried[method].evaluation.relative_error
        return float("inf") if error is None or tried[method].evaluation.problem else round(error, 4)

    return min(tried, key=error_of)


def worth_improving(rung: Rung, accurate: Collection[Kind]) -> bool:
    """Whether to leave layers of an over-budget rung of `SEARCHES` in float, given the `accurate` ones within it.

    Its score must say when to stop. A dynamic graph does not replace a static one, which OpenVINO can run too.
    """
    makes_up = {"int8 static", "int8 nncf"} | ({"int8 dynamic"} if rung.kind == "int8 dynamic" else set())
    scored = not rung.failed and rung.evaluation.score is not None
    return scored and not makes_up.intersection(accurate)


def _improve(job: RungJob, arrays: _Arrays, rung: Rung) -> Rung:
    """The rung with the fewest layers in float that bring it within the budget; unchanged if none do."""
    if job.by_modelopt:
        return rung
    form = quantization.scheme(Path(job.model), job.target, job.settings)
    prepared, file = _prepared_path(job), Path(rung.file)
    layers = quantization.layers(prepared)
    samples = quantization.first(arrays.calibration, _SENSITIVITY_SAMPLES)
    kind = rung.kind.removeprefix("int8 ")
    order = sensitivity.ranking(Path(job.sensitivities), prepared, file, layers, samples, kind=kind)
    tried: dict[int, Rung] = {}

    def fits(count: int) -> bool:
        excluded, to = order[:count], _output_path(job, f"float-{count}", "model.onnx")
        if kind == "static":
            ranges = quantization.ranges_file(Path(job.folder), file.parent.name)
            quantization.quantize_static(prepared, ranges, form, to, excluded)
        elif kind == "nncf":
            _by_nncf(prepared, arrays, form, to, excluded)
        else:
            quantization.quantize_dynamic(prepared, form, to, excluded)
        tried[count] = _rung(job, arrays, to, rung.method, excluded)
        return not over_budget(job.base, tried[count].evaluation, job.metric, job.settings)

    most = int(len(layers) * job.settings.max_float_share)
    count = sensitivity.smallest(most, fits) if most else None
    return rung if count is None else tried[count]


def _rung(job: RungJob, arrays: _Arrays, file: Path, method: str, float_layers: tuple[str, ...] = ()) -> Rung:
    try:
        session = onnx_models.session(file, gpu=job.target.gpu, lean=True, threads=job.threads)
        evaluation = arrays.validation.evaluate(session)
    except ShipliftError:
        raise
    except Exception as error:
        raise QuantizeFailed(
            f"{job.kind} does not run: {' '.join(str(error).split())[:300]}", do="Leave it out of the precisions."
        ) from error
    onnx_models.release_memory()  # the next rung needs it
    return Rung(kind=job.kind, method=method, file=str(file), float_layers=float_layers, evaluation=evaluation)


def _prepared(job: RungJob) -> Path:
    return quantization.prepare(Path(job.model), _prepared_path(job))


def _prepared_path(job: RungJob) -> Path:
    return _output_path(job, "prepared", "model.onnx")


def _output_path(job: RungJob, *parts: str) -> Path:
    path = Path(job.folder).joinpath("built" if len(parts) == 1 else "", *parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


_BUILDERS = {
    "fp16": _half,
    "bf16": _half,
    "int8 static": _static,
    "int8 dynamic": _dynamic,
    "int8 nncf": _nncf,
    "fp8": _fp8,
}


def main(job: Path) -> None:
    """Builds one job and writes its rung next to it."""
    quantization.import_tools()  # so that these imports don't count as the rung's memory
    rung = build(RungJob.model_validate_json(job.read_text()))
    (job.parent / "rung.json").write_text(rung.model_dump_json())


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(Path(sys.argv[1]))
