"""The simulator against the cluster: the same arrivals at a real replica and at a simulated one, at three loads.

One pod serves a graph of matrix products, released like any model: one instance with one thread, so that the other core
is left to Envoy and the client. Its executions are measured by batch size, from Triton's own statistics, in closed
loop. Then Poisson arrivals go through the gateway over gRPC, and the simulator gets the times at which they were sent.
What client, Envoy and Triton add to a request is measured with one client, and added to the simulated latencies.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import simpy
import tritonclient.grpc as triton
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import aio

from benchmarks.cluster import Installation, promoted, selector, stamp
from benchmarks.machine import until
from benchmarks.scaling.fleet import Fleet, Floats
from benchmarks.scaling.profile import Profile
from benchmarks.scaling.traces import generated
from shiplift.pipelines.discovery import discover
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.serving.discovery import ServedModel
from shiplift.runtime.serving.kubernetes.diagnosis import is_ready
from shiplift.runtime.serving.kubernetes.kinds import POD, TRITON_SERVICE

LOADS = (0.4, 0.6, 0.8)  # of the throughput of full batches
_MAX_BATCH, _WIDTH, _LAYERS = 4, 1024, 600
_CALIBRATION_S, _DURATION_S, _ROUNDS = 4.0, 30, 3
_ALONE, _STARTS = 400, 3
_CLIENTS = (1, 2, 3, 4, 5, 9)  # in closed loop, they make batches of all sizes
_LEAST_EXECUTIONS = 10
_PROMOTION_S = 600.0
_SPEC = f"""
search:
  {{time_budget_s: 2, max_batch: [{_MAX_BATCH}], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 200}}
load: {{concurrency: [1, 4], window_ms: 200, attempts: 1, comparison_rounds: 1, open_loop_s: 0}}
targets: [{{name: local-cpu, engine: onnxruntime, precisions: [fp32]}}]
"""


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A served model: where it answers, and what is sent to it."""

    model: str
    address: str
    host: str

    def client(self) -> aio.InferenceServerClient:
        """A client of the gateway."""
        return aio.InferenceServerClient(self.address, channel_args=[("grpc.default_authority", self.host)])


def request(rows: int = 1) -> list[Any]:
    """The input of one request."""
    tensor = triton.InferInput("x", [rows, _WIDTH], "FP32")
    tensor.set_data_from_numpy(np.full((rows, _WIDTH), 0.01, np.float32))
    return [tensor]


