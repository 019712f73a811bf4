"""A pipeline of real models: profiled, planned, served by the bundled Triton as planned, and measured.

Three perceptrons form a chain with a shortcut, which runs as an ensemble. Each member's executions are timed batch by
batch on a server of its own, then the plan's settings are served together, and perf_analyzer sends Poisson arrivals.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.machine import processor
from shiplift.pipelines.settings import Settings as Configured
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.planning.arrivals import Arrivals
from shiplift.runtime.planning.measured import overhead_ms, spread_of
from shiplift.runtime.planning.options import Grid, Problem
from shiplift.runtime.planning.plan import Plan, plan
from shiplift.runtime.planning.profiles import Configuration, Profiles
from shiplift.runtime.planning.scenario import graph_of
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.serving import Package, ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root, ensure
from shiplift.runtime.serving.triton.repository import install, write_package
from shiplift.runtime.serving.triton.server import Features, private_server
from shiplift.runtime.spec.pipeline import Written, parse
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_WIDTH = 1024
_LAYERS = {"look": 4, "read": 2, "join": 1}  # of the members: 4 MB of weights each
_SIZES = (1, 2, 4, 8)
_RATE_PER_S = 60.0
_P99_MS = 60.0
_X = f"{{datatype: FP32, shape: [1, {_WIDTH}]}}"
PIPELINE = f"""
name: live
inputs: {{x: {_X}}}
outputs: {{y: {_X}}}
members: {{look: {{model: look}}, read: {{model: read}}, join: {{model: join}}}}
steps:
  left: {{member: look, inputs: {{x: x}}, outputs: {{y: l}}}}
  right: {{member: read, inputs: {{x: l}}, outputs: {{y: r}}}}
  both: {{member: join, inputs: {{a: l, b: r}}, outputs: {{y: y}}}}
"""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """Where models are kept and measured."""

    folder: Path
    environment: ServerEnvironment
    window_ms: int

    @property
    def store(self) -> ArtifactStore:
        """Where packages are stored."""
        return ArtifactStore((self.folder / "artifacts").as_uri())

    def package(self, name: str, model: Any, config: ServingConfig) -> Package:
        """Stores a model as a release stores it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            work = Path(scratch)
            (work / "onnx").mkdir()
            (work / "package").mkdir()
            onnx.save(model, work / "onnx" / "model.onnx")
            described = ModelDescription(
                name=name, version=1, signature=signature_of(model), config=config, serving=Serving(warmup=False)
            )
            tree = write_package(work / "package", described, work / "onnx", "bundled", example={}, golden={})
            repository = self.store.put_tree(tree)
        return Package(
            target="local-cpu", server="bundled", model=name, version=1, precision="fp32", config=config,
            repository=repository, signature=described.signature,
        )  # fmt: skip

    def measure(self, server: Any, model: str, inputs: tuple[str, ...], demand: Demand, *, batch: int = 0) -> LoadPoint:
        """One measurement, in three windows; without a `batch`, of a model that takes whole tensors, of one row."""
        generator = PerfAnalyzer(self.environment)
        tensors = tuple(TensorSpec(name=name, datatype="FP32", shape=(-1, _WIDTH)) for name in inputs)
        rows = np.random.default_rng(0).normal(size=(8, _WIDTH)).astype(np.float32)
        samples = [dict.fromkeys(inputs, row if batch else row[None]) for row in rows]
        requests = generator.write_requests(
            self.folder / "requests.json", Signature(inputs=tensors, outputs=tensors), samples
        )
        target = LoadTarget(model=model, address=server.grpc, requests=requests, batch=batch or 1)
        window = Window(window_ms=self.window_ms, attempts=1)
        return generator.measure(target, demand, window, self.folder).point


