"""The server does what a package says: each serving setting is observed on the real bundled Triton."""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue as Queue_
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from shiplift.runtime.base.errors import ServerFailed, ShipliftError, Temporary
from shiplift.runtime.guest.pod import guard
from shiplift.runtime.host.processes import free_port, listening, start_child
from shiplift.runtime.measure.generator import Demand, LoadTarget, Window
from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer
from shiplift.runtime.measure.requests import split
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient, check_golden
from shiplift.runtime.serving.triton.command_line import Features, Ports, nvidia_command, variables
from shiplift.runtime.serving.triton.config import ModelDescription, least_instances, server_needs
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.http_client import TritonHttpClient
from shiplift.runtime.serving.triton.repository import golden_arrays, install, reconfigure, write_package
from shiplift.runtime.spec.serving_settings import HostPolicy, Metrics, Priorities, Queue, RateLimiter, Serving, Warmup
from tests.integration.conftest import until

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 4)),),
)
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def onnx_folder(folder: Path, *, slow: int = 0) -> Path:
    """y = 2 x, made slower by `slow` extra layers: 30 of them take some milliseconds per batch."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes, constants = [helper.make_node("Mul", ["x", "two"], ["y"])], [two]
    if slow:
        size = 1600
        constants += [
            numpy_helper.from_array(np.zeros((4, size), np.float32), "wide"),
            numpy_helper.from_array(np.zeros((size, size), np.float32), "square"),
            numpy_helper.from_array(np.zeros((size, 4), np.float32), "narrow"),
        ]
        chain = [helper.make_node("MatMul", ["x", "wide"], ["h0"])]
        chain += [helper.make_node("MatMul", [f"h{i}", "square"], [f"h{i + 1}"]) for i in range(slow)]
        chain += [
            helper.make_node("MatMul", [f"h{slow}", "narrow"], ["zero"]),
            helper.make_node("Add", ["x", "zero"], ["x2"]),
        ]
        nodes = [*chain, helper.make_node("Mul", ["x2", "two"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    folder.mkdir(parents=True)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder


@contextmanager
def served(
    work: Path,
    serving: Serving,
    *,
    max_batch: int = 8,
    delay_us: int = 0,
    slow: int = 0,
    features: Features = Features(),  # noqa: B008
) -> Iterator[tuple[Server, TritonClient]]:
    """Serves version 3 of the model `m` on its own server."""
    package = packaged(work, serving, max_batch=max_batch, delay_us=delay_us, slow=slow)
    install(package, work / "models", source="m", name="m")
    with (
        private_server(ENVIRONMENT, work / "models", features, log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        client.load("m")
        yield server, client


def packaged(work: Path, serving: Serving, *, max_batch: int = 8, delay_us: int = 0, slow: int = 0) -> Path:
    """The package of the model `m`."""
    model = ModelDescription(
        name="m",
        version=3,
        signature=SIGNATURE,
        config=ServingConfig(
            max_batch=max_batch, queue_delay_us=delay_us, instances=least_instances(serving, "bundled"), threads=1
        ),
        serving=serving,
    )
    (work / "package").mkdir(parents=True)
    return write_package(
        work / "package",
        model,
        onnx_folder(work / "onnx", slow=slow),
        "bundled",
        example={"x": X},
        golden=golden_arrays({"x": X}, {"y": 2 * X}),
    )


def metric(server: Server, name: str) -> float:
    """The sum of a metric of model `m`."""
    lines = httpx.get(server.metrics, trust_env=False).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and 'model="m"' in line)


def counted(server: Server, **metrics: float) -> None:
    """Waits until metrics of model `m` have these values: Triton counts a request after it has answered it."""
    until(lambda: all(metric(server, f"nv_{name}") == value for name, value in metrics.items()))


def infer(server: Server, x: Any, **options: Any) -> Any:
    tensor = grpc.InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return grpc.InferenceServerClient(server.grpc).infer("m", [tensor], **options)


def test_it_answers_correctly_and_only_as_its_own_version(tmp_path: Path) -> None:
    with served(tmp_path, Serving()) as (server, client):
        check_golden(client, "m", SIGNATURE, golden_arrays({"x": X}, {"y": 2 * X}), tolerance=1e-6)
        assert client.versions("m") == [3]
        assert infer(server, X).get_response().model_version == "3"
        with pytest.raises(InferenceServerException, match="version 2"):
            infer(server, X, model_version="2")


def test_anybody_may_ask_over_both_protocols_which_version_serves(tmp_path: Path) -> None:
    with (
        served(tmp_path, Serving()) as (server, client),
        httpx.Client(base_url=f"http://{server.http}", trust_env=False) as connection,
    ):
        for asks in (TritonClient(server.grpc, repository_key=server.key), TritonHttpClient(connection)):
            assert asks.default_version("m") == 3
            with pytest.raises(ShipliftError):
                asks.default_version("nobody")
        client.unload("m")
        with pytest.raises(ShipliftError):
            TritonClient(server.grpc, repository_key=server.key).default_version("m")


def test_the_command_of_nvidia_s_image_serves_one_model_and_lets_nobody_load_another(tmp_path: Path) -> None:
    """A real server accepts all of its flags; only the folders of backends and caches differ."""
    needs = server_needs(Serving(host_policy=HostPolicy(cpu_cores="0"), rate_limiter=RateLimiter()), "nvidia")
    install(packaged(tmp_path, Serving()), tmp_path / "models", source="m", name="m")
    ports = Ports(http=free_port(), grpc=free_port(), metrics=free_port())
    triton = nvidia_command(tmp_path / "models", ports, needs, load=["m"])
    folders = [f"--backend-directory={ENVIRONMENT.backends}", f"--cache-directory={ENVIRONMENT.caches}"]
    guarded: list[str | Path] = [sys.executable, "-I", str(guard.__file__), "--model", tmp_path / "models" / "m", "--"]
    command = [*guarded, *triton, *folders]
    path = f"{ENVIRONMENT.tritonserver.parent}{os.pathsep}{os.environ['PATH']}"
    child = start_child(command, environment={**variables(ENVIRONMENT), "PATH": path}, log=tmp_path / "log")
    address = f"127.0.0.1:{ports.grpc}"
    try:
        both = (ports.grpc, ports.http)  # Triton opens HTTP after gRPC
        until(lambda: child.poll() is not None or all(listening(ports.host, port) for port in both))
        with TritonClient(address) as client:
            until(lambda: client.ready("m", 3))
            check_golden(client, "m", SIGNATURE, golden_arrays({"x": X}, {"y": 2 * X}), tolerance=1e-6)
            with pytest.raises(Temporary, match="restricted"):
                client.load("m")
        assert httpx.post(f"http://127.0.0.1:{ports.http}/v2/repository/index", trust_env=False).status_code == 403
    finally:
        child.kill()
        child.wait()


def test_requests_are_batched_within_the_delay(tmp_path: Path) -> None:
    with served(tmp_path, Serving(warmup=False), delay_us=300_000) as (server, _), ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: infer(server, np.full((1, 4), n, np.float32)).as_numpy("y"), range(4)))
        assert [float(answer[0, 0]) for answer in answers] == [0, 2, 4, 6]
        counted(server, inference_count=4, inference_exec_count=1)


@pytest.mark.parametrize(
    ("warmup", "runs", "samples"),
    [
        (True, 2, 9),
        (False, 0, 0),
        pytest.param(Warmup(source="zeros"), 2, 9, marks=pytest.mark.slow),
        (Warmup(source="random", count=3), 6, 27),
        pytest.param(Warmup(count=2), 4, 18, marks=pytest.mark.slow),
    ],
)
def test_warm_up_runs_before_the_model_is_ready(
    tmp_path: Path, *, warmup: bool | Warmup, runs: int, samples: int
) -> None:
    """A single sample and a full batch of eight, which Triton counts like any other execution."""
    with served(tmp_path, Serving(warmup=warmup)) as (server, client):
        assert client.ready("m", 3)
        counted(server, inference_exec_count=runs, inference_count=samples)


def test_a_batch_of_a_preferred_size_does_not_wait(tmp_path: Path) -> None:
    """The queue's delay is 20 s: longer than four requests would take to be answered without their batch."""
    serving, delay_s = Serving(warmup=False, preferred_batch_size=(4,)), 20
    started = time.monotonic()
    with (
        served(tmp_path, serving, delay_us=delay_s * 1_000_000) as (server, _),
        ThreadPoolExecutor(4) as pool,
    ):
        answers = list(pool.map(lambda n: infer(server, np.full((1, 4), n, np.float32)).as_numpy("y"), range(4)))
        assert time.monotonic() - started < delay_s
        assert [float(answer[0, 0]) for answer in answers] == [0, 2, 4, 6]
        counted(server, inference_exec_count=1)


