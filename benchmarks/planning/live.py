"""Pipelines of real models: profiled, planned, served by the bundled Triton as planned, and measured.

Each uses two of three models, of 3 to 17 ms on one core here, with one thread and one instance each: two cores
can serve that. Static graphs run as ensembles, the others in BLS. Models are timed when one execution follows the
other, and after pauses, since an idle instance takes longer. The whole is timed in the same ways: what is left of its
time is what passes requests on, which takes longer after a pause as well.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.machine import processor
from benchmarks.planning.replaying import computed_after, in_turn, replayed
from shiplift.pipelines.settings import Settings as Configured
from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.planning.arrivals import Arrivals, recorded, renewals
from shiplift.runtime.planning.measured import overhead_ms, spread_of
from shiplift.runtime.planning.options import Grid, Problem
from shiplift.runtime.planning.plan import plan
from shiplift.runtime.planning.profiles import MemberConfiguration, Profiles, StepProfile
from shiplift.runtime.planning.scenario import Graph, graph_of
from shiplift.runtime.records.kinds.package import GraphPackage, Package
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.bundles.repository import write_bundle
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root, ensure
from shiplift.runtime.serving.triton.repository import install, write_package
from shiplift.runtime.spec.pipeline import Written, parse
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_WIDTH, _TOKENS, _HIDDEN = 64, 64, 512
LAYERS = {"large": 80, "middle": 40, "small": 16}  # of the models
_SIZES = (1, 2, 4)
_RATE_PER_S = 20.0
_P99_MS = 250.0
_REQUESTS, _WARM_UP = 2400, 50
_WAITING = Demand(concurrency=1)
_PAUSES_MS = (0, 4, 12, 40, 150)  # before requests; each several times, in turn, since speeds drift
_PAUSED, _ROUNDS = 40, 2
_RARE = "think"  # the step that runs for the other requests
_SURE_SHARE = 0.7  # of the requests have a first number above 0.5, which the models give back as `c`
_X = f"{{datatype: FP32, shape: [1, {_WIDTH}]}}"
_HEAD = f"inputs: {{x: {_X}}}\n"
PIPELINES = {
    "chain": f"""
name: chain
{_HEAD}outputs: {{y: {_X}}}
members: {{small: {{model: small}}, large: {{model: large}}}}
steps:
  clean: {{member: small, inputs: {{x: x}}, outputs: {{y: cleaned}}}}
  score: {{member: large, inputs: {{x: cleaned}}, outputs: {{y: y}}}}
""",
    "twice": f"""
name: twice
{_HEAD}outputs: {{y: {_X}}}
members: {{small: {{model: small}}, middle: {{model: middle}}}}
steps:
  before: {{member: small, inputs: {{x: x}}, outputs: {{y: first}}}}
  between: {{member: middle, inputs: {{x: first}}, outputs: {{y: second}}}}
  after: {{member: small, inputs: {{x: second}}, outputs: {{y: y}}}}
""",
    "parallel": f"""
name: parallel
{_HEAD}outputs: {{left: {_X}, right: {_X}}}
members: {{large: {{model: large}}, middle: {{model: middle}}}}
steps:
  see: {{member: large, inputs: {{x: x}}, outputs: {{y: left}}}}
  read: {{member: middle, inputs: {{x: x}}, outputs: {{y: right}}}}
""",
    "cascade": f"""
name: cascade
{_HEAD}outputs: {{y: {_X}}}
members: {{small: {{model: small}}, large: {{model: large}}}}
steps:
  guess: {{member: small, inputs: {{x: x}}, outputs: {{y: quick, c: sure}}}}
  think: {{member: large, inputs: {{x: x}}, outputs: {{y: y}}, when: {{tensor: sure, below: 0.5}},
          otherwise: {{y: quick}}}}
""",
    "join": f"""
name: join
{_HEAD}outputs: {{y: {_X}, seen: {_X}}}
members: {{middle: {{model: middle}}, small: {{model: small}}}}
steps:
  see: {{member: middle, inputs: {{x: x}}, outputs: {{y: seen}}}}
  skim: {{member: small, inputs: {{x: x}}, outputs: {{y: skimmed}}}}
  rank: {{member: small, inputs: {{x: skimmed}}, outputs: {{y: y}}}}