def chain(width: int, layers: int) -> onnx.ModelProto:
    """A chain of products with one matrix, which stays in the processor's cache: tens of ms of plain arithmetic."""
    weights = np.eye(width, dtype=np.float32) * 0.999
    nodes = [helper.make_node("MatMul", ["x" if at == 0 else f"h{at}", "w"], [f"h{at + 1}"]) for at in range(layers)]
    nodes.append(helper.make_node("Identity", [f"h{layers}"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in "xy")
    body = helper.make_graph(nodes, "chain", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(body, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])


@contextmanager
def replica(installation: Installation) -> Iterator[Replica]:
    """Releases the graph, and removes it afterwards."""
    name = f"bench-replica-{stamp()}"
    mlflow = installation.mlflow
    example = np.full((4, _WIDTH), 0.01, np.float32)
    with mlflow.start_run():
        mlflow.log_text(_SPEC, "shiplift/shiplift.yaml")
        signature = mlflow.models.infer_signature(example, example)
        logged = mlflow.onnx.log_model(
            chain(_WIDTH, _LAYERS), name=name, signature=signature, input_example=example, pip_requirements=[]
        )
    try:
        version = installation.register(name, logged)
        until(lambda: promoted(installation, name, version), f"{name} to be promoted", seconds=_PROMOTION_S)
        served = until(lambda: published(installation, name), f"{name} to be published", seconds=_PROMOTION_S)
        yield Replica(model=served.name, address=served.grpc, host=served.host)
    finally:
        installation.clean()


def published(installation: Installation, model: str) -> ServedModel | None:
    """Where a model answers; None: the operator has not said so yet."""
    try:
        return discover(model, engine="argo", namespace=installation.namespace)
    except NotFound:
        return None


async def calibrate(served: Replica) -> tuple[Profile, Floats]:
    """The replica's profile, and what requests take (ms) beyond their execution.

    How long an execution of each size takes is measured while the server is never idle: one after a pause takes longer
    than one that follows another. How much executions vary is measured with one client, request by request.
    """
    async with served.client() as client:
        before = await _executions(client, served.model)
        for clients in _CLIENTS:
            end = time.perf_counter() + _CALIBRATION_S
            await asyncio.gather(*(_closed_loop(client, served.model, end) for _ in range(clients)))
        after = await _executions(client, served.model)
        alone, beyond = await _one_by_one(client, served.model)
    batch_ms = {}
    for size, (count, total_ms) in after.items():
        earlier = before.get(size, (0, 0.0))
        if count - earlier[0] >= _LEAST_EXECUTIONS:
            batch_ms[float(size)] = (total_ms - earlier[1]) / (count - earlier[0])
    profile = Profile(
        name="a chain of matrix products",
        measured="Triton's statistics by batch size, in closed loop",
        batch_ms=batch_ms,
        spread=0,
        max_batch=_MAX_BATCH,
        slo_ms=1000,
        measured_factors=tuple((alone / alone.mean()).round(4).tolist()),
    )
    return profile, beyond


async def _one_by_one(client: aio.InferenceServerClient, model: str) -> tuple[Floats, Floats]:
    """How long each of many executions takes (ms), and the rest of each request's latency (ms)."""
    executions, rest = [], []
    _, before = (await _executions(client, model))[1]
    for _ in range(_ALONE):
        sent = time.perf_counter()
        await client.infer(model, request())
        latency = 1000 * (time.perf_counter() - sent)
        _, after = (await _executions(client, model))[1]
        executions.append(after - before)
        rest.append(latency - (after - before))
        before = after
    return np.asarray(executions), np.asarray(rest)


async def _closed_loop(client: aio.InferenceServerClient, model: str, end: float) -> None:
    """Sends one request after another until a time."""
    while time.perf_counter() < end:
        await client.infer(model, request())


async def _executions(client: aio.InferenceServerClient, model: str) -> dict[int, tuple[int, float]]:
    """How many batches of each size were executed, and for how many ms together."""
    statistics = await client.get_inference_statistics(model)
    parts = ("compute_input", "compute_infer", "compute_output")
    return {
        batch.batch_size: (batch.compute_infer.count, sum(getattr(batch, part).ns for part in parts) / 1e6)
        for each in statistics.model_stats
        for batch in each.batch_stats
    }


async def open_loop(served: Replica, arrivals: Floats) -> tuple[Floats, Floats]:
    """Sends a request at each time; returns the times at which they were sent (s), and the latencies (ms)."""
    async with served.client() as client:
        await client.infer(served.model, request())
        started = time.perf_counter()

        async def send() -> tuple[float, float]:
            sent = time.perf_counter()
            await client.infer(served.model, request())
            return sent - started, 1000 * (time.perf_counter() - sent)

        tasks = []
        for at in arrivals:
            await asyncio.sleep(max(0.0, at - (time.perf_counter() - started)))
            tasks.append(asyncio.create_task(send()))
        sent, latencies = zip(*await asyncio.gather(*tasks), strict=True)
    order = np.argsort(sent)
    return np.asarray(sent)[order], np.asarray(latencies)[order]


def simulated(profile: Profile, sent: Floats, beyond_ms: Floats) -> Floats:
    """The latencies (ms) of the same arrivals at a simulated replica."""
    fleet = Fleet(simpy.Environment(), profile, sent, 1)
    fleet.advance(float("inf"))
    beyond: Floats = np.random.default_rng(0).choice(beyond_ms, len(sent))
    latencies: Floats = 1000 * np.asarray(fleet.latencies) + beyond
    return latencies


async def compare(served: Replica) -> dict[str, Any]:
    """The 99th percentile of the latencies, measured and simulated, at each load: medians of several rounds."""
    profile, beyond_ms = await calibrate(served)
    rows, full_per_s = [], _MAX_BATCH / profile.seconds()[_MAX_BATCH]
    for load in LOADS:
        rounds = []
        for round_ in range(_ROUNDS):
            rate = load * full_per_s
            arrivals = generated(np.full(_DURATION_S * 10, rate), 1, round_)
            sent, latencies = await open_loop(served, arrivals)
            figures = [np.percentile(each, 99) for each in (latencies, simulated(profile, sent, beyond_ms))]
            rounds.append((len(sent), *map(float, figures)))
        measured, model = (float(np.median([each[at] for each in rounds])) for at in (1, 2))
        rows.append(
            {
                "load": load,
                "rate_per_s": round(load * full_per_s, 1),
                "requests": sum(each[0] for each in rounds),
                "measured_p99_ms": round(measured, 1),
                "simulated_p99_ms": round(model, 1),
                "error_percent": round(100 * (model / measured - 1), 1),
                "rounds": [[round(figure, 1) for figure in each[1:]] for each in rounds],
            }
        )
    kept = profile.model_copy(update={"measured_factors": ()})
    factors = [round(float(each), 3) for each in np.percentile(profile.measured_factors, [1, 50, 99])]
    return {
        "profile": kept.model_dump(mode="json"),
        "factors_p1_p50_p99": factors,
        "beyond_ms": round(float(beyond_ms.mean()), 2),
        "loads": rows,
    }


def starts(installation: Installation, model: str) -> list[float]:
    """How long a second pod took from its creation until it was ready (s), watched closely."""
    taken = []
    for _ in range(_STARTS):
        installation.serving.merge(TRITON_SERVICE, model, {"spec": {"replicas": 2}})
        until(lambda: pods(installation, model) == (2, 1), "a second pod", seconds=_PROMOTION_S, every_s=0.05)
        created = time.monotonic()
        until(lambda: pods(installation, model) == (2, 2), "it to be ready", seconds=_PROMOTION_S, every_s=0.05)
        taken.append(round(time.monotonic() - created, 1))
        installation.serving.merge(TRITON_SERVICE, model, {"spec": {"replicas": 1}})
        until(lambda: pods(installation, model) == (1, 1), "one pod", seconds=_PROMOTION_S, every_s=0.5)
    return taken


def pods(installation: Installation, model: str) -> tuple[int, int]:
    """The number of a model's pods, and how many of them are ready."""
    bodies = installation.serving.find(POD, selector(model))
    return len(bodies), sum(map(is_ready, bodies))


def validate(namespace: str) -> dict[str, Any]:
    """Compares the simulator with the Shiplift installed in KUBECONFIG's cluster."""
    installation = Installation(namespace)
    with replica(installation) as served:
        return asyncio.run(compare(served)) | {"start_s": starts(installation, served.model)}
