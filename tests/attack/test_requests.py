"""What thousands of hostile requests change of a server: nothing. It answers good requests between them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shiplift.runtime.serving.triton import command_line
from tests.attack import grpc_requests, http_requests
from tests.attack.clients import Target, target
from tests.integration.conftest import until

_LEAK_MIB = 64
_OFTEN = 20  # attacks, after which a good request is answered


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("server")) as attacked:
        yield attacked


def test_there_are_thousands_of_different_ones() -> None:
    over_http = {request for family in http_requests.families().values() for request in family.values()}
    over_grpc = {call for family in grpc_requests.families().values() for call in family.values()}
    assert len(over_http) > 2500
    assert len(over_grpc) > 1000


@pytest.mark.parametrize("family", sorted(http_requests.families()))
def test_no_http_request_ends_the_server_or_fills_its_memory(attacked: Target, family: str) -> None:
    before = attacked.memory_mib
    for at, (name, request) in enumerate(http_requests.families()[family].items(), 1):
        said = attacked.http(request)
        assert attacked.process.is_running(), name
        assert at % _OFTEN or attacked.serves, name
        if family == "closed":
            assert b" 403 " in said.split(b"\r\n")[0] or b" 404 " in said.split(b"\r\n")[0], name
    assert attacked.serves
    until(lambda: attacked.memory_mib - before < _LEAK_MIB)


@pytest.mark.parametrize("family", sorted(grpc_requests.families()))
def test_no_grpc_request_ends_the_server_or_fills_its_memory(attacked: Target, family: str) -> None:
    before = attacked.memory_mib
    for at, (name, call) in enumerate(grpc_requests.families()[family].items(), 1):
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


@pytest.mark.parametrize("attack", ["nested", "shapes"])
def test_without_the_library_such_a_request_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    def without(*arguments: Any) -> dict[str, str]:
        return {**command_line.variables(*arguments), "LD_PRELOAD": ""}

    monkeypatch.setattr("shiplift.runtime.serving.machine.server.variables", without)
    name = {"nested": "400000 of [", "shapes": "2^61 of FP32 with [1]"}[attack]
    with target(tmp_path) as attacked:
        assert attacked.serves
        attacked.http(http_requests.families()[attack][name])
        until(lambda: not attacked.process.is_running())
