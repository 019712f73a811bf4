"""The command line and the variables that Triton is started with."""

import os
from pathlib import Path

import pytest

from shiplift.runtime.host.processes import total_memory_mb
from shiplift.runtime.serving.triton.command_line import Features, Ports, command, variables
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository_key import VARIABLE

PORTS = Ports(http=1, grpc=2, metrics=3)


def arguments(tmp_path: Path, **features: object) -> list[str]:
    chosen = Features(**features)  # type: ignore[arg-type]
    return [str(argument) for argument in command(ServerEnvironment(tmp_path), tmp_path / "models", PORTS, chosen)]


def test_the_server_listens_on_the_loopback_and_takes_models_by_order_alone(tmp_path: Path) -> None:
    flags = arguments(tmp_path)
    for flag in (
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        "--strict-readiness=true",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--metrics-address=127.0.0.1",
        "--http-port=1",
        "--grpc-port=2",
        "--metrics-port=3",
    ):
        assert flag in flags


def test_what_changes_the_server_is_closed_with_keys_that_no_command_line_has(tmp_path: Path) -> None:
    http, *grpc = [flag.partition("=")[2].split(":shiplift=") for flag in arguments(tmp_path) if "restricted" in flag]
    closed, repository = grpc
    assert (http[0], closed[0]) == ("model-repository,shared-memory,trace,logging", "shared-memory,trace,logging")
    assert repository[0] == "model-repository"
    words = [word for _, word in (http, closed, repository)]  # the library replaces what begins so
    assert [word.rpartition("-")[0] for word in words] == ["not-kept", "not-kept", "owners"]
    assert all(len(word.rpartition("-")[2]) == 32 for word in words), "a key, should the library be missing"
    assert VARIABLE not in variables(ServerEnvironment(tmp_path))
    assert variables(ServerEnvironment(tmp_path), repository_key="k")[VARIABLE] == "k"


def test_every_server_refuses_what_would_end_it(tmp_path: Path) -> None:
    environment = ServerEnvironment(tmp_path)
    assert variables(environment)["LD_PRELOAD"] == str(environment.requests_library)
    captures = variables(environment, Features(captures=True))["LD_PRELOAD"].split(os.pathsep)
    assert captures == [str(environment.requests_library), str(environment.capture_library)]


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


@pytest.mark.parametrize(("allowed", "own"), [(3000, 2000), (0, total_memory_mb() // 2)])
def test_the_server_s_own_memory_is_two_thirds_of_what_it_may_use_with_its_models(
    tmp_path: Path, allowed: int, own: int
) -> None:
    environment = variables(ServerEnvironment(tmp_path), Features(memory_mb=allowed))
    assert environment["SHIPLIFT_SERVER_MEMORY_MB"] == str(own)