""",
}


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
        return GraphPackage(
            target="local-cpu",
            server="bundled",
            model=name,
            version=1,
            precision="fp32",
            config=config,
            repository=repository,
            signature=described.signature,
        )

    def measure(self, server: Any, model: str, demand: Demand, *, batch: int) -> LoadPoint:
        """One measurement of a model by itself, in three windows of requests of so many rows."""
        generator = PerfAnalyzer(self.environment)
        tensors = (TensorSpec(name="x", datatype="FP32", shape=(-1, _WIDTH)),)
        requests = generator.write_requests(
            self.folder / "requests.json", Signature(inputs=tensors, outputs=tensors), [{"x": row} for row in _rows()]
        )
        target = LoadTarget(model=model, address=server.grpc, requests=requests, batch=batch)
        window = Window(window_ms=self.window_ms, attempts=1)
        return generator.measure(target, demand, window, self.folder).point


def _rows() -> Any:
    """Requests: `c` of a model's answer to `_SURE_SHARE` of them is above 0.5."""
    rows = np.random.default_rng(0).uniform(size=(1000, _WIDTH)).astype(np.float32)
    rows[:, 0] = np.where(np.arange(len(rows)) < _SURE_SHARE * len(rows), 0.9, 0.1)
    np.random.default_rng(1).shuffle(rows[:, 0])
    return rows


def model_of(layers: int) -> Any:
    """A model whose work is products of 64 x 512 with one matrix of 1 MB, for each row of `x`; `c` is its first number.

    Its requests are small, and its weights fit a core's own cache: what it takes is arithmetic.
    """
    rng = np.random.default_rng(layers)
    constants = {
        "up": rng.normal(size=(1, _HIDDEN)),
        "w": rng.normal(size=(_HIDDEN, _HIDDEN)) * (2 / _HIDDEN) ** 0.5,
    }
    weights = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items()]
    weights += [
        numpy_helper.from_array(np.array(values, np.int64), name)
        for name, values in {"last": [2], "from": [0], "to": [1], "columns": [1]}.items()
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "last"], ["column"]),
        helper.make_node("MatMul", ["column", "up"], ["h0"]),
        helper.make_node("Slice", ["x", "from", "to", "columns"], ["c"]),
    ]
    for at in range(layers):
        nodes.append(helper.make_node("MatMul", [f"h{at}", "w"], [f"m{at}"]))
        nodes.append(helper.make_node("Relu", [f"m{at}"], [f"h{at + 1}"]))
    nodes.append(helper.make_node("ReduceMean", [f"h{layers}", "last"], ["y"], keepdims=0))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        for name, width in {"x": _WIDTH, "y": _TOKENS, "c": 1}.items()
    ]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A model by itself: its configuration; and for a client that waits, an execution and what else an answer takes."""

    configuration: MemberConfiguration
    alone_ms: float
    besides_ms: float

    def after_ms(self, pause_ms: float) -> float:
        """An execution after a pause."""
        return self.alone_ms + self.configuration.cold_ms.get(pause_ms, 0.0)


def measure_live(*, quick: bool, tell: Callable[[str], None]) -> dict[str, Any]:
    """Times each pipeline's models, plans it, serves it as planned and measures it; then times the models once more.

    A shared machine's speed changes within minutes: the models are timed right before what is predicted from them, and
    `drift_percent` is by how much they took longer afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="shiplift-planner-") as folder:
        environment = ensure(Configured().server_environment or default_root())
        lab = Lab(folder=Path(folder), environment=environment, window_ms=1000 if quick else 3000)
        arrivals = _arrivals(1000 if quick else _REQUESTS)
        measured = {}
        for name, text in PIPELINES.items():
            models = {member: model_of(LAYERS[member]) for member in parse(text).spec.members}
            tell(f"timing the models of {name}")
            timed = {member: _timed(lab, member, model) for member, model in models.items()}
            tell(f"planning and measuring {name}")
            figures = _measured(lab, text, models, timed, arrivals)
            again = {member: _waited_ms(lab, member, model) for member, model in models.items()}
            measured[name] = figures | {"drift_percent": round(_drift(timed, again), 1)}
    return {
        "processor": processor(),
        "rate_per_s": round(arrivals.rate_per_s, 2),
        "requests": len(arrivals.recorded_s),
        "pipelines": measured,
    }


