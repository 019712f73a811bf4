"""`make bench-search`: the search against brute force and Triton Model Analyzer, on one bundled server.

There are three models, each in fp32 and int8 on ONNX Runtime and OpenVINO, and in bf16 where the processor computes in
it. Brute force measures every point of a grid in long windows, in random order, so that a temporary slowdown of the
machine does not fall on one corner. Model Analyzer runs in its quick and Optuna modes, in its own environment; if it
can't be installed, it is skipped with the reason. The best points of all are then measured again in turn, because the
luckiest of many measurements is not the best configuration. `--quick` takes a small grid and short windows.
"""

import argparse
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import onnx

from benchmarks import model_analyzer
from shiplift.pipelines.settings import Settings
from shiplift.runtime.families import table
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.precision import quantization
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.kinds.package import GraphPackage, Package
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.precision import Engine, Precision
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.private_server import PrivateServer
from shiplift.runtime.search.space import Point, Space, first_config, space_of
from shiplift.runtime.search.workbench import Workbench, measure_point, open_workbench
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root, ensure
from shiplift.runtime.serving.triton.repository import golden_arrays, install, reconfigure, write_package
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.model import Quantization
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.runtime.targets.discovery import detect
from shiplift.runtime.targets.machine import this_machine
from shiplift.steps.tune import tune

RESULTS = Path(__file__).parent / "results" / "search.json"
_REPEATS = 15
GRIDS = {
    "full": SearchSpace(
        time_budget_s=90,
        max_batch=(1, 2, 4, 8, 16, 32, 64),
        queue_delay_us=(0, 100, 500),
        instances=(1, 2, 3, 4),
        threads=(1, 2),
        window_ms=300,
    ),
    "quick": SearchSpace(
        time_budget_s=10,
        max_batch=(1, 8, 32),
        queue_delay_us=(0, 500),
        instances=(1, 2),
        threads=(1, 2),
        window_ms=150,
    ),
}


# --- the models -----------------------------------------------------------------------------------------------------


