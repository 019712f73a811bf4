"""`make bench-precision`: the gain of lower precision on this processor, as a JSON file and a short table.

Each model goes through a release's quantize stage with both engines: its fastest candidate, the best of each precision
on OpenVINO, and fp32 are served. Rivals are `onnxruntime.quantization` with its defaults, NNCF with its own on
OpenVINO, and Olive: with its default pass, with its own search, and with its pass for OpenVINO. All are served by one
bundled Triton and measured in turn with perf_analyzer; accuracy is reported where the model is trained.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.architectures import LARGE, seeded, trained_digits
from benchmarks.extras import extras
from shiplift.runtime.host.processes import inherited, memory_mb
from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.measure.requests import split
from shiplift.runtime.model.graph_digest import graph_digest
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.precision import evaluation
from shiplift.runtime.precision.timing import RunnableCandidate
from shiplift.runtime.records.kinds.exported import ExportedGraph
from shiplift.runtime.records.model import Datasets, Isolation
from shiplift.runtime.records.precision import Candidates, Engine, Precision
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import default_root, ensure
from shiplift.runtime.serving.triton.repository import golden_arrays, install, write_package
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.targets.discovery import detect
from shiplift.runtime.targets.machine import accelerator_of, this_machine
from shiplift.steps.quantize import quantize

RESULTS = Path(__file__).parent / "results" / "precision.json"
ROUNDS, _WINDOW_MS, _CONCURRENCY = 5, 1000, 4
_CALIBRATION = 64
_OLIVE_S = 1800
_OLIVE_TRIALS = 6  # of its search; each evaluates the whole validation set
_ON_OPENVINO = ("nncf", "olive-openvino")
_CONFIG = ServingConfig(max_batch=8, queue_delay_us=0, instances=1, threads=1)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to measure: its ONNX file, samples to calibrate on, and labelled ones to validate with."""

    name: str
    file: Path
    calibration: Arrays
    validation: Arrays
    labels: Any
    trained: bool


# --- subjects -------------------------------------------------------------------------------------------------------


def subjects(folder: Path, names: set[str]) -> Iterator[Subject]:
    """Exports each model to ONNX with a dynamic batch; an untrained one is labelled by its own fp32 answers."""
    if "digits-cnn" in names:
        yield _digits(folder / "digits-cnn")
    for architecture in LARGE:
        if architecture.name in names:
            model = seeded(architecture)
            samples = architecture.inputs(_CALIBRATION)
            with torch.inference_mode():
                labels = torch.cat([model(part) for part in samples.split(8)]).argmax(1).numpy()
            inputs = {"input": samples.numpy()}
            file = _onnx(model, architecture.inputs(2), folder / architecture.name)
            yield Subject(
                name=architecture.name, file=file, calibration=inputs, validation=inputs, labels=labels, trained=False
            )


def _digits(folder: Path) -> Subject:
    digits = trained_digits()
    file = _onnx(digits.model, torch.from_numpy(digits.images[:2]), folder)
    return Subject(
        name="digits-cnn",
        file=file,
        calibration={"input": digits.images[:256]},
        validation={"input": digits.images[1200:]},
        labels=digits.labels[1200:],
        trained=True,
    )


def _onnx(model: Any, example: Any, folder: Path) -> Path:
    folder.mkdir(parents=True)
    program = torch.onnx.export(
        model,
        (example,),
        dynamo=True,
        input_names=["input"],
        output_names=["output"],
        opset_version=20,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        verbose=False,
    )
    if program is None:
        raise SystemExit("torch exported nothing")
    program.save(str(folder / "model.onnx"), external_data=False)
    return folder / "model.onnx"


@dataclass(frozen=True, kw_only=True)
class Side:
    """A file, and what runs it."""

    file: Path
    engine: Engine = "onnxruntime"
    precision: Precision = "fp32"


# --- quantizing ----------------------------------------------------------------------------------------------------


def ladder(subject: Subject, site: Site) -> tuple[dict[str, Side], dict[str, Any]]:
    """The quantize stage's candidates to serve, by name, and what it says of all of them.

    `shiplift` is the fastest that it kept; `openvino-PRECISION` are OpenVINO's, the fastest of each precision.
    """
    store = ArtifactStore(site.artifacts_uri)
    rungs = _candidates(subject, site, store).candidates
    timed = sorted(
        (rung for rung in rungs if rung.model is not None and rung.latency_ms),
        key=lambda rung: (bool(rung.dropped), rung.latency_ms),
    )
    sides: dict[str, Side] = {}
    for rung in timed:
        assert rung.model is not None
        file = store.fetch(rung.model, Path(site.home) / rung.variant / rung.method.replace(" ", "-")) / "model.onnx"
        side = Side(file=file, engine=rung.engine, precision=rung.precision)
        sides.setdefault("shiplift", side)
        if rung.engine == "openvino":
            sides.setdefault(f"openvino-{rung.precision}", side)
    details = {
        f"{rung.variant}, {rung.method or 'not built'}": rung.model_dump(mode="json", exclude={"model", "slices"})
        for rung in rungs
    }
    best = timed[0]
    chosen = {
        "engine": best.engine,
        "precision": best.precision,
        "method": best.method,
        "float_layers": len(best.float_layers),
    }
    return sides, {"chosen": chosen, "rungs": details}


