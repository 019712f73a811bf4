"""Daemons that are forked from one process with their imports; real processes, of modules that a test writes."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.host.forks import Forks
from shiplift.runtime.host.processes import alive, inherited, stop, wait_for
from shiplift.runtime.records.process import Process

DAEMON = """
import ctypes, json, os, sys, time
imported_by = os.getpid()
def main():
    told = {"imported_by": imported_by, "pid": os.getpid(), "session": os.getsid(0), "arguments": sys.argv[1:]}
    print(json.dumps(told), flush=True)
    if "fails" in sys.argv:
        raise SystemExit(3)
    if "ends" in sys.argv:
        libc = ctypes.CDLL(None)  # as a library that waits for its threads at exit, which a fork does not have
        libc.__cxa_atexit(libc.pause, None, None)
        return
    time.sleep(60)
"""


def forks_of(folder: Path, *modules: str) -> Forks:
    return Forks(modules, environment=inherited(("PATH", "PYTHONPATH")), folder=folder, log=folder / "start.log")


def told(log: Path) -> dict[str, object]:
    """What a daemon printed first."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if log.is_file() and log.read_text().endswith("\n"):
            return dict(json.loads(log.read_text()))
        time.sleep(0.01)
    raise AssertionError("it printed nothing")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the daemons' module is, which Python finds because the process that imports it runs there."""
    (tmp_path / "a_daemon.py").write_text(DAEMON)
    return tmp_path


def test_forks_share_one_import_have_sessions_of_their_own_and_outlive_what_forked_them(folder: Path) -> None:
    with forks_of(folder, "a_daemon") as forks:
        begun = [forks.start(name, "a_daemon", "--name", name, log=folder / f"{name}.log") for name in ("one", "two")]
        first, second = (told(folder / f"{name}.log") for name in ("one", "two"))
    try:
        assert [process.pid for process in begun] == [first["pid"], second["pid"]]
        assert (first["arguments"], second["arguments"]) == (["--name", "one"], ["--name", "two"])
        assert first["session"] == first["pid"] != first["imported_by"] == second["imported_by"]
        assert not psutil.pid_exists(int(str(first["imported_by"])))
        assert all(alive(process) for process in begun)
        assert psutil.Process(begun[0].pid).name() == "one"
        assert Path(f"/proc/{begun[0].pid}/fd/0").readlink() == Path(os.devnull)
    finally:
        for process in begun:
            stop(process, grace_s=1)
    assert not any(alive(process) for process in begun)


def test_a_daemon_that_ends_is_not_alive_while_what_forked_it_goes_on(folder: Path) -> None:
    with forks_of(folder, "a_daemon") as forks:
        failed = forks.start("one", "a_daemon", "fails", log=folder / "one.log")
        told(folder / "one.log")
        assert ended(failed)
        other = forks.start("two", "a_daemon", log=folder / "two.log")
        assert alive(other)
        os.kill(other.pid, signal.SIGKILL)
        assert ended(other)


def test_a_daemon_ends_though_a_library_waits_at_exit_for_threads_that_a_fork_lacks(folder: Path) -> None:
    with forks_of(folder, "a_daemon") as forks:
        daemon = forks.start("one", "a_daemon", "ends", log=folder / "one.log")
        told(folder / "one.log")
        assert ended(daemon)


def test_modules_that_can_t_be_imported_are_an_error_that_names_the_log(folder: Path) -> None:
    with (
        forks_of(folder, "no_such_module") as forks,
        pytest.raises(ServerFailed, match=r"one did not start.*start\.log"),
    ):
        forks.start("one", "no_such_module", log=folder / "one.log")
    assert "No module named 'no_such_module'" in (folder / "start.log").read_text()


def ended(process: Process) -> bool:
    return wait_for([psutil.Process(process.pid)], limit_s=10) == []
