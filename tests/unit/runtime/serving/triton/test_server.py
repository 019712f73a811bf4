"""How the bundled server is started; whether it comes up is for the integration tests."""

import os
from pathlib import Path

import psutil
import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.records.serving import Process
from shiplift.runtime.serving.triton import server
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.server import Features, Ports, command, start_private, variables

PORTS = Ports(http=1, grpc=2, metrics=3)


def arguments(tmp_path: Path, **features: object) -> list[str]:
    chosen = Features(**features)  # type: ignore[arg-type]
    return [str(argument) for argument in command(ServerEnvironment(tmp_path), tmp_path / "models", PORTS, chosen)]


def test_the_server_listens_on_the_loopback_and_takes_models_by_order_alone(tmp_path: Path) -> None:
    flags = arguments(tmp_path)
    for flag in (
        "--model-control-mode=explicit", "--disable-auto-complete-config", "--strict-readiness=true",
        "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", "--http-port=1",
        "--grpc-port=2", "--metrics-port=3",
    ):  # fmt: skip
        assert flag in flags


def test_shared_memory_is_closed_with_a_key_that_nobody_keeps(tmp_path: Path) -> None:
    closed = [[flag for flag in arguments(tmp_path) if "restricted" in flag] for _ in range(2)]
    assert all(len(flags) == 2 and all("shared-memory" in flag for flag in flags) for flags in closed)
    assert closed[0] != closed[1]


@pytest.mark.parametrize(
    ("features", "flag", "present"),
    [
        ({"cache_mb": 64}, "--cache-config=local,size=67108864", True),
        ({"cache_mb": 0}, "--cache-config=local,size=0", False),
        ({"rate_limiter": True}, "--rate-limit=execution_count", True),
        ({"http_threads": 3}, "--http-thread-count=3", True),
        ({}, f"--http-thread-count={min(8, len(os.sched_getaffinity(0)))}", True),
        ({"rate_limiter": False}, "--rate-limit=off", True),
        ({"flags": ("--metrics-interval-ms=500",)}, "--metrics-interval-ms=500", True),
    ],
)
def test_features_are_flags(tmp_path: Path, features: dict[str, object], flag: str, present: bool) -> None:
    assert (flag in arguments(tmp_path, **features)) is present


def test_the_server_inherits_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    environment = variables(ServerEnvironment(tmp_path))
    assert "secret" not in environment.values()
    assert environment["SHIPLIFT_SERVER_SITE"] == str(ServerEnvironment(tmp_path).site)
    assert environment["PATH"].startswith(f"{tmp_path}/bin:")


def test_a_server_that_dies_at_once_says_its_last_error(tmp_path: Path) -> None:
    environment = ServerEnvironment(tmp_path)
    environment.tritonserver.parent.mkdir(parents=True)
    environment.tritonserver.write_text("#!/bin/sh\necho starting\necho 'E1121 failed to load backend'\nexit 1\n")
    environment.tritonserver.chmod(0o755)
    with pytest.raises(ServerFailed, match="E1121 failed to load backend"):
        start_private(environment, tmp_path / "models", Features(), log=tmp_path / "triton.log")


def test_a_server_that_is_interrupted_before_anybody_knows_of_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def interrupted(pid: int) -> Process:
        started.append(pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "command", lambda *_: ["sleep", "600"])
    monkeypatch.setattr(server, "variables", lambda *_: {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(server, "identify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.start_private(ServerEnvironment(tmp_path), tmp_path / "models", server.Features(), log=tmp_path / "log")
    assert not psutil.pid_exists(started[0])
