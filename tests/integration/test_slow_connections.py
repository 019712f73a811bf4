"""Hundreds of connections that never finish their headers, against the real receiver: others are still answered."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from shiplift.runtime.host.processes import free_port
from tests.integration.conftest import until

REQUEST = b"POST /webhooks/mlflow HTTP/1.1\r\nHost: x\r\n"
RECEIVER = """
import sys
from pathlib import Path
from shiplift.pipelines.triggers.intake import Deliveries, Intake
from shiplift.pipelines.triggers.receiver import serve
from shiplift.pipelines.triggers.settings import DeliveryLimits, Listening
from shiplift.pipelines.engines.local.releases import Releases
home = Path(sys.argv[1])
intake = Intake(
    accept=Releases(home).accept,
    find_version=lambda *_: None,
    mlflow=lambda: ("secret",),
    deliveries=Deliveries(home / "d"),
)
serve(intake, Listening(host="0.0.0.0", port=int(sys.argv[2]), health_port=int(sys.argv[3])), DeliveryLimits())
"""


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[tuple[int, int]]:
    port, health = free_port(), free_port()
    process = subprocess.Popen([sys.executable, "-c", RECEIVER, str(tmp_path), str(port), str(health)])
    try:
        until(lambda: status(health, "/healthz") == 200)
        yield port, health
    finally:
        process.terminate()
        process.wait(timeout=30)


def status(port: int, path: str, source: str = "127.0.0.1", **content: bytes) -> int:
    """The status of a request from a source address; 0 without an answer within a second."""
    with httpx.Client(
        transport=httpx.HTTPTransport(local_address=source), timeout=1, base_url=f"http://127.0.0.1:{port}"
    ) as client:
        try:
            return client.request("POST" if content else "GET", path, **content).status_code  # type: ignore[arg-type]
        except httpx.HTTPError:
            return 0


def attack(stack: ExitStack, port: int, count: int, source: str, sent: bytes) -> list[socket.socket]:
    sockets = []
    for _ in range(count):
        half_open = stack.enter_context(socket.socket())
        half_open.bind((source, 0))
        half_open.settimeout(5)
        half_open.connect(("127.0.0.1", port))
        half_open.send(sent)
        sockets.append(half_open)
    return sockets


@pytest.mark.parametrize("count", [300, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", marks=pytest.mark.slow),
        pytest.param(REQUEST + b"X-Slow: ", marks=pytest.mark.slow),
        REQUEST + b"Content-Length: 9\r\n\r\n1",
    ],
)
def test_half_open_connections_keep_nobody_out(ports: tuple[int, int], count: int, sent: bytes) -> None:
    port, health = ports
    with ExitStack() as stack:
        for listener in ports:
            attack(stack, listener, count // 2, "127.0.0.3", sent)
        assert status(port, "/webhooks/mlflow", "127.0.0.2", content=b"{}") == 401  # not signed: it was read and judged
        assert status(port, "/healthz", "127.0.0.2") == 200
        for path in ("/healthz", "/readyz", "/metrics"):
            assert status(health, path) == 200


def test_an_honest_sender_beside_slow_ones_from_its_own_address_is_answered(ports: tuple[int, int]) -> None:
    with ExitStack() as stack:
        attack(stack, ports[0], 300, "127.0.0.1", b"POST /webhooks/mlflow HTTP/1.1\r\nX-Slow: ")
        assert status(ports[0], "/webhooks/mlflow", content=b"{}") == 401


@pytest.mark.slow
def test_many_sources_together_keep_nobody_out(ports: tuple[int, int]) -> None:
    with ExitStack() as stack:
        for last in range(10, 30):
            attack(stack, ports[0], 30, f"127.0.0.{last}", b"GET / HTTP/1.1\r\n")
        assert status(ports[0], "/webhooks/mlflow", "127.0.0.2", content=b"{}") == 401


@pytest.mark.slow
def test_headers_that_take_too_long_end_the_connection_also_after_a_first_request(ports: tuple[int, int]) -> None:
    with ExitStack() as stack:
        (slow,) = attack(stack, ports[0], 1, "127.0.0.1", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        slow.settimeout(20)
        assert b"200 OK" in slow.recv(4096)
        started = time.monotonic()
        slow.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        try:
            left = slow.recv(4096)
            while left and b'"ok"' in left:
                left = slow.recv(4096)
        except ConnectionResetError:
            left = b""
        assert left == b""
        assert 3 < time.monotonic() - started < 15


def test_requests_from_one_kept_connection_are_all_answered(ports: tuple[int, int]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{ports[0]}", timeout=5) as client:
        assert {client.get("/healthz").status_code for _ in range(200)} == {200}
