"""A request on which a model does not end costs that request, and neither the instance nor the other models."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from shiplift.pipelines.daemons.server_watchdog import ServerWatchdog
from shiplift.pipelines.engines.answers import StackStatus
from shiplift.pipelines.engines.local import stack
from shiplift.runtime.host.processes import alive
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.machine import server_memory
from shiplift.runtime.serving.machine.quarantine import crashed
from shiplift.runtime.serving.machine.server import Server, private_server
from shiplift.runtime.serving.triton.client import TritonClient, key_header
from shiplift.runtime.serving.triton.command_line import Features, Ports
from shiplift.runtime.serving.triton.config import ModelDescription
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import install, write_package
from shiplift.runtime.spec.serving_settings import SequenceBatching, Serving
from tests.integration import runaway
from tests.integration.conftest import Lab, until

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
LIMIT_S = 1.0
STOPPED = "stopped after 1 s, its limit"


def put(repository: Path, name: str, onnx_model: Any, work: Path, **serving: Any) -> None:
    """Adds a model to a server's repository; clients see its first input and output."""
    folder, package = work / f"{name}-onnx", work / f"{name}-package"
    folder.mkdir()
    package.mkdir()
    (folder / "model.onnx").write_bytes(onnx_model.SerializeToString())
    signature = Signature(inputs=signature_of(onnx_model).inputs[:1], outputs=signature_of(onnx_model).outputs[:1])
    description = ModelDescription(
        name=name,
        version=1,
        signature=signature,
        serving=Serving(warmup=False, request_timeout_s=LIMIT_S, **serving),
        config=ServingConfig(max_batch=16, queue_delay_us=0, instances=1, threads=1),
    )
    tree = write_package(package, description, folder, "bundled", example={}, golden={})
    install(tree, repository, source=name, name=name)


@contextmanager
def serving(work: Path, *models: str) -> Iterator[tuple[Server, TritonClient]]:
    with (
        private_server(ENVIRONMENT, work / "models", Features(cache_mb=0), log=work / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        for model in models:
            client.load(model)
        yield server, client


def ask(server: Server, name: str, value: float, *, client_timeout: float = 20, **options: Any) -> float:
    """One request with one sample; the right answer is the same number."""
    tensor = grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    answer = grpc.InferenceServerClient(server.grpc).infer(name, [tensor], client_timeout=client_timeout, **options)
    return float(answer.as_numpy("y").item())


def metric(server: Server, name: str, model: str) -> float:
    lines = httpx.get(server.metrics, trust_env=False).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and f'model="{model}"' in line)


def test_a_request_that_loops_for_ever_is_stopped_and_its_instance_serves_on(tmp_path: Path) -> None:
    for name in ("m", "other"):
        put(tmp_path / "models", name, runaway.looping(), tmp_path)
    with serving(tmp_path, "m", "other") as (server, _), ThreadPoolExecutor() as pool:
        assert ask(server, "m", 3) == 3
        hostile = pool.submit(ask, server, "m", runaway.MAGIC)
        time.sleep(0.2)
        started = time.monotonic()
        assert ask(server, "other", 5) == 5
        assert time.monotonic() - started < LIMIT_S  # it does not wait for the first
        assert ask(server, "m", 4) == 4
        assert time.monotonic() - started < LIMIT_S + 3
        with pytest.raises(InferenceServerException, match=STOPPED):
            hostile.result()
        assert metric(server, "shiplift_stopped_executions_total", "m") == 1
        assert metric(server, "shiplift_stuck_executions", "m") == 0
    assert "shiplift: m ran for over 1.0 s" in (tmp_path / "log").read_text()


def test_a_version_whose_instance_loops_can_be_unloaded(tmp_path: Path) -> None:
    put(tmp_path / "models", "m", runaway.looping(), tmp_path)
    with serving(tmp_path, "m") as (server, client), ThreadPoolExecutor() as pool:
        hostile = pool.submit(ask, server, "m", runaway.MAGIC)
        time.sleep(0.2)
        client.unload("m")
        assert until(lambda: state(server, "m") == "UNAVAILABLE")
        with pytest.raises(InferenceServerException):
            hostile.result()


def state(server: Server, model: str) -> str:
    index = grpc.InferenceServerClient(server.grpc).get_model_repository_index(headers=key_header(server.key)).models
    return next(str(entry.state) for entry in index if entry.name == model)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", ["looping", "endless"])
def test_the_python_backend_frees_its_instance_too(tmp_path: Path, hostile: str) -> None:
    """A stateful model runs there: what does not stop ends with its process, and another one starts."""
    model = with_state(getattr(runaway, hostile)())
    put(tmp_path / "models", "m", model, tmp_path, sequence_batching=SequenceBatching(states={"state": "next_state"}))
    step = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
    with serving(tmp_path, "m") as (server, _):
        assert ask(server, "m", 3, **step) == 3
        with pytest.raises(InferenceServerException, match=STOPPED):
            ask(server, "m", runaway.MAGIC, **step)
        assert metric(server, "shiplift_stopped_executions_total", "m") == 1
        if hostile == "endless":
            with pytest.raises(InferenceServerException, match="the model's worker was ended"):
                ask(server, "m", 4, **step)
            (found,) = crashed(server.process.pid)
            assert until(lambda: time.time() > found.at + found.pause_s)
        assert ask(server, "m", 4, **step) == 4


def with_state(model: Any) -> Any:
    """The same model with a state, which it returns unchanged."""
    from onnx import TensorProto, helper

    shape = ["n", 1]
    model.graph.input.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, shape))
    model.graph.output.append(helper.make_tensor_value_info("next_state", TensorProto.FLOAT, shape))
    model.graph.node.append(helper.make_node("Identity", ["state"], ["next_state"]))
    return model


