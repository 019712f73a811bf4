"""The simulator against the cluster: the same arrivals at a real replica and at a simulated one, at three loads.

One pod serves a graph of matrix products, released like any model: one instance with one thread, so that the other core
is left to Envoy and the client. Its executions are measured by batch size, from Triton's own statistics, without load.
Then Poisson arrivals go through the gateway over gRPC, and the simulator gets the times at which they were sent. What
the client, Envoy and Triton add to each request is measured without load, too, and added to the simulated latencies.
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

from benchmarks.cluster import Installation, promoted, stamp
from benchmarks.machine import until
from benchmarks.scaling.fleet import Fleet, Floats
from benchmarks.scaling.profile import Profile, spread
from benchmarks.scaling.traces import generated
from shiplift.pipelines.discovery import discover
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.serving.discovery import ServedModel

LOADS = (0.5, 0.65, 0.8)  # of the highest throughput
_MAX_BATCH, _WIDTH, _LAYERS = 8, 1024, 160
_CALIBRATION, _DURATION_S, _ROUNDS = 60, 60, 3
_PROMOTION_S = 600.0
_SPEC = f"""
search: {{time_budget_s: 2, max_batch: [{_MAX_BATCH}], queue_delay_us: [0], instances: [1], threads: [1], window_ms: 200}}
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


def graph() -> onnx.ModelProto:
    """A chain of products with one matrix, which stays in the processor's cache: tens of ms of plain arithmetic."""
    weights = np.eye(_WIDTH, dtype=np.float32) * 0.999
    nodes = [helper.make_node("MatMul", ["x" if at == 0 else f"h{at}", "w"], [f"h{at + 1}"]) for at in range(_LAYERS)]
    nodes.append(helper.make_node("Identity", [f"h{_LAYERS}"], ["y"]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", _WIDTH]) for name in "xy")
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
            graph(), name=name, signature=signature, input_example=example, pip_requirements=[]
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


async def calibrate(served: Replica) -> tuple[Profile, float]:
    """The replica's profile, and what a request takes (ms) beyond its execution."""
    async with served.client() as client:
        latencies: list[float] = []
        before = await _executions(client, served.model)
        for rows in (1, 2, 4, _MAX_BATCH):
            for _ in range(_CALIBRATION):
                started = time.perf_counter()
                await client.infer(served.model, request(rows))
                if rows == 1:
                    latencies.append(1000 * (time.perf_counter() - started))
        after = await _executions(client, served.model)
    batch_ms = {}
    for size, (count, total_ms) in after.items():
        earlier = before.get(size, (0, 0.0))
        if count > earlier[0]:
            batch_ms[float(size)] = (total_ms - earlier[1]) / (count - earlier[0])
    p50, p99 = np.percentile(latencies, [50, 99])
    profile = Profile(
        name="a chain of matrix products", measured="Triton's statistics by batch size, without load",
        batch_ms=batch_ms, spread=spread(float(p50), float(p99)), max_batch=_MAX_BATCH, slo_ms=1000,
    )  # fmt: skip
    return profile, float(np.mean(latencies)) - batch_ms[1.0]


async def _executions(client: aio.InferenceServerClient, model: str) -> dict[int, tuple[int, float]]:
    """How many batches of each size were executed, and for how many ms together."""
    statistics = await client.get_inference_statistics(model)
    parts = ("compute_input", "compute_infer", "compute_output")
    return {
        batch.batch_size: (batch.compute_infer.count, sum(getattr(batch, part).ns for part in parts) / 1e6)
        for each in statistics.model_stats for batch in each.batch_stats
    }  # fmt: skip


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


def simulated(profile: Profile, sent: Floats, overhead_ms: float) -> Floats:
    """The latencies (ms) of the same arrivals at a simulated replica."""
    fleet = Fleet(simpy.Environment(), profile, sent, 1)
    fleet.advance(float("inf"))
    return np.asarray(fleet.latencies) * 1000 + overhead_ms


async def compare(served: Replica) -> dict[str, Any]:
    """The 99th percentile of the latencies, measured and simulated, at each load: medians of several rounds."""
    profile, overhead_ms = await calibrate(served)
    rows = []
    for load in LOADS:
        rounds = []
        for round_ in range(_ROUNDS):
            rate = load * profile.peak_per_s
            arrivals = generated(np.full(_DURATION_S * 10, rate), 1, round_)
            sent, latencies = await open_loop(served, arrivals)
            figures = [np.percentile(each, 99) for each in (latencies, simulated(profile, sent, overhead_ms))]
            rounds.append((len(sent), *map(float, figures)))
        measured, model = (float(np.median([each[at] for each in rounds])) for at in (1, 2))
        rows.append({
            "load": load, "rate_per_s": round(load * profile.peak_per_s, 1),
            "requests": sum(each[0] for each in rounds), "measured_p99_ms": round(measured, 1),
            "simulated_p99_ms": round(model, 1), "error_percent": round(100 * (model / measured - 1), 1),
            "rounds": [[round(figure, 1) for figure in each[1:]] for each in rounds],
        })  # fmt: skip
    return {"profile": profile.model_dump(mode="json"), "overhead_ms": round(overhead_ms, 2), "loads": rows}


def validate(namespace: str) -> dict[str, Any]:
    """Compares the simulator with the Shiplift installed in KUBECONFIG's cluster."""
    with replica(Installation(namespace)) as served:
        return asyncio.run(compare(served))