def networks() -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Torch modules by name, with the shape of a sample: an MLP, a CNN, a transformer encoder.

    They are large enough for the server to be the bottleneck; with smaller ones the client would be.
    """
    import torch

    nn = torch.nn
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(128, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 10))
    cnn = nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * 64, 10),
    )
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return {"mlp": (mlp, (128,)), "cnn": (cnn, (3, 32, 32)), "encoder": (encoder, (32, 128))}


def build(name: str, module: Any, shape: tuple[int, ...], site: Site, space: SearchSpace, folder: Path) -> Packages:
    """The module as packages, each precision on each engine that this machine serves it on."""
    import torch

    rng = np.random.default_rng(0)
    samples: Arrays = {"input": rng.normal(size=(64, *shape)).astype(np.float32)}
    files: dict[Precision, Path] = {"fp32": folder / "fp32" / "model.onnx"}
    files["fp32"].parent.mkdir(parents=True)
    torch.onnx.export(
        module.eval(),
        (torch.from_numpy(samples["input"][:4]),),
        files["fp32"],
        dynamo=True,
        input_names=["input"],
        output_names=["output"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    onnx.checker.check_model(onnx.load(files["fp32"]))
    files["int8"] = _int8(files["fp32"], samples, folder)
    example = {"input": samples["input"][:8]}
    files["bf16"] = files["fp32"]  # a hint to OpenVINO
    target = detect(this_machine())[0]
    packages = [
        _package(name, engine, precision, files[precision], example, site, space)
        for engine in target.engines
        if engine != "trees"  # it computes no graph
        for precision in files
        if (engine == "openvino" or precision != "bf16") and precision in target.precisions
    ]
    return Packages(target="local-cpu", packages=tuple(packages), checks=())


def _int8(model: Path, samples: Arrays, folder: Path) -> Path:
    file = folder / "int8" / "model.onnx"
    file.parent.mkdir()
    limits = Quantization(methods=("minmax",))
    scheme = quantization.scheme(model, Target(), limits)
    prepared = quantization.prepare(model, folder / "prepared.onnx")
    ranges = quantization.ranges(prepared, samples, scheme.op_types, limits, folder)
    return quantization.quantize_static(prepared, ranges["minmax"], scheme, file)


def _package(
    name: str, engine: Engine, precision: Precision, file: Path, example: Arrays, site: Site, space: SearchSpace
) -> Package:
    answers = onnx_models.answer(onnx_models.session(file), example)
    signature = Signature(inputs=_specs(example), outputs=_specs(answers))
    first = first_config(space, Serving(), "bundled", signature)
    description = ModelDescription(
        name=name, version=1, signature=signature, config=first, serving=Serving(), engine=engine, precision=precision
    )
    with tempfile.TemporaryDirectory(dir=site.home) as folder:
        tree = Path(folder) / "package"
        tree.mkdir()
        golden = golden_arrays(example, answers)
        write_package(tree, description, file.parent, "bundled", example=example, golden=golden)
        repository: Artifact = ArtifactStore(site.artifacts_uri).put_tree(tree)
    return GraphPackage(
        target="local-cpu",
        server="bundled",
        model=name,
        version=1,
        engine=engine,
        precision=precision,
        config=first,
        repository=repository,
        signature=signature,
    )


def _specs(arrays: Arrays) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=name, datatype="FP32", shape=(-1, *array.shape[1:])) for name, array in arrays.items())


# --- the contestants ------------------------------------------------------------------------------------------------


def brute_force(workbench: Workbench, space: Space) -> tuple[Point, int, float]:
    """The best of all points by the rule of the search's finals, the number of trials, and the seconds."""
    started = time.monotonic()
    search = Search(space, Goal())
    points = list(space.points())
    random.Random(0).shuffle(points)
    for point in points:
        search.tell_final(point, measure_point(workbench, search, point, workbench.space.window_ms))
    package, best = search.best()
    return Point(package, best.config), len(search.trials), time.monotonic() - started


def remeasured(workbench: Workbench, space: Space, points: dict[str, Point]) -> dict[str, list[float]]:
    """Throughputs of each point, measured in turn; equal points share their measurements."""
    distinct = {point.key: point for point in points.values()}
    rates: dict[Any, list[float]] = {key: [] for key in distinct}
    search = Search(space, Goal())
    for round_ in range(_REPEATS):
        for key, point in list(distinct.items())[:: 1 if round_ % 2 else -1]:
            trial = measure_point(workbench, search, point, workbench.space.window_ms)
            rates[key].append(trial.throughput_per_s)
    return {name: rates[point.key] for name, point in points.items()}


@dataclass(frozen=True, kw_only=True)
class Analyzed:
    """The best point of one of Model Analyzer's modes, if there is one, and what it reported."""

    point: Point | None
    outcome: model_analyzer.Analyzed


def analyzer(
    workbench: Workbench, environment: ServerEnvironment, package: Package, work: Path, mode: model_analyzer.Mode
) -> Analyzed:
    """Runs Model Analyzer in one of its modes.

    It gets the precision that brute force found best, since it does not choose one.
    """
    assert isinstance(workbench.bench, PrivateServer)
    tree = workbench.bench.tree(package)
    reconfigure(tree, package.model, package.config)
    server = workbench.bench.server
    install(tree, server.repository, source=package.model, name=package.model)
    space = workbench.space
    bounds = model_analyzer.Bounds(
        instances=max(space.instances),
        max_batch=max(space.max_batch),
        concurrency=space.max_concurrency,
        window_ms=space.window_ms,
    )
    outcome = model_analyzer.analyze(server, environment, package.model, bounds, work, mode)
    if outcome.why:
        return Analyzed(point=None, outcome=outcome)
    change = {"max_batch": outcome.max_batch, "instances": outcome.instances}
    return Analyzed(point=Point(package, package.config.model_copy(update=change)), outcome=outcome)