def _arrivals(count: int) -> Arrivals:
    """Poisson arrivals: the same for all pipelines, and for plans and servers."""
    times = renewals(1.0, count, np.random.default_rng(0)) / _RATE_PER_S
    return recorded("\n".join(f"{time:.6f}" for time in times))


def _measured(
    lab: Lab, text: str, models: dict[str, Any], timed: dict[str, Timed], arrivals: Arrivals
) -> dict[str, Any]:
    """One pipeline: predicted and measured."""
    written, config = parse(text), _config()
    packages = {name: lab.package(name, model, config) for name, model in models.items()}
    checked = _checked(written, packages)
    graph = graph_of(written.spec, bls=checked.way == "bls")
    rows = [row[None] for row in _rows()]
    with _served(lab, written, checked) as address:
        in_turn(address, written.spec.name, rows, _WARM_UP)
        sure = [row for row in rows if row[0, 0] > 0.5]
        whole = _after_pauses(lambda pause_s: in_turn(address, written.spec.name, sure, _PAUSED, pause_s))
    problem = Problem(
        spec=written.spec,
        graph=graph,
        profiles=_profiles(graph, timed, whole),
        arrivals=arrivals,
        grid=Grid(max_batch=_SIZES),
        p99_ms=_P99_MS,
    )
    made = plan(problem)
    packages = {member.name: lab.package(member.name, models[member.name], member.config) for member in made.members}
    planned = parse(text + (f"instances: {made.instances}\n" if graph.bls else ""))
    with _served(lab, planned, _checked(planned, packages)) as address:
        in_turn(address, planned.spec.name, rows, _WARM_UP)
        latencies = replayed(address, planned.spec.name, rows, np.asarray(arrivals.recorded_s))
    p50_ms, p99_ms = (round(float(np.percentile(latencies, percent)), 2) for percent in (50, 99))
    return {
        "way": checked.way,
        "predicted_p50_ms": made.p50_ms,
        "predicted_p99_ms": made.p99_ms,
        "measured_p50_ms": p50_ms,
        "measured_p99_ms": p99_ms,
        "p99_off_percent": round(_off(p99_ms, made.p99_ms), 1),
        "profiles": problem.profiles.model_dump(mode="json"),
        "plan": made.model_dump(mode="json"),
    }


def _off(measured: float, predicted: float) -> float:
    return 100 * abs(measured / predicted - 1)


def _profiles(graph: Graph, timed: dict[str, Timed], whole_ms: dict[int, float]) -> Profiles:
    """What is known of a pipeline: its members, and of what it takes besides, how much is each step's.

    `whole_ms` is what a typical answer takes, by the pause before it, to a client that waits for each, and no step is
    the rare one. It meets no queue, and takes the longest path of executions. What is left is the pipeline's own.
    """
    path, steps = _longest_path(graph, timed, 0)
    request_ms = median(timed[member].besides_ms for member in graph.used)
    cold_ms = {
        pause: max(0.0, whole - whole_ms[0] - (_longest_path(graph, timed, pause)[0] - path))
        for pause, whole in whole_ms.items()
        if pause
    }
    return Profiles(
        members={name: (timed[name].configuration,) for name in graph.used},
        steps={_RARE: StepProfile(probability=1 - _SURE_SHARE)} if _RARE in graph.steps else {},
        request_ms=request_ms,
        step_ms=max(0.0, whole_ms[0] - request_ms - path) / steps,
        cold_ms=cold_ms,
    )


