"""A server, attacked by clients: what it answers, whether it still serves, and what memory it has."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from shiplift.runtime.serving.machine.server import Server
from shiplift.runtime.serving.triton.client import key_header
from shiplift.runtime.spec.serving_settings import Serving
from tests.attack.grpc_requests import Call
from tests.attack.http_requests import GOOD, as_json, http
from tests.integration.test_triton import served

ANSWER_S = 30
_BEGIN = b"HTTP/1.1 200 OK"


@dataclass(frozen=True)
class Target:
    """A server that is attacked."""

    server: Server
    process: psutil.Process
    channel: grpc.Channel

    def http(self, request: bytes) -> bytes:
        """What comes back on a connection whose client says this and no more; nothing if it is broken off."""
        return _said(self.server.ports.http, request)

    def http2(self, request: bytes) -> bytes:
        """The same on the port of gRPC."""
        return _said(self.server.ports.grpc, request)

    def grpc(self, call: Call, *, key: str = "") -> str:
        """The status of a call, whose client claims that this is the key."""
        method, message = call
        metadata = tuple(key_header(key).items())
        name = f"/inference.GRPCInferenceService/{method}"
        try:
            if method == "ModelStreamInfer":
                list(self.channel.stream_stream(name)(iter([message]), timeout=ANSWER_S, metadata=metadata))
            else:
                self.channel.unary_unary(name)(message, timeout=ANSWER_S, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    @property
    def family(self) -> list[psutil.Process]:
        """The server's process, those that started it, and those that it started."""
        return [self.process, *self.process.children(recursive=True), psutil.Process(self.server.process.pid)]

    @property
    def serves(self) -> bool:
        """Whether the same process still answers a good request."""
        return self.process.is_running() and _BEGIN in self.http(http(as_json(GOOD)))

    @property
    def memory_mib(self) -> float:
        """The server's resident memory, without its models'."""
        return self.process.memory_info().rss / 2**20


@contextmanager
def target(work: Path) -> Iterator[Target]:
    """A server with the model `m`, for as long as the context lasts."""
    with served(work, Serving()) as (server, _), grpc.insecure_channel(server.grpc) as channel:
        family = psutil.Process(server.process.pid).children(recursive=True)
        (process,) = [each for each in family if each.name() == "tritonserver"]
        yield Target(server=server, process=process, channel=channel)


def _said(port: int, request: bytes) -> bytes:
    said = []
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 20):
                said.append(part)
        except OSError:  # it closed the connection or answers no more
            pass  # what it said until then counts
    return b"".join(said)
