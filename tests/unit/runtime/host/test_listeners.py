"""Every listener under connections that send nothing, little or too much: whoever sends a request is answered."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from shiplift.pipelines.daemons import prometheus
from shiplift.pipelines.daemons.activator import servers
from shiplift.pipelines.engines.argo.broker import server as broker
from shiplift.pipelines.triggers.intake import Deliveries, Intake
from shiplift.pipelines.triggers.receiver import create_app as receiver
from shiplift.runtime.guest.pod import heartbeat
from shiplift.runtime.guest.pod.meter import Meter
from shiplift.runtime.host.bounded_threads import BoundedThreads, Received
from shiplift.runtime.host.listeners import ConnectionLimits, listener, serve_until_stopped
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.serving.openai.app import create_app as openai
from shiplift.runtime.serving.scoring.app import ScoringApp

LIMITS = ConnectionLimits(connections=20, connections_per_source=8, header_timeout_s=0.5)  # 8 in progress, 10 waiting
Serve = Callable[[Path], Any]


@dataclass(frozen=True)
class Listens:
    """A listener: how it is started on a port, what answers without being authenticated, and what with it."""

    start: Callable[[Path, int], Any]
    path: str
    status: int = 200
    post: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@contextmanager
def uvicorns(configuration: uvicorn.Config) -> Iterator[None]:
    server = uvicorn.Server(configuration)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join(120)


@contextmanager
def threads(server: Any) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _receiver(folder: Path, port: int) -> Any:
    intake = Intake(
        accept=lambda *_: pytest.fail("nothing is signed"),
        find_version=lambda *_: None,
        mlflow=lambda: ("secret",),
        deliveries=Deliveries(folder / "deliveries"),
    )
    return uvicorns(listener(receiver(intake), "127.0.0.1", port, LIMITS))


def _openai(_: Path, port: int) -> Any:
    return uvicorns(listener(openai(list, key="right"), "127.0.0.1", port, LIMITS, keep_alive_s=75))


def _scoring(_: Path, port: int) -> Any:
    return uvicorns(listener(ScoringApp(list, key="right"), "127.0.0.1", port, LIMITS, keep_alive_s=75))


def _activator(_: Path, port: int) -> Any:
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return uvicorns(servers._uvicorn(app, port, 1).config)


def _metrics(_: Path, port: int) -> Any:
    return threads(prometheus.listen(prometheus.web(CollectorRegistry(), {}), port))


def _meter(_: Path, port: int) -> Any:
    return threads(Meter(("127.0.0.1", port), 1))


def _heartbeat(_: Path, port: int) -> Any:
    class Handler(heartbeat._Handler):
        timeout = 0.5
        probe = heartbeat.Probe(heartbeat.Heartbeat())

    server = heartbeat.Listener(("127.0.0.1", port), Handler)
    server.most = 10
    return threads(server)


def _broker(folder: Path, port: int) -> Any:
    now = SimpleNamespace(version=SimpleNamespace(folder=folder))
    return threads(broker.server(cast("Any", SimpleNamespace(now=now)), port))


LISTENERS = {
    "heartbeat": Listens(_heartbeat, "/"),
    "broker": Listens(_broker, "/ready"),
    "receiver": Listens(_receiver, "/webhooks/mlflow", 401, post=True),
    "openai": Listens(_openai, "/v1/models", headers=(("Authorization", "Bearer right"),)),
    "scoring": Listens(_scoring, "/ping"),
    "activator": Listens(_activator, "/v2/health/live"),
    "metrics": Listens(_metrics, "/metrics"),
    "meter": Listens(_meter, "/"),
}


@pytest.fixture(params=sorted(LISTENERS))
def listening(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Listens, int]]:
    monkeypatch.setattr(servers, "_LIMITS", LIMITS)
    monkeypatch.setattr(BoundedThreads, "most", 10)
    monkeypatch.setattr(Received, "timeout", 0.5)
    port = free_port()
    listens = LISTENERS[request.param]
    with listens.start(tmp_path, port):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not _status(listens, port):
            time.sleep(0.02)
        yield listens, port


def _status(listens: Listens, port: int) -> int:
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with httpx.Client(transport=transport, timeout=60, headers=dict(listens.headers)) as client:
        try:
            url = f"http://127.0.0.1:{port}{listens.path}"
            return (client.post(url, content=b"{}") if listens.post else client.get(url)).status_code
        except httpx.HTTPError:
            return 0


def _opened(stack: ExitStack, port: int, sent: bytes) -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
    connection.sendall(sent)
    return connection


def _taken(connection: socket.socket, piece: bytes) -> int:
    """How often a peer takes a piece, of 1,000 times at most. Its system's buffers take some of 60,000 bytes, too."""
    for taken in range(1000):
        try:
            connection.sendall(piece)
        except OSError:
            return taken
    return 1000


def test_silent_slow_and_idle_connections_keep_nobody_out(listening: tuple[Listens, int]) -> None:
    listens, port = listening
    whole = f"GET {listens.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    refused = f"POST {listens.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n".encode()
    attacks = [b"", whole[:-2], whole, refused]
    if listens is LISTENERS["meter"]:  # one thread: what waits costs the others a second at most
        attacks = [b""]
    for sent in attacks:
        with ExitStack() as stack:
            for _ in range(1 if listens is LISTENERS["meter"] else 50):
                connection = _opened(stack, port, sent)
                if listens is LISTENERS["activator"] and sent in (whole, refused):
                    with suppress(ConnectionError):  # its sources may have any number in progress: none is now
                        connection.recv(1)
            assert _status(listens, port) == listens.status, sent


def test_headers_are_awaited_for_seconds_and_of_a_size(listening: tuple[Listens, int]) -> None:
    _, port = listening
    with ExitStack() as stack:
        silent = _opened(stack, port, b"")
        silent.settimeout(60)  # it is closed after seconds
        assert silent.recv(1) == b""
        endless = _opened(stack, port, b"GET / HTTP/1.1\r\n")
        assert _taken(endless, b"X-Long: " + b"x" * 60000 + b"\r\n") < 1000


@pytest.mark.parametrize("name", ["openai", "receiver", "scoring"])
def test_a_body_is_not_read_after_the_refusal(tmp_path: Path, name: str) -> None:
    port = free_port()
    listens = LISTENERS[name]
    path = {"openai": "/v1/completions", "scoring": "/models/m/invocations"}.get(name, "/webhooks/mlflow")
    with listens.start(tmp_path, port), ExitStack() as stack:
        while not _status(listens, port):
            time.sleep(0.02)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {32 << 20}\r\n\r\n".encode()
        upload = _opened(stack, port, head)
        assert _taken(upload, bytes(1 << 20)) < 16
        short = _opened(stack, port, head[:-4].replace(str(32 << 20).encode(), b"9") + b"\r\n\r\nx")
        if name == "openai":
            assert short.recv(1 << 12).startswith(b"HTTP/1.1 401 ")


def test_a_server_that_a_person_stops_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = uvicorn.Server(listener(lambda *_: None, "127.0.0.1", 0, ConnectionLimits(connections=1)))

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "run", interrupted)
    serve_until_stopped(server)