def test_labels_reach_the_classification_extension(tmp_path: Path) -> None:
    with served(tmp_path, Serving(labels=("a", "b", "c", "d"))) as (server, _):
        client = http.InferenceServerClient(server.http)
        tensor = http.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(X[:1])
        classes = http.InferRequestedOutput("y", class_count=2)
        top = client.infer("m", [tensor], outputs=[classes]).as_numpy("y")[0]
        assert [entry.decode().split(":")[-1] for entry in top] == ["d", "c"]


def test_the_response_cache_answers_the_second_time(tmp_path: Path) -> None:
    with served(tmp_path, Serving(response_cache=True, warmup=False)) as (server, _):
        for _ in range(3):
            assert (infer(server, X).as_numpy("y") == 2 * X).all()
        counted(server, cache_num_hits_per_model=2, inference_exec_count=1)


def test_a_full_queue_refuses_further_requests(tmp_path: Path) -> None:
    queue = Queue(max_size=2, timeout_ms=0)
    with served(tmp_path, Serving(queue=queue, warmup=False), max_batch=1, slow=30) as (server, _):
        outcomes = _burst(server, 24)
        assert outcomes["answered"] >= 2  # what the queue holds; the first may not have left it yet
        assert outcomes["refused"] >= 1


def _burst(server: Server, count: int) -> dict[str, int]:
    outcomes = {"answered": 0, "refused": 0}

    def send(_: int) -> str:
        try:
            infer(server, X[:1])
        except InferenceServerException as error:
            return "refused" if "exceeds maximum queue size" in str(error).lower() else f"failed: {error}"
        return "answered"

    with ThreadPoolExecutor(count) as pool:
        for outcome in pool.map(send, range(count)):
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert set(outcomes) == {"answered", "refused"}, outcomes
    return outcomes


