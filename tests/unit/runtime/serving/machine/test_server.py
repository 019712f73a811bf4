"""How the bundled server is started; whether it comes up is for the integration tests."""

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from shiplift.runtime.base.errors import ServerFailed, Temporary
from shiplift.runtime.host.processes import identify
from shiplift.runtime.records.process import Process
from shiplift.runtime.serving.machine import server
from shiplift.runtime.serving.machine.server import Server, start_private, survived
from shiplift.runtime.serving.triton.command_line import Features, Ports
from shiplift.runtime.serving.triton.environment import ServerEnvironment


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
    monkeypatch.setattr(server, "variables", lambda *_, **__: {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(server, "identify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.start_private(ServerEnvironment(tmp_path), tmp_path / "models", Features(), log=tmp_path / "log")
    assert not psutil.pid_exists(started[0])


def test_a_server_that_a_model_ends_is_no_server_that_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("I1128 loading: m:1\nSignal (11) received.\n 0# 0x0000 in tritonserver\n")
    child = subprocess.Popen(["sleep", "600"])
    ports = Ports(http=1, grpc=2, metrics=3)
    running = Server(process=identify(child.pid), ports=ports, repository=tmp_path, log=log)
    with monkeypatch.context() as patch:
        patch.setattr(server, "_END_S", 0.05)
        with pytest.raises(Temporary), survived(running):
            raise Temporary("busy", do="")
    child.kill()
    with (
        pytest.raises(ServerFailed, match=r"ended the server that loaded it: Signal \(11\) received"),
        survived(running),
    ):
        raise Temporary("gone", do="")
    child.wait()