def perceptron(layers: int, inputs: tuple[str, ...]) -> Any:
    """A model `y` = relu(... relu((sum of the inputs) W) ...), of rows of `_WIDTH` numbers."""
    rng = np.random.default_rng(layers)
    weights = [
        numpy_helper.from_array((rng.normal(size=(_WIDTH, _WIDTH)) / 32).astype(np.float32), f"w{at}")
        for at in range(layers)
    ]
    nodes, last = [], inputs[0]
    for at, name in enumerate(inputs[1:]):
        nodes.append(helper.make_node("Add", [last, name], [f"sum{at}"]))
        last = f"sum{at}"
    for at in range(layers):
        output = "y" if at == layers - 1 else f"h{at}"
        nodes.append(helper.make_node("MatMul", [last, f"w{at}"], [f"m{at}"]))
        nodes.append(helper.make_node("Relu", [f"m{at}"], [output]))
        last = output
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", _WIDTH]) for name in (*inputs, "y")]
    graph = helper.make_graph(nodes, "perceptron", ends[:-1], ends[-1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def measure_live(*, quick: bool) -> dict[str, Any]:
    """Profiles the members, plans the pipeline, serves the plan and measures it."""
    with tempfile.TemporaryDirectory(prefix="shiplift-planner-") as folder:
        environment = ensure(Configured().server_environment or default_root())
        lab = Lab(folder=Path(folder), environment=environment, window_ms=2000 if quick else 20_000)
        models = {name: perceptron(layers, _inputs(name)) for name, layers in _LAYERS.items()}
        profiles = _profiles(lab, models)
        written = parse(PIPELINE)
        problem = Problem(
            spec=written.spec, graph=graph_of(written.spec, bls=False), profiles=profiles, grid=Grid(max_batch=_SIZES),
            arrivals=Arrivals(rate_per_s=_RATE_PER_S), p99_ms=_P99_MS,
        )  # fmt: skip
        made = plan(problem)
        configs = {member.name: member.config for member in made.members}
        packages = {name: lab.package(name, model, configs[name]) for name, model in models.items()}
        points = _served(lab, written, packages)
    return _result(profiles, made, points)


def _result(profiles: Profiles, made: Plan, points: list[LoadPoint]) -> dict[str, Any]:
    measured = median(point.p99_ms for point in points)
    return {
        "processor": processor(), "predicted_p50_ms": made.p50_ms, "predicted_p99_ms": made.p99_ms,
        "measured_p50_ms": median(point.p50_ms for point in points), "measured_p99_ms": measured,
        "p99_off_percent": round(100 * abs(measured / made.p99_ms - 1), 1), "rate_per_s": _RATE_PER_S,
        "runs": [point.model_dump(mode="json") for point in points],
        "profiles": profiles.model_dump(mode="json"), "plan": made.model_dump(mode="json"),
    }  # fmt: skip


def _inputs(member: str) -> tuple[str, ...]:
    return ("a", "b") if member == "join" else ("x",)


def _profiles(lab: Lab, models: dict[str, Any]) -> Profiles:
    """Times each member alone, with one instance of one thread, and what an answer and a step take besides.

    An ensemble of them, asked by a client that waits for each answer, shows what the hand-over between steps takes:
    what is left of its time after its members'.
    """
    config = ServingConfig(max_batch=max(_SIZES), queue_delay_us=0, instances=1, threads=1)
    members, alone, besides = {}, {}, []
    for name, model in models.items():
        package = lab.package(name, model, config)
        points = _alone(lab, package)
        alone[name] = points[1].compute_ms
        besides.append(overhead_ms(points[1]))
        members[name] = (
            Configuration(
                max_batch=max(_SIZES), batch_ms={size: point.compute_ms for size, point in points.items()},
                spread=spread_of([points[1]]), most_instances=1,
            ),
        )  # fmt: skip
    packages = {name: lab.package(name, model, config) for name, model in models.items()}
    whole = _served(lab, parse(PIPELINE), packages, Demand(concurrency=1), runs=1)[0]
    step_ms = max(0.0, whole.p50_ms - median(besides) - sum(alone.values())) / len(alone)
    return Profiles(members=members, request_ms=median(besides), step_ms=step_ms)


def _alone(lab: Lab, package: Package) -> dict[int, LoadPoint]:
    """A member's executions by their number of rows: a client waits for each answer."""
    with tempfile.TemporaryDirectory(dir=lab.folder) as scratch:
        tree = lab.store.fetch(package.repository, Path(scratch) / "tree")
        with (
            private_server(
                lab.environment, Path(scratch) / "models", Features(cache_mb=0), log=Path(scratch) / "log"
            ) as server,
            TritonClient(server.grpc) as client,
        ):
            install(tree, server.repository, source=package.model, name=package.model)
            client.load(package.model)
            inputs = _inputs(package.model)
            return {
                size: lab.measure(server, package.model, inputs, Demand(concurrency=1), batch=size) for size in _SIZES
            }


def _served(
    lab: Lab, written: Written, packages: dict[str, Package], demand: Demand | None = None, *, runs: int = 3
) -> list[LoadPoint]:
    """Serves the pipeline as an ensemble, and measures it; by default under the plan's arrivals."""
    checked: CheckedPipeline = check(written, packages, {})
    if checked.problems or checked.way != "ensemble":
        raise ValueError(f"the pipeline is no sound ensemble: {checked.problems or checked.reasons}")
    with tempfile.TemporaryDirectory(dir=lab.folder) as scratch:
        bundle = Path(scratch) / "bundle"
        models = write_bundle(bundle, written.spec, checked, {}, lab.store)
        with (
            private_server(lab.environment, bundle, Features(cache_mb=0), log=Path(scratch) / "log") as server,
            TritonClient(server.grpc) as client,
        ):
            for name in models:
                client.load(name)
            asked = demand or Demand(rate_per_s=_RATE_PER_S)
            return [lab.measure(server, "live", ("x",), asked) for _ in range(runs)]