def _longest_path(graph: Graph, timed: dict[str, Timed], pause_ms: int) -> tuple[float, int]:
    """What the executions of a typical answer take one after the other, each after a pause, and how many they are."""
    paths: list[tuple[float, int]] = []
    for at, member in enumerate(graph.members):
        runs = graph.steps[at] != _RARE
        before, length = max((paths[step] for step in graph.needs[at]), default=(0.0, 0))
        paths.append((before + (timed[member].after_ms(pause_ms) if runs else 0.0), length + runs))
    return max(paths)


def _timed(lab: Lab, name: str, model: Any) -> Timed:
    """Times a model by itself, with one instance of one thread.

    A client that waits for each answer shows how batches grow, and one that pauses before each request what a pause
    costs. A load generator would not: at 20 requests/s, perf_analyzer's own threads take much of two cores.
    """
    package = lab.package(name, model, _config())
    with _alone(lab, package) as server:
        waiting = [lab.measure(server, package.model, _WAITING, batch=size) for size in _SIZES]
        rows = [row[None] for row in _rows()]
        paused = _after_pauses(lambda pause_s: computed_after(server.grpc, package.model, rows, pause_s, _PAUSED))
    configuration = MemberConfiguration(
        max_batch=max(_SIZES),
        spread=spread_of([waiting[0]]),
        most_instances=1,
        cold_ms={pause: max(0.0, paused[pause] - paused[0]) for pause in _PAUSES_MS if pause},
        batch_ms={size: point.compute_ms for size, point in zip(_SIZES, waiting, strict=True)},
    )
    return Timed(configuration=configuration, alone_ms=waiting[0].compute_ms, besides_ms=overhead_ms(waiting[0]))


def _after_pauses(measure_ms: Callable[[float], Any]) -> dict[int, float]:
    """What is measured after each pause: the median of what each round gives, and the mean of the rounds."""
    rounds = [{pause: float(np.median(measure_ms(pause / 1000))) for pause in _PAUSES_MS} for _ in range(_ROUNDS)]
    return {pause: sum(each[pause] for each in rounds) / _ROUNDS for pause in _PAUSES_MS}


def _waited_ms(lab: Lab, name: str, model: Any) -> float:
    """What an execution of a model takes for a client that waits for each answer."""
    with _alone(lab, lab.package(name, model, _config())) as server:
        return lab.measure(server, name, _WAITING, batch=1).compute_ms


def _drift(before: dict[str, Timed], after: dict[str, float]) -> float:
    """By how many percent models took longer afterwards: the median over them."""
    return median(100 * (after[name] / timed.alone_ms - 1) for name, timed in before.items())


def _config() -> ServingConfig:
    return ServingConfig(max_batch=max(_SIZES), queue_delay_us=0, instances=1, threads=1)


@contextmanager
def _alone(lab: Lab, package: Package) -> Iterator[Any]:
    """A server with one model."""
    with tempfile.TemporaryDirectory(dir=lab.folder) as scratch:
        tree = lab.store.fetch(package.repository, Path(scratch) / "tree")
        with (
            private_server(
                lab.environment, Path(scratch) / "models", Features(cache_mb=0), log=Path(scratch) / "log"
            ) as server,
            TritonClient(server.grpc, repository_key=server.key) as client,
        ):
            install(tree, server.repository, source=package.model, name=package.model)
            client.load(package.model)
            yield server


def _checked(written: Written, packages: dict[str, Package]) -> CheckedPipeline:
    checked = check(written, packages, {})
    if checked.problems:
        raise ValueError(f"{written.spec.name}: {checked.problems[0]}")
    return checked


@contextmanager
def _served(lab: Lab, written: Written, checked: CheckedPipeline) -> Iterator[str]:
    """Serves a pipeline; gives the address of the server's gRPC."""
    with tempfile.TemporaryDirectory(dir=lab.folder) as scratch:
        bundle = Path(scratch) / "bundle"
        models = write_bundle(bundle, written.spec, checked, {}, lab.store)
        with (
            private_server(lab.environment, bundle, Features(cache_mb=0), log=Path(scratch) / "log") as server,
            TritonClient(server.grpc, repository_key=server.key) as client,
        ):
            for name in models:
                client.load(name)
            yield server.grpc
