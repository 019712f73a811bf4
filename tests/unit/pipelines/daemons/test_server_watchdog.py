"""The watchdog's decisions that need no Triton; `tests/integration/test_runaway.py` has a stuck one."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from shiplift.pipelines.daemons import server_watchdog
from shiplift.pipelines.daemons.prober import Prober
from shiplift.pipelines.daemons.server_watchdog import (
    AFTER_RELOAD_S,
    LONGEST_LOG_MB,
    SILENCE_S,
    ServerWatchdog,
    answer_patience_s,
)
from shiplift.pipelines.engines.local import incidents, stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.errors import ServerFailed
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.guest.pod.heartbeat import MARGIN_S
from shiplift.runtime.host.processes import identify
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.machine import server_memory
from shiplift.runtime.serving.machine.hosts import PART
from shiplift.runtime.serving.machine.quarantine import Crashed, quarantined
from shiplift.runtime.serving.machine.restarts import FIRST_PAUSE_S, Restarts
from shiplift.runtime.serving.machine.served import note_served
from tests.unit.examples import package


@pytest.fixture
def silent(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A home whose Triton lives and answers nothing."""
    process = subprocess.Popen(["sleep", "600"])
    running = stack._new(Settings(home=tmp_path, free_ports=True))
    saved = running.model_copy(update={"processes": {"triton": identify(process.pid)}})
    (tmp_path / "production").mkdir()
    write_atomically(tmp_path / "stack.json", saved.model_dump_json())
    yield process
    process.kill()
    process.wait()


