"""The process that waits for the next release, with a sandbox that imports next to nothing."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shiplift.pipelines.daemons import warm_worker
from shiplift.pipelines.daemons.warm_worker import WarmWorker
from shiplift.pipelines.engines.local import stack
from shiplift.pipelines.graph import Placement, Stage
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.confinement.policy import SCAN, Entry
from shiplift.runtime.confinement.workplace import workplace
from shiplift.runtime.records.site import Site
from tests.integration.conftest import until
from tests.unit.pipelines.engines.local.test_stack import started

ENTRY = Entry("os:getpid", SCAN)


def look(site: Site) -> Site:
    return site


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(warm_worker, "RELEASE", (Stage(look, Placement(warm=ENTRY)),))
    started(tmp_path)
    return tmp_path


@pytest.fixture
def waiting(home: Path) -> Iterator[WarmWorker]:
    """One that waits; its work notes the name of the release, its own pid and the folder of the sandbox it takes."""

    def work(name: str) -> int:
        with workplace(ENTRY, home) as place:
            (home / "worked").write_text(f"{name} {os.getpid()} {place.folder.parent.name}")
        return 7

    waiting = WarmWorker(home, work)
    waiting.keep()
    until(lambda: sandboxes(home))
    yield waiting
    waiting.end()


def sandboxes(home: Path) -> list[Path]:
    return list((home / stack.AHEAD).glob("*"))


def look_again(waiting: WarmWorker) -> None:
    waiting._next_look = 0
    waiting.keep()


def set_minutes(home: Path, minutes: float) -> None:
    changed = started(home).model_copy(update={"warm_minutes": minutes})
    write_atomically(home / "stack.json", changed.model_dump_json())


def test_a_release_gets_the_process_that_waits_and_its_sandbox(home: Path, waiting: WarmWorker) -> None:
    pid = waiting.take("digits-1")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert (home / "worked").read_text() == f"digits-1 {pid} {stack.AHEAD}"
    assert waiting.take("digits-2") == 0
    assert sandboxes(home) == []


def test_another_waits_as_soon_as_somebody_looks(home: Path, waiting: WarmWorker) -> None:
    first = waiting.take("digits-1")
    os.waitpid(first, 0)
    look_again(waiting)
    second = waiting.take("digits-2")
    assert second not in (0, first)
    os.waitpid(second, 0)
    assert (home / "worked").read_text().startswith(f"digits-2 {second} ")


def test_its_end_leaves_neither_processes_nor_folders(home: Path, waiting: WarmWorker) -> None:
    family = psutil.Process(waiting._pid).children(recursive=True)
    assert family
    waiting.end()
    assert sandboxes(home) == []
    until(lambda: not any(map(alive, family)))  # the kernel ends what a sandbox started just after its first process
    assert waiting.take("digits-1") == 0


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_one_that_does_not_end_in_time_is_killed_and_leaves_no_folders(
    home: Path, waiting: WarmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_worker, "_END_S", -1)
    waiting.end()
    assert sandboxes(home) == []


def test_it_ends_with_its_dispatcher_however_that_ends(home: Path) -> None:
    dispatcher = os.fork()
    if dispatcher == 0:
        waiting = WarmWorker(home, lambda _: 0)
        waiting.keep()
        (home / "pid").write_text(str(waiting._pid))
        signal.pause()
    until(lambda: sandboxes(home))
    waits = int((home / "pid").read_text())
    os.kill(dispatcher, signal.SIGKILL)
    os.waitpid(dispatcher, 0)
    until(lambda: not psutil.pid_exists(waits) or psutil.Process(waits).status() == psutil.STATUS_ZOMBIE)
    assert sandboxes(home) == []


def test_packages_installed_meanwhile_make_it_useless(
    home: Path, waiting: WarmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = waiting._pid
    monkeypatch.setattr(warm_worker, "_stamp", lambda: "changed")
    assert waiting.take("digits-1") == 0
    assert not psutil.pid_exists(pid)
    assert not (home / "worked").exists()


def test_the_next_look_replaces_one_that_packages_have_made_useless(
    waiting: WarmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = waiting._pid
    monkeypatch.setattr(warm_worker, "_stamp", lambda: "changed")
    look_again(waiting)
    assert waiting._pid not in (0, pid)


def test_one_that_was_killed_gets_no_release_and_is_not_started_again_at_once(waiting: WarmWorker) -> None:
    os.kill(waiting._pid, signal.SIGKILL)
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT  # a zombie whose threads are still ending can't be waited for
    until(lambda: os.waitid(os.P_PID, waiting._pid, ended))
    look_again(waiting)
    waiting.keep()
    assert waiting.take("digits-1") == 0


def test_a_stack_that_wants_none_has_none(home: Path, waiting: WarmWorker) -> None:
    set_minutes(home, 0)
    look_again(waiting)
    assert (waiting._pid, sandboxes(home)) == (0, [])
    look_again(waiting)
    assert waiting._pid == 0


def test_it_is_given_up_some_time_after_the_last_release(
    home: Path, waiting: WarmWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_minutes(home, 10)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 9 * 60)
    look_again(waiting)
    assert waiting._pid
    waiting.released()
    monkeypatch.setattr(time, "monotonic", lambda: now + 18 * 60)
    look_again(waiting)
    assert waiting._pid
    monkeypatch.setattr(time, "monotonic", lambda: now + 20 * 60)
    look_again(waiting)
    assert waiting._pid == 0


def test_none_is_started_while_memory_is_short(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_worker, "free_memory_mb", lambda: 1000)
    short = WarmWorker(home, lambda _: 0)
    short.keep()
    assert short.take("digits-1") == 0


def test_the_flavors_of_the_last_releases_are_expected(tmp_path: Path) -> None:
    for flavor in ("sklearn", "pytorch", "sklearn", "onnx"):
        warm_worker.note_flavor(tmp_path, flavor)
    assert warm_worker.flavors(tmp_path) == ["onnx", "sklearn"]


@pytest.mark.parametrize("text", [None, "", "{}", "7", "["])
def test_a_home_without_a_past_expects_what_is_installed(
    tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "flavors.json").write_text(text)
    installed: dict[str, Any] = {"torch": None, "skl2onnx": None}
    monkeypatch.setattr(warm_worker, "find_spec", installed.get)
    assert warm_worker.flavors(tmp_path) == [""]
    installed["skl2onnx"] = True
    assert warm_worker.flavors(tmp_path) == ["sklearn"]
