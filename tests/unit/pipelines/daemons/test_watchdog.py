"""The watchdog against real processes that do not listen."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shiplift.pipelines.daemons.watchdog import Patience, Watchdog
from shiplift.pipelines.engines.local.notes import Notes
from shiplift.pipelines.engines.local.releases import Releases
from shiplift.pipelines.graph import Placement, Stage
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.host.processes import identify
from shiplift.runtime.records.release import Event
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Verdict
from tests.integration.conftest import until

PATIENCE = Patience(cancelled_s=0.2, terminated_s=0.2)
DEAF = """
import signal, subprocess, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
print("deaf", flush=True)
while True:
    time.sleep(60)
"""


def quantize() -> Verdict:
    return Verdict.of(())


def promote() -> Verdict:
    return Verdict.of(())


class Worker:
    """A release with a process in a session of its own, and a child of it, that ignore every signal but SIGKILL."""

    def __init__(self, home: Path) -> None:
        self.releases = Releases(home)
        self.name = self.releases.accept(Request(model="m", version=1), Trigger(kind="manual")).name
        self.child = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, start_new_session=True)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"deaf\n"
        self.family = [psutil.Process(self.child.pid), *psutil.Process(self.child.pid).children()]
        identity = identify(self.child.pid).model_dump_json()
        write_atomically(self.releases.folder(self.name) / "worker.json", identity)

    @property
    def notes(self) -> Notes:
        return self.releases.notes(self.name)

    def watched(self) -> bool:
        """Whether the process has ended; called as often as the dispatcher does."""
        self.watchdog.check()
        return self.child.poll() is not None

    def watch(self) -> None:
        self.watchdog = Watchdog(self.releases, self.name, PATIENCE)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr("shiplift.pipelines.daemons.watchdog._EVERY_S", 0.01)
    worker = Worker(tmp_path)
    worker.watch()
    yield worker
    for process in worker.family:
        if process.is_running():
            process.kill()
    worker.child.communicate()


def test_a_process_that_does_not_listen_is_killed_after_its_stage_s_deadline(worker: Worker) -> None:
    late = Placement(deadline_s=-60)  # and 60 s to clean up
    worker.notes.enter(Stage(quantize, late))
    assert until(worker.watched)
    assert worker.child.returncode == -signal.SIGKILL
    assert until(lambda: not any(process.is_running() for process in worker.family[1:]))
    failure = worker.notes.failure()
    assert failure is not None
    assert (failure.kind, failure.exit_code, failure.about_model) == ("DeadlineExceeded", 46, False)
    assert "stage quantize took over -60 s and did not stop by itself" in failure.what
    assert worker.releases.active(worker.name)  # to be concluded by its next process


def test_a_process_that_does_not_listen_is_killed_after_a_cancel(worker: Worker) -> None:
    worker.notes.enter(Stage(quantize, Placement()))
    worker.notes.cancel()
    assert until(worker.watched)
    assert worker.child.returncode == -signal.SIGKILL
    failure = worker.notes.failure()
    assert failure is not None
    assert (failure.kind, failure.exit_code) == ("Cancelled", 130)
    assert "was killed" in failure.what


def test_a_process_in_time_is_left_alone(worker: Worker) -> None:
    worker.notes.enter(Stage(quantize, Placement()))
    deadline = time.monotonic() + 2 * PATIENCE.cancelled_s
    assert not any(worker.watched() for _ in iter(lambda: time.monotonic() < deadline, False))
    assert worker.notes.failure() is None


@pytest.mark.parametrize("last", [False, True])
def test_a_cancel_never_kills_what_moves_traffic_or_concludes(worker: Worker, *, last: bool) -> None:
    if last:
        worker.notes.conclude(Stage(quantize))
    else:
        worker.notes.enter(Stage(promote, Placement(shielded=True)))
    worker.notes.cancel()
    deadline = time.monotonic() + 2 * PATIENCE.cancelled_s
    assert not any(worker.watched() for _ in iter(lambda: time.monotonic() < deadline, False))


def test_a_release_is_concluded_as_it_had_to_end_with_the_stages_that_its_events_name(worker: Worker) -> None:
    releases, name = worker.releases, worker.name
    releases.tell(name, Event(stage="admit", kind="started"))
    releases.tell(name, Event(stage="admit", kind="finished", seconds=2, outcome="ok"))
    releases.tell(name, Event(stage="quantize", target="cpu", kind="started"))
    worker.notes.enter(Stage(quantize, Placement(deadline_s=-60)))
    assert until(worker.watched)
    failure = worker.notes.failure()
    assert failure is not None
    assert [(run.name, run.target, run.outcome) for run in releases.stage_runs(name, failure)] == [
        ("admit", "", "ok"),
        ("quantize", "cpu", "failed"),
    ]
    assert releases.begin(name) == 1  # concluding has attempts of its own
    assert worker.notes.position() is None
    worker.notes.clear()
    assert worker.notes.failure() is None