def test_a_server_that_answers_nothing_is_ended_once_it_had_its_time(
    silent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    now = [100.0]
    watchdog = ServerWatchdog(tmp_path, clock=lambda: now[0])
    watchdog.look()
    now[0] += SILENCE_S - 1
    watchdog.look()
    assert silent.poll() is None
    now[0] += 2
    watchdog.look()
    silent.wait(timeout=10)
    assert [entry.event for entry in incidents.recent(tmp_path)] == [
        "Triton has not answered for 20 s: Triton is restarted"
    ]


def test_a_home_without_a_running_server_is_left_alone(tmp_path: Path) -> None:
    ServerWatchdog(tmp_path).look()
    assert incidents.recent(tmp_path) == ()


def test_only_the_newest_incidents_are_kept(tmp_path: Path) -> None:
    (tmp_path / "production").mkdir()
    for number in range(60):
        incidents.note(tmp_path, "m", str(number))
    assert [entry.event for entry in incidents.recent(tmp_path)] == [str(number) for number in range(10, 60)]


def test_a_model_with_a_longer_limit_gets_more_patience(tmp_path: Path) -> None:
    folder = tmp_path / "production" / "models" / "m"
    folder.mkdir(parents=True)
    assert answer_patience_s(tmp_path, "m") is None
    text = 'parameters { key: "request_timeout_ms" value { string_value: "120000" } }'
    (folder / "config.pbtxt").write_text(text)
    assert answer_patience_s(tmp_path, "m") == 120 + MARGIN_S


def test_a_server_that_takes_too_much_memory_is_ended_at_once(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above: list[float] = [0.0]
    monkeypatch.setattr(server_memory, "used_mb", lambda _pid, *, limit: limit + above[-1])
    (tmp_path / "site.yaml").write_text("server: {memory_mb: 2000}")
    watchdog = ServerWatchdog(tmp_path, clock=lambda: 100.0)
    watchdog.look()
    assert silent.poll() is None
    above.append(1.0)
    watchdog.look()
    silent.wait(timeout=10)
    assert [entry.event for entry in incidents.recent(tmp_path)] == [
        "Triton uses 2001 MiB of memory, the limit is 2000 MiB (`server.memory_mb` in site.yaml): Triton is restarted"
    ]


def test_a_log_without_end_is_emptied_while_the_server_goes_on_writing(
    silent: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "triton.log"
    log.parent.mkdir()
    with log.open("ab") as writer:
        writer.truncate(LONGEST_LOG_MB << 20)
        ServerWatchdog(tmp_path).look()
        writer.write(b"next line")
    assert log.read_bytes() == b"next line"
    assert silent.poll() is None
    assert "256 MiB: it was emptied" in incidents.recent(tmp_path)[0].event


class Answers:
    """What a prober has found."""

    def __init__(self) -> None:
        self.wrong: dict[str, str] = {}
        self.late: dict[str, str] = {}
        self.changing: dict[str, str] = {}

    def failing(self) -> dict[str, str]:
        return self.wrong

    def slow(self) -> dict[str, str]:
        return self.late

    def varying(self) -> dict[str, str]:
        return self.changing

    def package(self, name: str) -> Package | None:
        return package(model=name)


class Loaded:
    """The models of a Triton that answers: `stuck` are those whose executions did not stop."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.home = 100.0, home
        self.stuck: set[str] = set()
        self.done: list[str] = []
        for name in ("reload_stuck", "unload_stuck"):
            monkeypatch.setattr(server_watchdog, name, self._noted(name))
        monkeypatch.setattr(server_watchdog, "stop", lambda _process, **_: self._restarted())
        monkeypatch.setattr(server_watchdog, "answer", lambda _url: self._metrics())
        monkeypatch.setattr(server_watchdog, "reinstall", self._reinstalled)
        self.answers = Answers()
        self.watchdog = ServerWatchdog(home, prober=cast("Prober", self.answers), clock=lambda: self.now)

    def _reinstalled(self, _site: object, _machine: object, served: Package, **_: object) -> None:
        self.done.append(f"reinstall {served.model}")

    def look(self, *, after_s: float = 0) -> list[str]:
        """What the watchdog does after so long."""
        self.now, self.done = self.now + after_s, []
        self.watchdog.look()
        return self.done

    def _noted(self, name: str) -> Callable[..., None]:
        return lambda _site, _machine, model, **_: self.done.append(f"{name.removesuffix('_stuck')} {model}")

    def _restarted(self) -> None:
        self.done.append("restart")
        self.stuck = set()
        self.watchdog._forget(1)  # the next look meets another process

    def _metrics(self) -> str:
        return "".join(f'shiplift_stuck_executions{{model="{model}",version="1"}} 1\n' for model in self.stuck)


def test_a_client_that_repeats_its_request_takes_its_model_down_and_the_others_ever_less_often(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = Loaded(tmp_path, monkeypatch)
    triton.look()
    triton.stuck = {"m"}
    assert triton.look() == ["reload m"]
    assert triton.look(after_s=AFTER_RELOAD_S + 1) == ["restart"]
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S):
        triton.stuck = {"m"}
        assert triton.look() == ["reload m"]
        assert triton.look(after_s=AFTER_RELOAD_S + 1) == ["unload m"]
        left_s = pause_s - AFTER_RELOAD_S - 1
        assert triton.look(after_s=left_s - 1) == []
        assert triton.look(after_s=2) == ["restart"]
        triton.now -= 1  # exactly the pause
    events = [entry.event for entry in incidents.recent(tmp_path) if entry.model == "m"]
    assert events[3].endswith("nor did restarts: the model is unloaded until Triton is restarted, in 49 s")
    assert incidents.recent(tmp_path)[-1].event == "m got stuck and had to wait: Triton is restarted"


def test_a_model_that_answers_wrongly_is_installed_again_and_then_the_server_restarted_with_pauses(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = Loaded(tmp_path, monkeypatch)
    triton.answers.wrong = {"m": "output is off by 3"}
    assert triton.look() == ["reinstall m"]
    assert triton.look(after_s=5) == []
    assert triton.look(after_s=AFTER_RELOAD_S) == ["restart"]
    assert triton.look(after_s=1) == ["reinstall m"]
    assert triton.look(after_s=AFTER_RELOAD_S + 1) == ["unload m"]
    triton.answers.wrong = {}
    events = [entry.event for entry in incidents.recent(tmp_path) if entry.model == "m"]
    assert events[0] == "output is off by 3: the model is loaded again"


def test_a_model_that_was_loaded_just_now_gets_the_time_to_answer_right(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, missing = Loaded(tmp_path, monkeypatch), {"m"}
    monkeypatch.setattr(triton.watchdog, "_load_missing", lambda _: set(missing))
    triton.answers.wrong = {"m": "Stub process 'm_0_0' is not healthy."}  # what the prober saw while it was down
    assert triton.look() == []
    assert triton.look(after_s=60) == []
    missing.clear()
    assert triton.look(after_s=AFTER_RELOAD_S - 1) == []
    assert triton.look(after_s=2) == ["reinstall m"]


@pytest.mark.slow
def test_a_slow_model_is_loaded_again_once_an_hour_and_restarts_nothing(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = Loaded(tmp_path, monkeypatch)
    triton.answers.late = {"m": "it took 9.0 s to answer"}
    assert triton.look() == ["reload m"]
    assert [triton.look(after_s=30) for _ in range(100)] == [[]] * 100
    assert triton.look(after_s=700) == ["reload m"]


def test_answers_that_vary_are_told_once_and_restart_nothing(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = Loaded(tmp_path, monkeypatch)
    triton.answers.changing = {"m": "its answers depend on what else is asked at the time"}
    assert [triton.look(after_s=30) for _ in range(100)] == [[]] * 100
    (told,) = incidents.recent(tmp_path)
    assert told.model == "m"
    assert "nothing is restarted for that" in told.event


def test_another_model_that_gets_stuck_meanwhile_is_loaded_again_first(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = Loaded(tmp_path, monkeypatch)
    triton.watchdog._restarts = Restarts().after(triton.now)
    triton.stuck = {"m"}
    triton.look()
    assert triton.look(after_s=AFTER_RELOAD_S + 1) == ["unload m"]
    triton.stuck = {"m", "n"}
    assert triton.look(after_s=1) == ["reload n"]
    triton.stuck = {"m"}
    assert triton.look(after_s=1) == []


def test_a_model_that_can_t_be_unloaded_is_told_and_the_watchdog_goes_on(
    silent: "subprocess.Popen[bytes]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = Loaded(tmp_path, monkeypatch)
    triton.watchdog._restarts = Restarts().after(triton.now)
    monkeypatch.setattr(server_watchdog, "unload_stuck", refuse)
    triton.stuck = {"m"}
    triton.look()
    assert triton.look(after_s=AFTER_RELOAD_S + 1) == []
    assert incidents.recent(tmp_path)[-1].event.startswith("it can't be unloaded: it is busy")
    assert triton.look(after_s=FIRST_PAUSE_S) == ["restart"]


def refuse(*_: object) -> None:
    raise ServerFailed("it is busy", do="Wait.")


def test_others_are_told_once_that_a_model_has_gone_wrong_and_once_that_it_is_right_again(tmp_path: Path) -> None:
    class Asked(Prober):
        bad: dict[str, str] = {}  # noqa: RUF012 - a test's own

        def failing(self) -> dict[str, str]:
            return self.bad

        def package(self, name: str) -> Package:
            return package(model=name, version=3)

    prober = Asked(tmp_path)
    watchdog = ServerWatchdog(tmp_path, prober=prober)
    for bad in ({}, {"m": "off by 3"}, {"m": "off by 4"}, {}, {}):
        prober.bad = bad
        watchdog._tell_health()
    told = [(event.kind, event.subject, event.text) for _, event in Outbox(tmp_path).events()]
    assert told == [(EventKind.UNHEALTHY, "m/3", "off by 3"), (EventKind.HEALTHY, "m/3", "")]


def test_a_process_of_triton_s_python_backend_that_died_is_told_once_and_quarantines_its_version(
    tmp_path: Path,
) -> None:
    note_served(tmp_path, package(model="m", version=3))
    watchdog = ServerWatchdog(tmp_path)
    for crashes in (1, 2, 3):
        crash = Crashed(
            model="m",
            version=0,
            crashes=crashes,
            at=float(crashes),
            pause_s=2.0,
            why="died of SIGKILL",
            part=PART,
        )
        assert quarantined(tmp_path, "m", 3) == ""
        watchdog._note_down({"m": crash})
        watchdog._note_down({"m": crash})
    watchdog._note_down({})
    events = [entry.event for entry in incidents.recent(tmp_path) if entry.model == "m"]
    assert events[:3] == [
        f"its process in Triton's Python backend died of SIGKILL, crash {crashes} in a row: it waits 2 s"
        for crashes in (1, 2, 3)
    ]
    assert events[3].startswith("it was loaded again, and was whole after ")
    assert "crashed 3 times" in quarantined(tmp_path, "m", 3)
    told = [(event.kind, event.subject) for _, event in Outbox(tmp_path).events()]
    assert told == [(EventKind.QUARANTINED, "m/3")]
