"""The activator in front of a real Triton: what it holds is answered as if nothing had been between."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from shiplift.pipelines.daemons.activator.forwarding import Addresses
from shiplift.pipelines.daemons.activator.holding import HoldingLimits
from shiplift.pipelines.daemons.activator.servers import serve
from shiplift.runtime.host.processes import free_port, listening
from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.operator.cluster.latencies import read
from shiplift.runtime.spec.serving_settings import Serving
from tests.integration.conftest import until
from tests.integration.test_triton import served

pytestmark = pytest.mark.integration
ROUTED = {"shiplift-service": "m", "shiplift-backends": "m-3-abcdef"}
PROBE = ROUTED | {"shiplift-probe": "1"}
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@dataclass(frozen=True)
class Switched(Addresses):
    """Service names lead to a real server once `awake` is set, and to closed ports before."""

    server: Server | None = None
    awake: threading.Event = field(default_factory=threading.Event)

    def http(self, name: str) -> str:
        assert name == "m-3-abcdef"
        return self.server.http if self.server and self.awake.is_set() else "127.0.0.1:9"

    def grpc(self, name: str) -> str:
        return self.server.grpc if self.server and self.awake.is_set() else "127.0.0.1:9"


@dataclass(frozen=True, kw_only=True)
class Activator:
    addresses: Switched
    http: str
    grpc: str
    admin: str

    def wake(self) -> None:
        self.addresses.awake.set()

    def counts(self) -> dict[str, int]:
        answer = httpx.get(f"http://{self.admin}/held", trust_env=False).json()
        return dict(answer.get("m", {"held": 0, "arrived": 0}))

    def metric(self, name: str) -> float:
        lines = httpx.get(f"http://{self.admin}/metrics", trust_env=False).text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).split()[-1])

    def post(self, headers: dict[str, str] = ROUTED, timeout: float = 30, **options: Any) -> httpx.Response:
        url = f"http://{self.http}/v2/models/m/infer"
        return httpx.post(url, headers=headers, timeout=timeout, trust_env=False, **({"json": BODY} | options))

    def infer(self, timeout: float | None = 30) -> Any:
        tensor = grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
        with grpc.InferenceServerClient(self.grpc) as client:
            return client.infer("m", [tensor], headers=ROUTED, client_timeout=timeout)


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("triton"), Serving()) as (server, _):
        yield server


@contextmanager
def activator(server: Server, **bounds: Any) -> Iterator[Activator]:
    ports = (free_port(), free_port(), free_port())
    addresses, ready, loop = Switched("nowhere", server), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        loop.call_soon(ready.set)
        loop.run_until_complete(serve(HoldingLimits(**bounds), addresses, stop, ports=ports))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    until(lambda: all(listening("127.0.0.1", port) for port in ports))
    try:
        http, over_grpc, admin = (f"127.0.0.1:{port}" for port in ports)
        yield Activator(addresses=addresses, http=http, grpc=over_grpc, admin=admin)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=30)


def test_what_is_held_is_answered_as_if_nothing_was_between(triton: Server) -> None:
    direct = httpx.post(f"http://{triton.http}/v2/models/m/infer", json=BODY, trust_env=False)
    with activator(triton) as front, ThreadPoolExecutor(4) as pool:
        over_http = [pool.submit(front.post) for _ in range(2)]
        over_grpc = [pool.submit(front.infer) for _ in range(2)]
        until(lambda: front.counts() == {"held": 4, "arrived": 4})
        time.sleep(0.3)
        assert not any(call.done() for call in (*over_http, *over_grpc))
        front.wake()
        for answer in (call.result() for call in over_http):
            assert (answer.status_code, answer.json()) == (200, direct.json())
            assert dict(answer.headers) == dict(direct.headers)
        for call in over_grpc:
            np.testing.assert_array_equal(call.result().as_numpy("y"), [[2, 4, 6, 8]])
            assert call.result().get_response().model_version == "3"
        assert front.counts() == {"held": 0, "arrived": 4}
        assert front.metric("shiplift_activator_arrived_total") == 4


def test_errors_and_other_methods_are_passed_on(triton: Server) -> None:
    with activator(triton) as front:
        front.wake()
        wrong = {"inputs": [{**BODY["inputs"][0], "shape": [1, 3], "data": [1, 2, 3]}]}
        direct = httpx.post(f"http://{triton.http}/v2/models/m/infer", json=wrong, trust_env=False)
        answer = front.post(json=wrong)
        assert (answer.status_code, answer.text) == (direct.status_code, direct.text)
        assert direct.status_code == 400
        got = httpx.get(f"http://{front.http}/v2/models/m?x=%2F", headers=ROUTED, trust_env=False)
        assert got.json()["versions"] == ["3"]
        with grpc.InferenceServerClient(front.grpc) as client:
            assert client.is_model_ready("m", headers=ROUTED)
            assert client.get_model_metadata("m", headers=ROUTED).versions == ["3"]
            with pytest.raises(InferenceServerException, match="unknown model") as raised:
                client.get_model_metadata("nobody", headers=ROUTED)
        with grpc.InferenceServerClient(triton.grpc) as client, pytest.raises(InferenceServerException) as own:
            client.get_model_metadata("nobody")
        assert (raised.value.status(), raised.value.message()) == (own.value.status(), own.value.message())


def test_a_binary_answer_over_a_stream_is_passed_on(triton: Server) -> None:
    answers: list[Any] = []
    with activator(triton) as front, grpc.InferenceServerClient(front.grpc) as client:
        client.start_stream(lambda result, error: answers.append(error or result.as_numpy("y")), headers=ROUTED)
        tensor = grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
        for _ in range(2):
            client.async_stream_infer("m", [tensor])
        until(lambda: front.counts()["held"] == 1)
        front.wake()
        until(lambda: len(answers) == 2)
        client.stop_stream()
    np.testing.assert_array_equal(answers, [[[2, 4, 6, 8]]] * 2)


def test_no_more_requests_and_bytes_are_held_than_allowed(triton: Server) -> None:
    with activator(triton, requests=2, size_bytes=2000) as front, ThreadPoolExecutor(2) as pool:
        held = [pool.submit(front.post), pool.submit(front.infer)]
        until(lambda: front.counts()["held"] == 2)
        refused = front.post()
        assert refused.status_code == 429
        assert "2 requests already wait for a pod of m, which is the limit" in refused.json()["error"]
        with pytest.raises(InferenceServerException, match="2 requests already wait") as raised:
            front.infer()
        assert raised.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        front.wake()
        assert held[0].result().status_code == 200
        assert held[1].result().as_numpy("y").shape == (1, 4)
        large = front.post(content=b"x" * 3000)
        assert (large.status_code, "more than 2000 bytes" in large.json()["error"]) == (429, True)


def test_bytes_of_several_requests_count_together(triton: Server) -> None:
    with activator(triton, size_bytes=120) as front, ThreadPoolExecutor(1) as pool:
        held = pool.submit(front.post)
        until(lambda: front.counts()["held"] == 1)
        assert "more than the limit of 120" in front.post().json()["error"]
        front.wake()
        assert held.result().status_code == 200


def test_a_request_whose_backend_never_comes_is_refused_in_time(triton: Server) -> None:
    with activator(triton, seconds=1) as front:
        started = time.monotonic()
        answer = front.post()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "m had no pod, and none was ready within 1 s" in answer.json()["error"]
        with pytest.raises(InferenceServerException, match="none was ready within 1 s") as raised:
            front.infer()
        assert raised.value.status() == "StatusCode.UNAVAILABLE"
        assert 2 <= time.monotonic() - started < 5
        assert front.counts() == {"held": 0, "arrived": 2}


def test_a_client_that_gives_up_frees_its_place_and_is_not_served(triton: Server) -> None:
    with activator(triton) as front:
        before = _executed(triton)
        with pytest.raises(httpx.ReadTimeout):
            front.post(timeout=0.5)
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            front.infer(timeout=0.5)
        until(lambda: front.counts() == {"held": 0, "arrived": 2})
        front.wake()
        time.sleep(0.5)
        assert _executed(triton) == before


def test_it_answers_the_gateway_and_the_operator_itself_and_counts_neither(triton: Server) -> None:
    with activator(triton) as front:
        assert httpx.get(f"http://{front.http}/v2/models/m/ready", trust_env=False).status_code == 200
        answer = front.post(headers=PROBE)
        assert (answer.status_code, answer.headers["shiplift-activator"]) == (200, "m")
        assert front.post(headers={}).status_code == 404
        with grpc.InferenceServerClient(front.grpc) as client:
            assert client.is_server_live(headers=PROBE)
        assert front.counts() == {"held": 0, "arrived": 0}


@pytest.mark.parametrize("backends", ["10.0.0.1", "m.other", "", "m:80", "M", ",".join(["m"] * 17)])
def test_a_name_that_would_lead_elsewhere_is_not_followed(triton: Server, backends: str) -> None:
    with activator(triton) as front:
        answer = front.post(headers={"shiplift-service": "m", "shiplift-backends": backends})
        assert answer.status_code == 404
        assert front.counts()["arrived"] == 0


def _executed(server: Server) -> int:
    with grpc.InferenceServerClient(server.grpc) as client:
        return int(client.get_inference_statistics("m").model_stats[0].execution_count)


def test_the_servers_own_percentile_is_read(triton: Server) -> None:
    with grpc.InferenceServerClient(triton.grpc) as client:
        tensor = grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.float32))
        for _ in range(50):
            client.infer("m", [tensor])

    def measured() -> tuple[float, float | None]:
        return read(httpx.get(triton.metrics, trust_env=False).text, "m")

    until(lambda: measured()[0] >= 50)  # Triton counts a request after it has answered it
    _, p99_ms = measured()
    assert p99_ms is not None
    assert 0 < p99_ms < 1000