def _candidates(subject: Subject, site: Site, store: ArtifactStore) -> Candidates:
    signature = signature_of(onnx.load(subject.file))
    example = {f"input/{name}": array[:4] for name, array in subject.validation.items()}
    exported = ExportedGraph(
        model=store.put_tree(subject.file.parent),
        signature=signature,
        opset=20,
        parity=(),
        graph=graph_digest(subject.file),
        reference=store.put_bytes(dump_npz(example)),
        isolation=Isolation(network="none", files="none", memory_limit_mb=0, timeout_s=0),
    )
    datasets = Datasets(
        validation=store.put_bytes(dump_npz(subject.validation | {"label": subject.labels})),
        validation_name="validation.npz",
        calibration=store.put_bytes(dump_npz(subject.calibration)),
        calibration_name="calibration.npz",
    )
    target = detect(this_machine())[0]
    return quantize(site, target, exported, datasets, Data(), Quantization())


def defaults(subject: Subject, folder: Path) -> Path:
    """Quantizes with `onnxruntime.quantization.quantize_static` and its defaults, on the same samples."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    size = len(next(iter(subject.calibration.values())))
    slices = [slice(start, start + 8) for start in range(0, size, 8)]
    batches = iter([{name: array[part] for name, array in subject.calibration.items()} for part in slices])

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The calibration samples in batches of eight."""

        def get_next(self) -> Arrays | None:
            """The next batch."""
            return next(batches, None)

    folder.mkdir(parents=True)
    quant_pre_process(str(subject.file), str(folder / "prepared.onnx"))
    quantize_static(str(folder / "prepared.onnx"), str(folder / "model.onnx"), Reader())
    (folder / "prepared.onnx").unlink()
    return folder / "model.onnx"


def nncf(subject: Subject, folder: Path) -> Path:
    """Quantizes with `nncf.quantize` and its defaults, on the same samples."""
    import nncf as library

    count = len(next(iter(subject.calibration.values())))
    samples = [{name: array[at : at + 1] for name, array in subject.calibration.items()} for at in range(count)]
    folder.mkdir(parents=True)
    onnx.save(library.quantize(onnx.load(subject.file), library.Dataset(samples)), folder / "model.onnx")
    return folder / "model.onnx"


