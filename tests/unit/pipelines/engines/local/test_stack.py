import os
from pathlib import Path

import pytest

from shiplift.pipelines.engines.answers import StackStatus
from shiplift.pipelines.engines.local import stack, status
from shiplift.pipelines.engines.local.stack import Stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import PortTaken, StackDown
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.host.processes import free_port, identify
from shiplift.runtime.records.process import Process
from shiplift.runtime.records.site import Machine, SandboxSettings

ME = identify(os.getpid())
GONE = Process(pid=2**22 - 1, started_at=0)


def started(home: Path, processes: dict[str, Process] | None = None, *, registry: str = "") -> Stack:
    started = Stack(
        mlflow_port=5000,
        receiver_port=8090,
        http_port=8000,
        grpc_port=8001,
        metrics_port=8002,
        scoring_port=8005,
        page_port=8007,
        registry_uri=registry or "http://127.0.0.1:5000",
        server_environment=str(home / "server"),
        cache_mb=64,
        rate_limiter=False,
        sweep_s=60,
        holder="me",
        since=0,
        processes=processes or {},
    )
    write_atomically(home / "stack.json", started.model_dump_json())
    return started


def all_of(process: Process) -> dict[str, Process]:
    return dict.fromkeys(stack.NAMES, process)


def test_a_home_without_a_stack_has_none(tmp_path: Path) -> None:
    assert stack.read(tmp_path) is None
    with pytest.raises(StackDown, match="no stack was started"):
        stack.require(tmp_path)
    assert not stack.down(tmp_path)


def test_a_stack_that_runs_is_found_again(tmp_path: Path) -> None:
    running = started(tmp_path, all_of(ME))
    assert stack.require(tmp_path) == running


@pytest.mark.parametrize("name", [name for name in stack.NAMES if name != "page"])
def test_a_stack_of_which_a_part_is_gone_is_down(tmp_path: Path, name: str) -> None:
    started(tmp_path, all_of(ME) | {name: GONE})
    with pytest.raises(StackDown, match=f"{name} of the stack in .* is not running"):
        stack.require(tmp_path)


def test_a_stack_works_on_without_its_page(tmp_path: Path) -> None:
    running = started(tmp_path, all_of(ME) | {"page": GONE})
    assert stack.require(tmp_path) == running


def test_somebody_else_s_registry_is_no_part_of_the_stack(tmp_path: Path) -> None:
    parts = all_of(ME)
    del parts["mlflow"]
    running = started(tmp_path, parts, registry="https://mlflow.example.org")
    assert (running.embedded_registry, running.names) == (
        False,
        ("triton", "scoring", "receiver", "page", "dispatcher"),
    )
    assert stack.require(tmp_path) == running


def test_a_site_says_where_and_no_secret(tmp_path: Path) -> None:
    site = stack.site(tmp_path, started(tmp_path))
    assert isinstance(site.place, Machine)
    assert (site.place.http, site.place.grpc) == ("127.0.0.1:8000", "127.0.0.1:8001")
    assert site.artifacts_uri == f"file://{tmp_path}/artifacts"
    assert "secret" not in site.model_dump_json()


def test_a_port_that_is_taken_stops_the_start_before_anything_runs(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        environment = tmp_path / "server"
        environment.mkdir()
        (environment / "stamp").touch()
        settings = Settings(
            home=tmp_path / "home",
            server_environment=environment,
            mlflow_port=free_port(),
            http_port=free_port(),
            grpc_port=taken,
            metrics_port=free_port(),
            receiver_port=free_port(),
            scoring_port=free_port(),
            page_port=free_port(),
        )
        with pytest.raises(PortTaken, match=f"port {taken}, needed by triton \\(grpc\\), is taken"):
            stack.up(settings)
    assert stack.read(tmp_path / "home") is None


def test_the_status_tells_every_part_and_what_is_down(tmp_path: Path) -> None:
    assert status.of_stack(tmp_path) == StackStatus(home=str(tmp_path), running=False)
    started(tmp_path, all_of(GONE) | {"triton": ME})
    shown = status.of_stack(tmp_path)
    assert not shown.running
    assert {part.name: (part.running, part.pid) for part in shown.parts} == {
        "mlflow": (False, 0),
        "triton": (True, os.getpid()),
        "scoring": (False, 0),
        "receiver": (False, 0),
        "page": (False, 0),
        "dispatcher": (False, 0),
    }
    assert shown.memory_mb > 0


def test_the_addresses_of_a_stack_are_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endpoints = status.endpoints(started(tmp_path))
    assert endpoints.model_dump() == {
        "mlflow": "http://127.0.0.1:5000",
        "receiver": "http://127.0.0.1:8090",
        "http": "http://127.0.0.1:8000",
        "grpc": "127.0.0.1:8001",
        "metrics": "http://127.0.0.1:8002/metrics",
        "scoring": "http://127.0.0.1:8005",
        "page": "http://127.0.0.1:8007",
    }


def test_what_the_sandbox_may_be_without_is_the_site_s_and_can_be_changed(tmp_path: Path) -> None:
    accepting = SandboxSettings(allow_without=("landlock",))
    started(tmp_path, all_of(ME))
    assert stack._configured(tmp_path, Settings(home=tmp_path)).sandbox == SandboxSettings()
    changed = stack._configured(tmp_path, Settings(home=tmp_path, sandbox=accepting))
    assert stack.site(tmp_path, changed).sandbox == accepting
    assert stack.read(tmp_path) == changed
    assert stack._configured(tmp_path, Settings(home=tmp_path)).sandbox == accepting
    assert stack._configured(tmp_path, Settings(home=tmp_path, sandbox=SandboxSettings())).sandbox == SandboxSettings()
