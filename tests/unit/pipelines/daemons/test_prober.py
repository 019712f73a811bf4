"""The prober's decisions that need no Triton; `tests/integration/test_answers.py` has one that answers wrongly."""

import fcntl
import os
import time
from pathlib import Path

import numpy as np
import pytest

from shiplift.pipelines.daemons.prober import BAD_BEATS, SLOW_BEATS, Prober, ProbeResult, State
from shiplift.pipelines.engines.local import pulses, stack
from shiplift.pipelines.settings import Settings
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.host.processes import identify
from shiplift.runtime.model.tensors import Arrays, dump_npz
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.machine.served import note_served
from shiplift.runtime.serving.machine.traffic import traffic_of, write
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.store.artifacts import ArtifactStore
from tests.unit.examples import artifact, package

RIGHT, WRONG = ProbeResult(seconds=0.01), ProbeResult(seconds=0.01, problem="off by 3", bad=True)
SLOW, SILENT = ProbeResult(seconds=6.0), ProbeResult(seconds=45.0, problem="it does not answer")


def after(*beats: ProbeResult) -> State:
    state = State(package=package())
    for number, beat in enumerate(beats):
        state = state.after(beat, float(number))
    return state


def test_one_wrong_answer_is_told_and_two_in_a_row_count() -> None:
    state = after(RIGHT, RIGHT, WRONG)
    assert (state.bad, state.pulse.verified_at, state.pulse.finding) == (1, 1.0, "off by 3")
    assert after(RIGHT, WRONG, WRONG).bad == BAD_BEATS
    assert after(WRONG, WRONG, RIGHT).bad == 0
    assert after(WRONG, RIGHT).pulse.finding == ""


def test_slow_is_measured_by_the_model_s_own_fastest_answer() -> None:
    state = after(RIGHT, SLOW)
    assert (state.slow, state.pulse.verified_at) == (1, 1.0)  # it answered rightly all the same
    assert state.pulse.finding == "it took 6.0 s to answer, usually 0.01 s"
    honest = ProbeResult(seconds=4.0)
    assert after(honest, SLOW).slow == 0
    assert after(RIGHT, *[SLOW] * 3, *[SILENT] * 3).slow == SLOW_BEATS
    assert after(RIGHT, SILENT, RIGHT).slow == 0


def test_an_answer_that_is_right_at_other_times_is_told_and_counts_for_nothing() -> None:
    varying = ProbeResult(seconds=0.01, problem="right and wrong in turn", varies=True)
    state = after(RIGHT, *[varying] * 20)
    assert (state.bad, state.slow, state.varies, state.pulse.finding) == (0, 0, True, "right and wrong in turn")
    assert after(varying, RIGHT).varies


class Production:
    """A home whose Triton answers as the test wants, and one model that it serves."""

    def __init__(self, home: Path) -> None:
        self.home, self.answer = home, RIGHT
        running = stack._new(Settings(home=home, free_ports=True))
        saved = running.model_copy(update={"processes": {"triton": identify(os.getpid())}})
        write_atomically(home / "stack.json", saved.model_dump_json())
        (home / "tree").mkdir()
        (home / "tree" / GOLDEN).write_bytes(dump_npz({"input/input": np.zeros((8, 4), np.float32)}))
        self.package = package(repository=ArtifactStore(stack.site(home, saved).artifacts_uri).put_tree(home / "tree"))
        note_served(home, self.package)
        self.prober = Prober(home, beat=self._beat)

    def look(self, answer: ProbeResult, times: int = 1) -> dict[str, str]:
        self.answer = answer
        for _ in range(times):
            self.prober.look()
        return self.prober.failing()

    def _beat(self, _address: str, served: Package, golden: Arrays) -> ProbeResult:
        assert served == self.package
        assert golden["input/input"].shape == (1, 4)
        return self.answer


@pytest.fixture
def production(tmp_path: Path) -> Production:
    return Production(tmp_path)


def test_what_it_sees_is_kept_for_status(production: Production) -> None:
    assert pulses.read(production.home, "digits").verified_at == 0
    assert production.look(RIGHT) == {}
    first = pulses.read(production.home, "digits")
    assert first.verified_at > 0
    assert production.look(WRONG, BAD_BEATS) == {"digits": "off by 3"}
    now = pulses.read(production.home, "digits")
    assert (now.verified_at, now.finding) == (first.verified_at, "off by 3")
    assert production.prober.package("digits") == production.package


def test_a_model_that_moves_meanwhile_is_not_judged(production: Production) -> None:
    production.look(RIGHT)
    lock = production.home / "production" / "locks" / "digits"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert production.look(WRONG, 5) == {}
    assert production.look(WRONG, BAD_BEATS) == {"digits": "off by 3"}


def test_golden_requests_that_are_gone_condemn_nobody(production: Production) -> None:
    gone = production.package.model_copy(update={"repository": package().repository})
    note_served(production.home, gone)
    assert production.look(WRONG, 9) == {}
    assert production.prober.slow() == {}
    assert pulses.read(production.home, "digits").finding.startswith("it can't be checked: ")


def test_what_clients_sent_is_what_the_heartbeat_did_not(tmp_path: Path) -> None:
    def beat(counted: int, own: int = 8) -> ProbeResult:
        return ProbeResult(seconds=0.01, counted=counted, own=own)

    state = State(package=package())
    for number, counted in enumerate((100, 108, 116)):  # the first reading has what came before
        state = state.after(beat(counted), 5.0 * number)
    assert state.tally
    assert (state.tally.traffic.requests, state.tally.traffic.window_s) == (0, 10)
    tally = state.after(beat(131), 15.0).after(beat(4), 20.0).after(SILENT, 25.0).after(beat(12), 30.0).tally
    assert tally
    assert (tally.traffic.requests, tally.last_at) == (7, 15.0)  # then the model was loaded again
    assert tally.after(20, 8, 700.0).traffic.requests == 0  # too long ago

    write(tmp_path, {"digits": tally})
    note_served(tmp_path, package())
    assert "has not looked" in traffic_of(tmp_path, "digits", patience_s=0).unknown  # nor lately
    write(tmp_path, {"digits": tally.model_copy(update={"since": 0.0, "until": time.time()})})
    assert traffic_of(tmp_path, "digits", patience_s=0).requests == 7
    note_served(tmp_path, package(version=9, repository=artifact("b")))
    assert traffic_of(tmp_path, "digits", patience_s=0).unknown