def test_urgent_requests_overtake(tmp_path: Path) -> None:
    serving = Serving(priorities=Priorities(levels=2, default=2), warmup=False)
    with served(tmp_path, serving, max_batch=1, slow=200) as (server, _):  # slower than requests arrive, so they queue
        done: list[int] = []

        def send(priority: int) -> None:
            infer(server, X[:1], priority=priority)
            done.append(priority)

        with ThreadPoolExecutor(24) as pool:
            for priority in [2] * 16 + [1] * 4:
                pool.submit(send, priority)
                time.sleep(0.002)  # so that they arrive in this order
        first = [done.index(1), *[index for index, priority in enumerate(done) if priority == 1]]
        last_urgent = max(first)
        assert last_urgent < len(done) - 1, done  # an ordinary request that came earlier was answered later


def test_policies_do_not_stall_the_batcher(tmp_path: Path) -> None:
    """With one instance, Triton 2.51 leaves a request waiting for up to 500 ms, so packages ask for two."""
    serving = Serving(priorities=Priorities(levels=2, default=2), queue=Queue(max_size=100, timeout_ms=5000))
    assert least_instances(serving, "bundled") == 2
    with served(tmp_path, serving) as (server, _):
        started = time.monotonic()
        for _ in range(100):
            infer(server, X)
        assert time.monotonic() - started < 5  # with one stall per request it would take 50 s


