"""Whether the watchers see that a stub of Triton's Python backend has ended; no server runs, but real processes do."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.serving.machine.hosts import Hosts, crashes, running
from shiplift.runtime.serving.machine.loading import Attempts
from shiplift.runtime.serving.triton.loads import LOADING, READY

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository: `m` has two processes, `graph` none."""
    folder = tmp_path / "production" / "models"
    for name, config in {
        "m": "backend: 'python' instance_group { count: 2 }",
        "graph": "backend: 'onnxruntime'",
    }.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(f"name: '{name}' {config}")
        (folder / name / "1" / "model.py").write_text("import time; print(flush=True); time.sleep(60)")
    return folder


@pytest.fixture
def start(models: Path) -> Iterator[Start]:
    """Starts a process that looks like a model's stub, below this one."""
    stub = models.parent / "triton_python_backend_stub"
    stub.symlink_to(Path(sys.executable).resolve())
    begun: list[subprocess.Popen[bytes]] = []

    def one(model: str) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen([stub, models / model / "1" / "model.py"], stdout=subprocess.PIPE)
        begun.append(child)
        assert child.stdout
        child.stdout.readline()
        return child

    yield one
    for child in begun:
        child.kill()
        child.communicate()


def ended(child: "subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> None:
    """Ends a process, which stays a zombie, as below Triton."""
    child.send_signal(number)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def ready() -> dict[str, set[str]]:
    return {"m": {READY}, "graph": {READY}}


def unasked() -> dict[str, set[str]]:
    raise AssertionError("nothing is missing, so the server need not be asked")


def test_an_ended_stub_is_told_once_with_its_signal_and_pauses_grow_until_an_hour_was_healthy(
    models: Path, start: Start
) -> None:
    now = [1000.0]
    hosts = Hosts(os.getpid(), models, clock=lambda: now[0])
    first = start("m")
    other = start("m")
    assert hosts.look(unasked) == {}
    for crash, (number, after_s) in enumerate([(signal.SIGKILL, 0), (signal.SIGSEGV, 10), (signal.SIGABRT, 20)], 1):
        now[0] += after_s
        ended(first, number)
        down = hosts.look(ready)["m"]
        assert (down.crashes, down.at, down.pause_s) == (crash, now[0], 2 ** (crash - 1))
        assert down.told == f"its process in Triton's Python backend died of {number.name}"
        now[0] += 0.5
        assert hosts.look(ready) == {"m": down} == crashes(models.parent)
        first = start("m")
        assert hosts.look(ready) == {}
    assert down.finding(now[0]).startswith(
        "quarantined: crashed 3 times, it starts again in 4 s: its process in Triton"
    )
    now[0] += 3601
    ended(other)
    assert hosts.look(ready)["m"].crashes == 1


@pytest.mark.parametrize("state", [{LOADING}, {READY, LOADING}, {READY, "UNLOADING"}, {"UNAVAILABLE"}, set()])
def test_a_model_that_is_loaded_or_unloaded_just_now_lacks_nothing(models: Path, state: set[str]) -> None:
    hosts = Hosts(os.getpid(), models)
    assert hosts.look(lambda: {"m": state}) == {}
    assert crashes(models.parent) == {}


def test_a_model_that_is_loaded_again_is_down_until_that_has_ended_and_crashed_once(models: Path, start: Start) -> None:
    hosts = Hosts(os.getpid(), models)
    first = start("m")
    start("m")
    hosts.look(unasked)
    ended(first)
    down = hosts.look(ready)
    start("m")  # the first process of the load
    assert hosts.look(lambda: {"m": {READY, LOADING}}) == down
    assert hosts.look(ready) == {}
    assert hosts.look(unasked) == {}
    assert crashes(models.parent) == down


def test_a_version_that_was_replaced_hides_nothing(models: Path, start: Start) -> None:
    start("m")
    assert set(Hosts(os.getpid(), models).look(lambda: {"m": {READY, "UNAVAILABLE"}})) == {"m"}


def test_a_version_that_does_not_load_has_not_crashed(models: Path, start: Start) -> None:
    start("m")
    failed = Attempts(failures=1, why="no memory").model_dump_json()
    write_atomically(models.parent / "loading.json", f'{{"m": {failed}}}')
    assert Hosts(os.getpid(), models).look(lambda: {"m": {READY, "UNAVAILABLE"}}) == {}


def test_processes_that_started_before_the_server_called_the_model_ready_are_counted(
    models: Path, start: Start
) -> None:
    def states() -> dict[str, set[str]]:
        start("m")
        return ready()

    start("m")
    assert Hosts(os.getpid(), models).look(states) == {}


def test_each_of_the_served_versions_has_its_processes(models: Path, start: Start) -> None:
    versions = "version_policy { specific { versions: [1, 2] } }"
    (models / "m" / "config.pbtxt").write_text(f"name: 'm' backend: 'python' {versions}")
    start("m")
    assert set(Hosts(os.getpid(), models).look(ready)) == {"m"}


def test_what_ended_before_the_watcher_came_is_seen_too(models: Path, start: Start) -> None:
    start("m")
    assert Hosts(os.getpid(), models).look(ready)["m"].why == "ended"


def test_only_models_that_are_still_installed_are_remembered(models: Path) -> None:
    Hosts(os.getpid(), models).look(ready)
    (models / "m").rename(models / "n")
    Hosts(os.getpid(), models).look(lambda: {"n": {READY}})
    assert set(crashes(models.parent)) == {"n"}


def test_a_lost_or_torn_file_of_crashes_is_as_good_as_none(tmp_path: Path) -> None:
    assert crashes(tmp_path) == {}
    write_atomically(tmp_path / "hosts.json", '{"m": {"crash')
    assert crashes(tmp_path) == {}


def test_only_stubs_are_taken_for_stubs(models: Path, start: Start) -> None:
    child = start("m")
    with subprocess.Popen(["sleep", "60"]) as other:
        assert dict(running(os.getpid())) == {child.pid: "m"}
        other.kill()
