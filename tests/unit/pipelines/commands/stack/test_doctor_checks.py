import socket
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.commands.stack import doctor_checks
from shiplift.pipelines.commands.stack.doctor_checks import Examination
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.records.site import SandboxSettings
from shiplift.runtime.serving.triton.environment import unsupported


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SHIPLIFT_{name.upper()}", raising=False)
    ports: dict[str, Any] = {
        f"{name}_port": free_port() for name in ("mlflow", "receiver", "http", "grpc", "metrics", "scoring")
    }
    return Settings(home=tmp_path / "deep" / "home", server_environment=tmp_path / "server", **ports)


def states(examination: Examination) -> dict[str, str]:
    return {finding.name: finding.state for finding in examination.findings}


def test_the_machine_is_examined_and_left_as_it_was(settings: Settings, tmp_path: Path) -> None:
    examination = doctor_checks.examine(settings)
    assert list(tmp_path.iterdir()) == []
    assert {
        "python",
        "mlflow",
        "onnxruntime",
        "sandbox: namespaces",
        "sandbox: landlock",
        "sandbox: seccomp",
        "disk",
        "memory",
    } <= set(states(examination))
    assert states(examination)["python"] == "ok"


@pytest.mark.parametrize(("mlflow_mb", "state"), [(300.0, "ok"), (600.0, "warning")])
def test_it_says_where_the_stack_s_memory_goes(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, mlflow_mb: float, state: str
) -> None:
    """What models take is not idle memory."""
    monkeypatch.setattr(stack, "read", lambda _: settings)
    monkeypatch.setattr(stack, "memory", lambda _: {"triton": 400.0, "mlflow": mlflow_mb})
    monkeypatch.setattr(stack, "models_memory", lambda _: 300.0)
    (finding,) = doctor_checks._idle_memory(settings)
    assert finding.state == state
    assert finding.found.startswith(f"{400 + mlflow_mb:.0f} MiB: ")
    assert f"mlflow {mlflow_mb:.0f}" in finding.found
    assert "(of triton's, 300 are the processes of models); idle, the goal is 650" in finding.found


def test_only_a_finding_that_is_not_ok_says_what_to_do(settings: Settings) -> None:
    for finding in doctor_checks.examine(settings).findings:
        assert finding.found
        assert (finding.do == "") == (finding.state == "ok"), finding


def test_a_machine_is_usable_as_long_as_nothing_is_missing(settings: Settings) -> None:
    examination = doctor_checks.examine(settings)
    assert examination.usable == ("missing" not in states(examination).values())


def test_a_port_that_is_taken_is_a_warning_that_names_it(settings: Settings) -> None:
    assert states(doctor_checks.examine(settings))["http-port"] == "ok"
    with socket.create_server(("127.0.0.1", settings.http_port)):
        findings = {finding.name: finding for finding in doctor_checks.examine(settings).findings}
    port = findings["http-port"]
    assert port.state == "warning"
    assert str(settings.http_port) in port.found
    assert "--http-port" in port.do


def test_a_server_environment_without_its_programs_is_missing_them(settings: Settings, tmp_path: Path) -> None:
    if unsupported():
        pytest.skip("this machine cannot run the bundled server")
    assert states(doctor_checks.examine(settings))["bundled Triton"] == "warning"
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "stamp").touch()
    examination = doctor_checks.examine(settings)
    assert (states(examination)["tritonserver"], states(examination)["perf_analyzer"], examination.usable) == (
        "missing",
        "missing",
        False,
    )


def test_a_missing_package_is_reported_with_how_to_install_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("mlflow", "torch") else real(name))
    findings = {finding.name: finding for finding in doctor_checks.examine(settings).findings}
    assert (findings["mlflow"].state, findings["torch"].state) == ("missing", "warning")
    assert "pip install" in findings["mlflow"].do


def test_findings_are_shown_as_a_table(settings: Settings, capfd: pytest.CaptureFixture[str]) -> None:
    examination = doctor_checks.examine(settings)
    doctor_checks.show(examination)
    out, _ = capfd.readouterr()
    assert all(finding.name in out for finding in examination.findings)
    assert ("this machine can run releases" in out) == examination.usable


@pytest.mark.parametrize(("accepted", "state"), [((), "missing"), (("landlock",), "warning")])
def test_a_mechanism_that_the_kernel_refuses_is_named_with_how_to_get_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, accepted: tuple[str, ...], state: str
) -> None:
    """The refusal itself is tested with real kernels' answers in runtime/confinement/test_refusals.py."""
    monkeypatch.setattr("shiplift.runtime.confinement.sandbox.probe", lambda _: {"landlock": "no such call"})
    site = settings.model_copy(update={"sandbox": SandboxSettings.model_validate({"allow_without": accepted})})
    findings = {finding.name: finding for finding in doctor_checks.examine(site).findings}
    assert findings["sandbox: namespaces"].state == "ok"
    finding = findings["sandbox: landlock"]
    assert (finding.state, "no such call" in finding.found) == (state, True)
    assert "5.13" in finding.do
    assert "allow_without" in finding.do