@pytest.mark.slow
def test_late_requests_let_those_go_first_that_can_still_be_answered_in_time(tmp_path: Path) -> None:
    """In turn, who comes after a crowd waits for all of it; with late requests last, only for what is executed then."""
    package = packaged(tmp_path, Serving(warmup=False), max_batch=4, slow=200)
    install(package, tmp_path / "models", source="m", name="m")
    reconfigure(tmp_path / "models", "m", ServingConfig(max_batch=4, queue_delay_us=0, instances=2, threads=1), 150)
    answers: Queue_[str] = Queue_()
    with (
        private_server(ENVIRONMENT, tmp_path / "models", Features(), log=tmp_path / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as loader,
        grpc.InferenceServerClient(server.grpc) as client,
    ):
        loader.load("m")
        tensor = grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(X[:1])

        def send(who: str) -> None:
            def answered(result: Any, error: Any) -> None:
                assert error is None, error
                answers.put(who if (result.as_numpy("y") == 2 * X[:1]).all() else "wrong")

            client.async_infer("m", [tensor], answered)

        for _ in range(600):
            send("crowd")
        time.sleep(0.3)  # twice the limit: what waits is late now
        for _ in range(4):
            send("fresh")
        order = [answers.get(timeout=60) for _ in range(604)]
    assert sorted(order) == ["crowd"] * 600 + ["fresh"] * 4
    last_fresh = max(at for at, who in enumerate(order) if who == "fresh")
    assert order[last_fresh:].count("crowd") > 20, last_fresh


def test_the_rate_limiter_is_honoured_by_a_server_started_with_it(tmp_path: Path) -> None:
    serving = Serving(rate_limiter=RateLimiter(resources={"slot": 1}, priority=2))
    with served(tmp_path, serving, features=Features(rate_limiter=True)) as (server, _):
        assert (infer(server, X).as_numpy("y") == 2 * X).all()
        config = grpc.InferenceServerClient(server.grpc).get_model_config("m").config
        assert config.instance_group[0].rate_limiter.resources[0].name == "slot"


def test_metrics_have_the_quantiles_that_the_spec_asks_for(tmp_path: Path) -> None:
    needs = server_needs(Serving(metrics=Metrics(interval_ms=100, quantiles=(0.8,))), "bundled")
    with served(tmp_path, Serving(), features=Features(flags=needs.flags)) as (server, _):
        infer(server, X)
        asked = 'nv_inference_request_summary_us{model="m",version="3",quantile="%s"}'
        text = until(lambda: asked % "0.5" in (text := httpx.get(server.metrics).text) and text)
    assert [quantile for quantile in ("0.5", "0.8", "0.9", "0.99") if asked % quantile in text] == [
        "0.5",
        "0.8",
        "0.99",
    ]


@pytest.mark.parametrize("policy", [HostPolicy(cpu_cores="0"), HostPolicy(cpu_cores="0", numa_node=0)])
def test_instances_stay_on_their_configured_cores(tmp_path: Path, policy: HostPolicy) -> None:
    if policy.numa_node is not None and not Path("/sys/devices/system/node/node0").is_dir():
        pytest.skip("this kernel reports no NUMA nodes")
    with served(tmp_path, Serving(host_policy=policy)) as (server, _):
        infer(server, X)
        (triton,) = (
            p for p in psutil.Process(server.process.pid).children(recursive=True) if p.name() == "tritonserver"
        )
        pinned = [thread.id for thread in triton.threads() if os.sched_getaffinity(thread.id) == {0}]
        assert len(pinned) == 1 or os.sched_getaffinity(0) == {0}  # only the instance's thread, not the server's


def test_a_numa_node_that_does_not_exist_is_an_error_at_load(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="node99"),
        served(tmp_path, Serving(host_policy=HostPolicy(numa_node=99))),
    ):
        pass


@pytest.mark.slow
def test_a_model_slower_than_the_window_is_measured_in_a_longer_one(tmp_path: Path) -> None:
    """perf_analyzer counts only requests that start and finish within a window, and gives up without any."""
    generator = PerfAnalyzer(ENVIRONMENT)
    window = Window(window_ms=100, stability_percent=1000, attempts=1)
    with served(tmp_path, Serving(), max_batch=1, slow=250) as (server, _):
        requests = generator.write_requests(tmp_path / "requests.json", SIGNATURE, split({"x": X}))
        target = LoadTarget(model="m", address=server.grpc, requests=requests)
        point = generator.measure(target, Demand(concurrency=8), window, tmp_path).point
    assert point.throughput_per_s > 0
    assert point.p50_ms > window.window_ms


@pytest.mark.parametrize(
    ("demand", "slack"), [(Demand(concurrency=2), 1.0), (Demand(rate_per_s=400), 0.5)], ids=["closed", "open"]
)
def test_a_load_test_in_batches_counts_samples(tmp_path: Path, demand: Demand, slack: float) -> None:
    """The server counts the same samples, in a quarter as many requests."""
    generator = PerfAnalyzer(ENVIRONMENT)
    window = Window(window_ms=300, stability_percent=1000, attempts=1, percentile=95, steady_latency=True)
    with served(tmp_path, Serving(warmup=False)) as (server, _):
        requests = generator.write_requests(tmp_path / "requests.json", SIGNATURE, split({"x": X}))
        target = LoadTarget(model="m", address=server.grpc, requests=requests, batch=4)
        point = generator.measure(target, demand, window, tmp_path).point
        until(lambda: metric(server, "nv_inference_count") == 4 * metric(server, "nv_inference_request_success"))
    assert point.throughput_per_s > 0
    if demand.rate_per_s:
        assert point.throughput_per_s == pytest.approx(demand.rate_per_s, rel=slack)
        assert point.sent_per_s == pytest.approx(demand.rate_per_s, rel=slack)


def test_the_shared_memory_api_is_closed(tmp_path: Path) -> None:
    with served(tmp_path, Serving()) as (server, _):
        with pytest.raises(InferenceServerException, match="restricted"):
            http.InferenceServerClient(server.http).get_system_shared_memory_status()
        with pytest.raises(InferenceServerException, match="restricted"):
            grpc.InferenceServerClient(server.grpc).get_system_shared_memory_status()


def test_a_private_server_leaves_nothing_behind(tmp_path: Path) -> None:
    with served(tmp_path, Serving()) as (server, _):
        infer(server, X)
        family = [server.process.pid, *(p.pid for p in psutil.Process(server.process.pid).children(recursive=True))]
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in family)
