"""What thousands of hostile requests change of a server: nothing. It answers good requests between them."""

import os
import resource
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.serving.triton import command_line
from tests.attack import grpc_requests, http_requests
from tests.attack.clients import ANSWER_S, Target, target
from tests.integration.conftest import until

_LEAK_MIB = 64
_OFTEN = 20  # attacks, after which a good request is answered


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("server")) as attacked:
        yield attacked


def test_there_are_thousands_of_different_ones() -> None:
    over_http = {request for name in http_requests.FAMILIES for request in http_requests.family(name).values()}
    over_grpc = {call for name in grpc_requests.FAMILIES for call in grpc_requests.family(name).values()}
    assert len(over_http) > 2500
    assert len(over_grpc) > 1000


@pytest.mark.parametrize("family", http_requests.FAMILIES)
def test_no_http_request_ends_the_server_or_fills_its_memory(attacked: Target, family: str) -> None:
    before = attacked.memory_mib
    for at, (name, request) in enumerate(http_requests.family(family).items(), 1):
        said = attacked.http(request)
        assert attacked.process.is_running(), name
        assert at % _OFTEN or attacked.serves, name
        if family == "closed":
            assert b" 403 " in said.split(b"\r\n")[0] or b" 404 " in said.split(b"\r\n")[0], name
    assert attacked.serves
    until(lambda: attacked.memory_mib - before < _LEAK_MIB)


@pytest.mark.parametrize("family", grpc_requests.FAMILIES)
def test_no_grpc_request_ends_the_server_or_fills_its_memory(attacked: Target, family: str) -> None:
    before = attacked.memory_mib
    for at, (name, call) in enumerate(grpc_requests.family(family).items(), 1):
        status = attacked.grpc(call)
        assert attacked.process.is_running(), name
        assert at % _OFTEN or attacked.serves, name
        if name.startswith("closed"):
            assert status == "UNAVAILABLE", name
    assert attacked.serves
    until(lambda: attacked.memory_mib - before < _LEAK_MIB)


def test_no_connection_to_grpc_s_port_ends_the_server(attacked: Target) -> None:
    for name, said in grpc_requests.connections().items():
        attacked.http2(said)
        assert attacked.serves, name


def test_a_body_is_not_decompressed_without_end(attacked: Target) -> None:
    before = attacked.memory_mib
    request = http_requests.http(http_requests.bomb(600), headers={"Content-Encoding": "gzip"})
    assert b"inconsistent stream state" in attacked.http(request)
    assert attacked.serves
    until(lambda: attacked.memory_mib - before < _LEAK_MIB)


def test_a_body_has_a_limit_however_it_is_announced(attacked: Target) -> None:
    before, port = attacked.memory_mib, attacked.server.ports.http
    head = http_requests.http(b"", headers={"Content-Length": str(900 << 20)})
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection, suppress(ConnectionError):
        connection.sendall(head)
        for _ in range(900):
            connection.sendall(bytes(1 << 20))
        pytest.fail("900 MiB were taken")
    assert attacked.serves
    until(lambda: attacked.memory_mib - before < _LEAK_MIB)


def test_nothing_that_other_accounts_see_opens_what_is_closed(attacked: Target) -> None:
    """They see command lines, and may see a log; an environment is its owner's, and the server's children get none."""
    key, file = attacked.server.key, attacked.server.repository.with_name("repository.key")
    assert file.read_text() == key
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o600, os.getuid())
    lines = [word for process in attacked.family for word in process.cmdline()]
    assert not [line for line in lines if key in line]
    assert key not in attacked.server.log.read_text()
    assert not [each for each in attacked.process.children(recursive=True) if key in str(each.environ())]
    seen = {line.rpartition("=")[2] for line in lines if "restricted" in line}
    assert len(seen) == 2
    for guess in (*seen, key[:-1], "0" * 32, ""):
        for name, message in grpc_requests.closed().items():
            assert attacked.grpc((name, message), key=guess) == "UNAVAILABLE", (name, guess)
    assert attacked.grpc(("LogSettings", b""), key=key) == "UNAVAILABLE"  # nobody's
    assert attacked.grpc(("RepositoryModelLoad", grpc_requests.closed()["RepositoryModelLoad"]), key=key) == "OK"
    assert attacked.serves


def test_without_its_key_any_client_unloads_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_to_all(*arguments: Any, **options: Any) -> list[str]:
        return [
            word for word in map(str, command_line.command(*arguments, **options)) if "=model-repository:" not in word
        ]

    monkeypatch.setattr("shiplift.runtime.serving.machine.server.command", open_to_all)
    with target(tmp_path) as attacked:
        assert attacked.serves
        assert attacked.grpc(("RepositoryModelUnload", grpc_requests.closed()["RepositoryModelUnload"])) == "OK"
        until(lambda: not attacked.serves)


def test_silent_connections_keep_nobody_out(attacked: Target) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(20_000, limits[1]), limits[1]))
    try:
        with ExitStack() as stack:
            for at in range(9000):
                silent = stack.enter_context(socket.socket())
                silent.settimeout(ANSWER_S)
                silent.bind((f"127.0.0.{2 + at // 3000}", 0))
                silent.connect(("127.0.0.1", attacked.server.ports.http))
                silent.send(b"POST /v2 HTTP/1.1\r\nX: ")
            until(lambda: attacked.process.num_fds() < 8400)
            assert attacked.serves
        until(lambda: attacked.process.num_fds() < 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("attack", ["nested", "shapes"])
def test_without_the_library_such_a_request_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    def without(*arguments: Any, **options: Any) -> dict[str, str]:
        return {**command_line.variables(*arguments, **options), "LD_PRELOAD": ""}

    monkeypatch.setattr("shiplift.runtime.serving.machine.server.variables", without)
    monkeypatch.setattr(secrets, "token_hex", lambda _: "word")
    key = "owners-word"  # as its command line says, since no library replaces it
    monkeypatch.setattr("shiplift.runtime.serving.machine.server.key_of", lambda _: key)
    name = {"nested": "400000 of [", "shapes": "2^61 of FP32 with [1]"}[attack]
    with target(tmp_path) as attacked:
        assert attacked.serves
        attacked.http(http_requests.family(attack)[name])
        until(lambda: not attacked.process.is_running())
