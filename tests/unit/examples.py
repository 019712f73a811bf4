"""Records and models that several tests begin with. Every function makes a new one; keywords change what matters."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.admission.inspection import InspectedVersion
from shiplift.runtime.records.artifact import Artifact
from shiplift.runtime.records.calibration import Calibration
from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerProcess
from shiplift.runtime.records.kinds.contract import DeclaredGraph
from shiplift.runtime.records.kinds.exported import Exported
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Comparison, LoadPoint, LoadReport, Trial
from shiplift.runtime.records.model import Datasets, Isolation, ModelVersion, ParityCase, Scan
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Machine, Site
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.verdict import Check, Outcome
from shiplift.runtime.spec.admitted import Admitted
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace, Slo
from shiplift.runtime.spec.model import Conversion, Data, Quality, Quantization
from shiplift.runtime.spec.serving_settings import Rollout, Serving
from shiplift.runtime.spec.target import Wanted
from shiplift.runtime.store.registry.terms import VersionInfo

Golden = Callable[[str, str], None]


def tensor(name: str, *shape: int, datatype: Any = "FP32") -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape)


def artifact(digit: str = "0", **changes: Any) -> Artifact:
    return Artifact(**{"sha256": digit * 64, "size_bytes": 1, **changes})


def signature() -> Signature:
    return Signature(inputs=(tensor("input", -1, 4),), outputs=(tensor("output", -1, 3),))


def config(max_batch: int = 8, queue_delay_us: int = 0, instances: int = 1, threads: int = 1) -> ServingConfig:
    return ServingConfig(max_batch=max_batch, queue_delay_us=queue_delay_us, instances=instances, threads=threads)


_KIND_BY_FIELD = {"environment": "python", "companions": "pipeline", "members": "pipeline", "tensors": "text"}


def package(**changes: Any) -> Package:
    """A package, of a graph unless `kind` or a field that another kind has says otherwise."""
    defaults: dict[str, Any] = {
        "kind": next((kind for field, kind in _KIND_BY_FIELD.items() if field in changes), "graph"),
        "target": "local-cpu",
        "server": "bundled",
        "model": "digits",
        "version": 2,
        "precision": "fp32",
        "config": config(),
        "repository": artifact("a", kind="tree"),
        "signature": signature(),
        "score": 0.95,
        "samples": 500,
        "metric": "accuracy",
        "validation": "v" * 64,
    }
    return Package.model_validate(defaults | changes)


def trial(**changes: Any) -> Trial:
    defaults: dict[str, Any] = {
        "precision": "fp32",
        "config": config(),
        "concurrency": 16,
        "throughput_per_s": 1000.0,
        "p50_ms": 2.0,
        "p99_ms": 5.0,
        "memory_mb": 100.0,
        "within_slo": True,
    }
    return Trial(**defaults | changes)


def calibration(**changes: Any) -> Calibration:
    defaults: dict[str, Any] = {
        "processor": "EPYC",
        "architecture": "x86_64",
        "features": ("cpu-vnni",),
        "cores": 2,
        "cpu_share": 2,
        "versions": {"onnxruntime": "1.31"},
        "rates": (),
    }
    return Calibration.model_validate(defaults | changes)


def point(concurrency: int = 4, throughput_per_s: float = 1000, p99_ms: float = 10, **changes: Any) -> LoadPoint:
    defaults: dict[str, Any] = {
        "concurrency": concurrency,
        "throughput_per_s": throughput_per_s,
        "p50_ms": p99_ms / 4,
        "p90_ms": p99_ms / 2,
        "p95_ms": p99_ms / 1.5,
        "p99_ms": p99_ms,
        "queue_ms": 0.1,
        "compute_ms": 0.5,
    }
    return LoadPoint(**defaults | changes)


def load_report(*points: LoadPoint, **changes: Any) -> LoadReport:
    defaults: dict[str, Any] = {"failures": 0, "memory_mb": 200.0, "protocol": "grpc"}
    return LoadReport(points=points or (point(),), **defaults | changes)


def comparison(
    p99_ratio: float = 1.0, throughput_ratio: float = 1.0, spread: float = 0.02, rounds: int = 4
) -> Comparison:
    """Rounds that differ by `spread` around the given ratios."""

    def around(ratio: float) -> tuple[float, ...]:
        return tuple(ratio * (1 + spread * (1 if at % 2 else -1)) for at in range(rounds))

    return Comparison(
        version=1, concurrency=4, p99_ratios=around(p99_ratio), throughput_ratios=around(throughput_ratio)
    )


def champion(**changes: Any) -> Champion:
    return Champion(version=1, package=package(version=1, **changes))


def model_version(**changes: Any) -> ModelVersion:
    """Version 5 of `digits`, of an earlier Shiplift that recorded neither its registration nor its files."""
    fields: dict[str, Any] = {
        "name": "digits",
        "version": 5,
        "digest": "",
        "flavor": "onnx",
        "files": artifact(kind="tree"),
    }
    return ModelVersion(**fields | changes)


def found(name: str, version: int, registered_at: float = 0.0) -> VersionInfo:
    """A version as a registry finds it."""
    return VersionInfo(name=name, version=version, source="", run_id="", created_at=registered_at)


def deployment(**changes: Any) -> Deployment:
    return Deployment(
        package=package(**changes),
        endpoint=Endpoint(http="http://127.0.0.1:1/v2/models/digits", grpc="127.0.0.1:2"),
        workload=ServerProcess(process=Process(pid=1, started_at=0), repository="models"),
    )


def isolation() -> Isolation:
    return Isolation(network="namespace", files="landlock", memory_limit_mb=512, timeout_s=30)


def inspected(flavor: str = "onnx", **changes: Any) -> InspectedVersion:
    """What the sandbox read of a version."""
    defaults: dict[str, Any] = {
        "scan": Scan(scanner="modelaudit 0", files=1),
        "flavor": flavor,
        "signature": signature(),
        "tabular": False,
        "states": {},
        "requirements": (),
        "task": "",
        "code": (),
        "notes": (),
        "example": artifact("e"),
    }
    return InspectedVersion(**defaults | changes)


def exported(*parity: ParityCase, kind: str = "graph", **changes: Any) -> Exported:
    """An exported model of a kind; what its kind does not have is left out."""
    defaults: dict[str, Any] = {
        "kind": kind,
        "model": artifact("b", kind="tree"),
        "signature": signature(),
        "reference": artifact("c"),
        "parity": parity or (case(),),
        "isolation": isolation(),
        **({"opset": 20} if kind in ("graph", "text", "image") else {}),
    }
    return Exported.model_validate(defaults | changes)


def case(max_abs: float = 1e-6, max_rel: float = 1e-6, inputs: str = "example", batch: int = 2) -> ParityCase:
    return ParityCase(inputs=inputs, batch=batch, max_abs=max_abs, max_rel=max_rel)


def check(verdict: Outcome = Outcome.PASS, name: str = "p99", reason: str = "", **changes: Any) -> Check:
    defaults: dict[str, Any] = {"measured": 10.0, "limit": 20.0, "unit": "ms"}
    return Check(name=name, verdict=verdict, reason=reason, **defaults | changes)


def release_report(**changes: Any) -> ReleaseReport:
    """A promoted release."""
    fields: dict[str, Any] = {
        "model": "digits",
        "version": 3,
        "verdict": Outcome.PASS,
        "alias": "champion",
        "endpoint": Endpoint(http="http://127.0.0.1:8000/v2/models/digits", grpc="127.0.0.1:8001"),
        "stages": (StageRun(name="admit", seconds=1.5), StageRun(name="tune", target="local-cpu", cached=True)),
        "checks": (check(), check(Outcome.FAIL, "memory", "too much")),
        "release": "digits-3-0123456789",
        "reason": "every check passed",
        "exit_code": 0,
        "seconds": 12.3,
        "since_request_seconds": 14.0,
        "overhead_seconds": 2.0,
        "trigger": "webhook",
    }
    return ReleaseReport(**fields | changes)


def admitted(name: str = "digits", **slo: Any) -> Admitted:
    """A version with the default spec and these limits."""
    return Admitted(
        model_version=ModelVersion(
            name=name, version=3, digest="d" * 64, flavor="pytorch", files=artifact(kind="tree"), run_id="run-1"
        ),
        contract=DeclaredGraph(signature=signature(), example=artifact()),
        datasets=Datasets(validation=artifact("7"), validation_name="shiplift/validation.npz"),
        scan=Scan(scanner="modelaudit 0", files=7),
        wanted=Wanted(),
        conversion=Conversion(),
        data=Data(),
        quantization=Quantization(),
        quality=Quality(),
        search_space=SearchSpace(),
        load=Load(),
        slo=Slo(**slo),
        latency_target=LatencyTarget(),
        serving=Serving(),
        rollout=Rollout(),
    )


def site(home: Path, **changes: Any) -> Site:
    """A site whose folders are below `home` and whose addresses nobody listens on."""
    defaults: dict[str, Any] = {
        "home": str(home),
        "registry_uri": "http://127.0.0.1:9",
        "artifacts_uri": (home / "artifacts").as_uri(),
        "server_environment": str(home / "server"),
        "place": Machine(http="127.0.0.1:1", grpc="127.0.0.1:2", metrics="http://127.0.0.1:3/metrics"),
    }
    return Site(**defaults | changes)


def perceptron(path: Path, *, inputs: int = 4, hidden: int = 32, classes: int = 3, seed: int = 0) -> Path:
    """Writes a small perceptron: `input` FP32 (batch, inputs), `output` FP32 (batch, classes)."""
    rng = np.random.default_rng(seed)
    weights = {
        "w1": rng.normal(size=(inputs, hidden)).astype(np.float32),
        "w2": rng.normal(size=(hidden, classes)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["input", "w1"], ["h1"]),
            helper.make_node("Relu", ["h1"], ["h2"]),
            helper.make_node("MatMul", ["h2", "w2"], ["output"]),
        ],
        "perceptron",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", inputs])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", classes])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return save(graph, path)


def endless(path: Path, *, answered: Sequence[int] = (1, 2, 3, 7), stuck: Sequence[int] = ()) -> Path:
    """Writes a model that returns its `input` (batch, 4) for the batches `answered`, and else loops 2^62 times.

    With `stuck` it loops on batches of these sizes alone.
    """
    state = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("before", "after")]
    counter, going, more = (
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("i", TensorProto.INT64), ("going", TensorProto.BOOL), ("more", TensorProto.BOOL))
    )
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["more"]), helper.make_node("Neg", ["before"], ["after"])],
        "body",
        [counter, going, state[0]],
        [more, state[1]],
    )
    nodes = [
        helper.make_node("Shape", ["input"], ["sizes"], start=0, end=1),
        helper.make_node("Sub", ["sizes", "answered"], ["distances"]),
        helper.make_node("ReduceProd", ["distances"], ["product"], keepdims=0),
        helper.make_node("Sign", ["product"], ["sign"]),
        helper.make_node("Abs", ["sign"], ["other"]),
        helper.make_node("Sub", ["other", "listed"], ["differs"]),
        helper.make_node("Abs", ["differs"], ["chosen"]),
        helper.make_node("Mul", ["chosen", "often"], ["times"]),
        helper.make_node("Loop", ["times", "", "input"], ["output"], body=body),
    ]
    constants = {
        "answered": np.array(stuck or answered, np.int64),
        "listed": np.array(int(bool(stuck)), np.int64),
        "often": np.array(2**62, np.int64),
    }
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("input", "output"))
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return save(helper.make_graph(nodes, "endless", [x], [y], initializers), path)


def save(graph: Any, path: Path, *, opset: int = 20) -> Path:
    """Writes a graph as a checked model."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path