def olive(subject: Subject, folder: Path, packages: Path, *options: str) -> Path:
    """Quantizes with Olive in its own process, on the same samples; `options` are those of `olive_run.py`."""
    folder.mkdir(parents=True)
    np.savez(folder / "samples.npz", **subject.calibration)  # type: ignore[arg-type]
    np.savez(folder / "validation.npz", **subject.validation, label=subject.labels)  # type: ignore[arg-type]
    script = str(Path(__file__).with_name("olive_run.py"))
    command = [sys.executable, script, str(subject.file), str(folder), *options]
    variables = {**inherited(), "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1", "OLIVE_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_OLIVE_S, env=variables)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else "it printed nothing")
    quantized = folder / "quantized"  # its own folder: a package takes everything beside a model's file
    quantized.mkdir()
    return (folder / "model.onnx").rename(quantized / "model.onnx")


# --- measuring ------------------------------------------------------------------------------------------------------


def accuracy(subject: Subject, side: Side) -> float:
    """The share of samples whose top class is the label."""
    outputs = tuple(spec.name for spec in signature_of(onnx.load(subject.file)).outputs)
    run = RunnableCandidate(file=side.file, outputs=outputs, engine=side.engine, precision=side.precision)
    answers = evaluation.answers(run.session(), subject.validation)
    return float((next(iter(answers.values())).argmax(1) == subject.labels).mean())


def served(subject: Subject, sides: dict[str, Side], work: Path) -> dict[str, dict[str, float]]:
    """Throughput and latency of each side on one bundled server, measured in turn; medians over the rounds."""
    environment = ensure(default_root())
    signature = signature_of(onnx.load(subject.file))
    inputs = {name: array[:16] for name, array in subject.validation.items()}
    generator = PerfAnalyzer(environment)
    requests = generator.write_requests(work / "requests.json", signature, split(inputs))
    with (
        private_server(environment, work / "models", Features(), log=work / "triton.log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        memory = {}
        for name, side in sides.items():
            _package(name, side, signature, inputs, work)
            before = memory_mb(server.process.pid)
            client.load(name)
            memory[name] = round(memory_mb(server.process.pid) - before, 1)
        window = Window(window_ms=_WINDOW_MS, stability_percent=1000, attempts=1, protocol="grpc")
        points: dict[str, list[Any]] = {name: [] for name in sides}
        for round_ in range(ROUNDS):
            for name in list(sides)[:: 1 if round_ % 2 else -1]:
                target = LoadTarget(model=name, address=server.grpc, requests=requests)
                points[name].append(generator.measure(target, Demand(concurrency=_CONCURRENCY), window, work).point)
    return {
        name: {
            "throughput_per_s": round(median(point.throughput_per_s for point in measured), 1),
            "p50_ms": round(median(point.p50_ms for point in measured), 3),
            "p99_ms": round(median(point.p99_ms for point in measured), 3),
            "memory_mb": memory[name],
        }
        for name, measured in points.items()
    }


def _package(name: str, side: Side, signature: Signature, inputs: Arrays, work: Path) -> None:
    tree = work / f"{name}-package"
    tree.mkdir()
    description = ModelDescription(
        name=name,
        version=1,
        signature=signature,
        config=_CONFIG,
        serving=Serving(),
        engine=side.engine,
        precision=side.precision,
    )
    golden = golden_arrays({}, {})
    write_package(tree, description, side.file.parent, "bundled", example=inputs, golden=golden)
    install(tree, work / "models", source=name, name=name)


def measure(subject: Subject, work: Path, packages: Path | None) -> dict[str, Any]:
    """Everything about one model."""
    site = Site(
        home=str(work / "home"),
        registry_uri="",
        artifacts_uri=(work / "artifacts").as_uri(),
        server_environment="",
        place=Machine(http="", grpc="", metrics=""),
    )
    Path(site.home).mkdir(parents=True, exist_ok=True)
    sides, seconds, notes = {"fp32": Side(file=subject.file)}, {}, {}
    quantizers: dict[str, Callable[[], Path]] = {
        "ort-defaults": lambda: defaults(subject, work / "defaults"),
        "nncf": lambda: nncf(subject, work / "nncf"),
    }
    if packages:
        searching, for_openvino = ("--trials", str(_OLIVE_TRIALS)), ("--pass", "OpenVINOQuantization")
        quantizers["olive"] = lambda: olive(subject, work / "olive", packages)
        quantizers["olive-search"] = lambda: olive(subject, work / "olive-search", packages, *searching)
        quantizers["olive-openvino"] = lambda: olive(subject, work / "olive-openvino", packages, *for_openvino)
    tell(f"{subject.name}: the ladder")
    started = time.monotonic()
    kept, story = ladder(subject, site)
    sides |= kept
    seconds["shiplift"] = round(time.monotonic() - started, 2)
    for name, run in quantizers.items():
        tell(f"{subject.name}: {name}")
        started = time.monotonic()
        try:
            engine: Engine = "openvino" if name in _ON_OPENVINO else "onnxruntime"
            sides[name] = Side(file=run(), engine=engine, precision="int8")
            seconds[name] = round(time.monotonic() - started, 2)
        except Exception as error:
            notes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    tell(f"{subject.name}: serving {', '.join(sides)} in {ROUNDS} rounds")
    figures = served(subject, sides, work)
    base = figures["fp32"]
    for name, row in figures.items():
        row["throughput_ratio"] = round(row["throughput_per_s"] / base["throughput_per_s"], 3)
        row["p99_ratio"] = round(row["p99_ms"] / base["p99_ms"], 3)
        row["agreement" if not subject.trained else "accuracy"] = round(accuracy(subject, sides[name]), 4)
        row["seconds"] = seconds.get(name, 0.0)
    return {"figures": figures, "notes": notes, **story}


def tell(message: str) -> None:
    """Prints progress to stderr."""
    print(message, file=sys.stderr, flush=True)


def table(results: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{'model':<16}{'by':<15}{'infer/s':>9}{'x':>7}{'p99 ms':>9}{'x':>7}{'accuracy':>10}{'seconds':>9}"]
    for model, result in results["models"].items():
        for name, row in result["figures"].items():
            score = row.get("accuracy", row.get("agreement"))
            lines.append(
                f"{model:<16}{name:<15}{row['throughput_per_s']:>9.0f}{row['throughput_ratio']:>7.2f}"
                f"{row['p99_ms']:>9.2f}{row['p99_ratio']:>7.2f}{score:>10.4f}{row['seconds']:>9.1f}"
            )
    return "\n".join(lines)


def main() -> None:
    """Measures the chosen models, writes the JSON and prints the table."""
    every = ["digits-cnn", *(architecture.name for architecture in LARGE)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=every, choices=every)
    parser.add_argument("--no-olive", action="store_true", help="leave out Olive, which needs 200 MB of packages")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    kind = accelerator_of(this_machine())
    results: dict[str, Any] = {"machine": {**machine, "accelerator": kind}, "models": {}}
    packages = None if arguments.no_olive else extras("olive.txt", tell)
    with TemporaryDirectory(prefix="shiplift-precision-") as folder:
        for subject in subjects(Path(folder), set(arguments.models)):
            work = Path(folder) / f"{subject.name}-work"
            work.mkdir()
            results["models"][subject.name] = measure(subject, work, packages)
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