@pytest.mark.slow
def test_a_model_whose_kernel_never_ends_loses_its_worker_and_status_says_so(lab: Lab, tmp_path: Path) -> None:
    repository, server = lab.home / "production" / "models", production(lab)
    with TritonClient(server.grpc, repository_key=server.key) as client:
        for name, model in (("stuck", runaway.endless()), ("beside", runaway.looping())):
            put(repository, name, model, tmp_path)
            client.load(name)
    for name in ("stuck", "beside"):
        with pytest.raises(InferenceServerException, match=STOPPED):
            ask(server, name, runaway.MAGIC)
        assert answered(server, "beside", 5)
    until(lambda: answered(server, "stuck", 4))
    until(lambda: incidents(lab, "stuck") and incidents(lab, "beside"))
    assert incidents(lab, "beside") == ["an execution was stopped at the time limit of a request"]
    assert "its worker died of SIGKILL, crash 1 in a row: it waits 1 s" in incidents(lab, "stuck")
    assert production(lab).process.pid == server.process.pid
    assert "watchdog: stuck: " in (lab.home / "logs" / "dispatcher.log").read_text()


def incidents(lab: Lab, model: str) -> list[str]:
    """What `shiplift status` says about a model."""
    status = lab.engine.status(None)
    assert isinstance(status, StackStatus)
    return [entry.event for entry in status.incidents if entry.model == model]


def production(lab: Lab) -> Server:
    running = stack.read(lab.home)
    assert running is not None
    ports = Ports(http=running.http_port, grpc=running.grpc_port, metrics=running.metrics_port)
    repository, log = lab.home / "production" / "models", lab.home / "logs" / "triton.log"
    return Server(process=running.processes["triton"], ports=ports, repository=repository, log=log)


def answered(server: Server, name: str, value: float) -> bool:
    try:
        return ask(server, name, value, client_timeout=2) == value
    except InferenceServerException:
        return False


def test_a_server_that_takes_too_much_memory_is_restarted(lab: Lab) -> None:
    before = production(lab)
    used_mb = server_memory.used_mb(before.process.pid, limit=1)
    assert 5 < used_mb < 4000
    watchdog = ServerWatchdog(lab.home)
    watchdog.look()
    assert alive(before.process)
    watchdog._memory_mb = int(used_mb / 2)
    watchdog.look()
    assert until(lambda: production(lab).process.pid != before.process.pid, seconds=60)
    assert any("MiB of memory" in event for event in incidents(lab, ""))