# --- the comparison -------------------------------------------------------------------------------------------------


def compare(name: str, module: Any, shape: tuple[int, ...], search_space: SearchSpace, home: Path) -> dict[str, Any]:
    """Compares the three on one model; returns its row of the results."""
    site = _site(home)
    target = Target(name="local-cpu")
    packages = build(name, module, shape, site, search_space, home / "models")
    started = time.monotonic()
    tuned = tune(site, target, packages, search_space, LatencyTarget(), Load(), Serving(), RecordedRequests())
    seconds = time.monotonic() - started
    by_variant = {package.variant: package for package in packages.packages}
    ours = Point(by_variant[tuned.best.variant], tuned.best.config)
    environment = ServerEnvironment(Path(site.server_environment))
    with open_workbench(site, packages, Serving(), search_space, Load(), table.requests) as workbench:
        space = space_of(packages.packages, search_space, Serving(), workbench.bench.cores)
        brute, brute_trials, brute_seconds = brute_force(workbench, space)
        quick = analyzer(workbench, environment, brute.package, home / "quick", "quick")
        optuna = analyzer(workbench, environment, brute.package, home / "optuna", "optuna")
        best = {"ours": ours, "brute": brute, "quick": quick.point, "optuna": optuna.point}
        rates = remeasured(workbench, space, {name: point for name, point in best.items() if point})
    return {
        "model": name,
        **_best("", ours, rates["ours"]),
        "trials": tuned.configurations,
        "seconds": round(seconds, 1),
        **_best("brute_", brute, rates["brute"]),
        "brute_trials": brute_trials,
        "brute_seconds": round(brute_seconds, 1),
        **_analyzed("analyzer_", quick, rates.get("quick")),
        **_analyzed("analyzer_optuna_", optuna, rates.get("optuna")),
    }


def _best(prefix: str, point: Point, rates: list[float]) -> dict[str, Any]:
    """The median throughput, the interquartile range in percent of it, and the configuration."""
    low, _, high = quantiles(rates, n=4)
    config = point.config.model_dump() | {"engine": point.package.engine, "precision": point.package.precision}
    middle = median(rates)
    return {
        f"{prefix}best": round(middle, 1),
        f"{prefix}spread_percent": round((high - low) / middle * 100, 1),
        f"{prefix}config": config,
    }


def _analyzed(prefix: str, analyzed: Analyzed, rates: list[float] | None) -> dict[str, Any]:
    best = _best(prefix, analyzed.point, rates) if analyzed.point and rates else {f"{prefix}best": None}
    outcome = analyzed.outcome
    seconds = round(outcome.seconds, 1) or None
    reported = round(outcome.reported, 1) or None
    return best | {f"{prefix}seconds": seconds, f"{prefix}said": reported, f"{prefix}skipped": outcome.why}


def _site(home: Path) -> Site:
    root = Settings().server_environment or default_root()
    environment: ServerEnvironment = ensure(root)
    return Site(
        home=str(home),
        registry_uri="",
        artifacts_uri=(home / "artifacts").as_uri(),
        server_environment=str(environment.root),
        place=Machine(http="", grpc="", metrics=""),
    )


def main() -> None:
    """Measures, prints each model's row, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small grid and short windows (a few minutes)")
    parser.add_argument("--only", default="", help="one model: mlp, cnn or encoder")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    space = GRIDS["quick" if arguments.quick else "full"]
    rows = []
    for name, (module, shape) in networks().items():
        if arguments.only in ("", name):
            with tempfile.TemporaryDirectory(prefix="shiplift-search-") as folder:
                rows.append(compare(name, module, shape, space, Path(folder)))
            print(json.dumps(rows[-1]), flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"quick": arguments.quick, "models": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
