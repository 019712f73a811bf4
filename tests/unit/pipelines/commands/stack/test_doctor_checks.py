import socket
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.commands.stack import doctor_checks
from shiplift.pipelines.commands.stack.doctor_checks import Examination
from shiplift.pipelines.settings import Settings
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.serving.triton.environment import unsupported


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SHIPLIFT_{name.upper()}", raising=False)
    ports: dict[str, Any] = {f"{name}_port": free_port() for name in ("mlflow", "receiver", "http", "grpc", "metrics")}
    return Settings(home=tmp_path / "deep" / "home", server_environment=tmp_path / "server", **ports)


def named(found: Examination) -> dict[str, str]:
    return {one.name: one.state for one in found.findings}


def test_the_machine_is_examined_and_left_as_it_was(settings: Settings, tmp_path: Path) -> None:
    found = doctor_checks.examine(settings)
    assert list(tmp_path.iterdir()) == []
    assert {"python", "mlflow", "onnxruntime", "sandbox: network", "sandbox: files", "disk", "memory"} <= set(
        named(found)
    )
    assert named(found)["python"] == "ok"


def test_what_is_not_right_says_what_to_do_and_what_is_right_says_nothing(settings: Settings) -> None:
    for one in doctor_checks.examine(settings).findings:
        assert one.found
        assert (one.do == "") == (one.state == "ok"), one


def test_a_machine_is_usable_as_long_as_nothing_is_missing(settings: Settings) -> None:
    found = doctor_checks.examine(settings)
    assert found.usable == ("missing" not in named(found).values())


def test_a_port_that_is_taken_is_a_warning_that_names_it(settings: Settings) -> None:
    assert named(doctor_checks.examine(settings))["http-port"] == "ok"
    with socket.create_server(("127.0.0.1", settings.http_port)):
        found = {one.name: one for one in doctor_checks.examine(settings).findings}["http-port"]
    assert found.state == "warning"
    assert str(settings.http_port) in found.found
    assert "--http-port" in found.do


def test_a_server_environment_without_its_programs_is_told(settings: Settings, tmp_path: Path) -> None:
    if unsupported():
        pytest.skip("this machine cannot run the bundled server")
    assert named(doctor_checks.examine(settings))["bundled Triton"] == "warning"
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "stamp").touch()
    found = doctor_checks.examine(settings)
    assert (named(found)["tritonserver"], named(found)["perf_analyzer"], found.usable) == ("missing", "missing", False)


def test_a_package_that_is_not_there_is_told_with_how_to_get_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("mlflow", "torch") else real(name))
    found = {one.name: one for one in doctor_checks.examine(settings).findings}
    assert (found["mlflow"].state, found["torch"].state) == ("missing", "warning")
    assert "pip install" in found["mlflow"].do


def test_findings_are_shown_as_a_table(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    found = doctor_checks.examine(settings)
    doctor_checks.show(found)
    out, _ = capfd.readouterr()
    assert all(one.name in out for one in found.findings)
    assert ("this machine can run releases" in out) == found.usable
