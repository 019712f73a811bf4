"""When a machine compares captured rows, and whom it tells: once, whatever is killed in between."""

from pathlib import Path
from unittest import mock

import pytest

from shiplift.pipelines.daemons.drift_keeper import DriftKeeper
from shiplift.pipelines.engines.local import drifting, incidents
from shiplift.pipelines.triggers.drift_metrics import DriftMetrics
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.events.event import ModelEvent, model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.events.outbox import Outbox
from shiplift.runtime.events.targets import EventTarget
from shiplift.runtime.records.baking import Alarm, Baking
from shiplift.runtime.records.drift import ColumnDrift, Drifting, DriftReport
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.machine import baking
from shiplift.runtime.serving.machine.served import note_served
from tests.unit.examples import artifact, package

DRIFTING = Drifting(every_s=3600, window_s=86400, threshold=0.2, confidence=0.99, min_requests=20, hook="retrain")
STEADY = ColumnDrift(column="input/age", state="steady", psi=0.01, p=0.6)
DRIFTED = ColumnDrift(column="input/age", state="drifted", psi=0.5, p=1e-9)
FEW = ColumnDrift(column="input/age", state="too few", note="3 of the 20 requests that are needed")


class Machine:
    """A home whose packages are compared with whatever a test says."""

    def __init__(self, home: Path) -> None:
        self.home, self.now, self.measured = home, 1000.0, 0
        self.column, self.problem = STEADY, ""
        note_served(home, package(drifting=DRIFTING))

    def measure(self, _home: Path, served: Package) -> DriftReport:
        self.measured += 1
        columns = () if self.problem else (self.column,)
        return DriftReport(
            model=served.model, version=served.version, at=self.now, columns=columns, problem=self.problem
        )

    def look(self, column: ColumnDrift, *, after_s: float = 3600) -> None:
        self.column, self.now = column, self.now + after_s
        DriftKeeper(self.home, measure=self.measure, clock=lambda: self.now).look()

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.sentence, event.hook) for _, event in Outbox(self.home).events()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_each_drift_is_told_once_and_a_new_one_anew(machine: Machine) -> None:
    for column in (STEADY, DRIFTED, DRIFTED, FEW, DRIFTED):
        machine.look(column)
    said = "digits/2 drifted: 1 of 1 columns drifted from the validation data: input/age (PSI 0.5)"
    assert machine.told == [(said, "retrain")]
    for column in (STEADY, DRIFTED):
        machine.look(column)
    assert machine.told == [(said, "retrain")] * 2
    assert any("`drift.hook` names 'retrain'" in each.event for each in incidents.recent(machine.home))
    note_served(machine.home, package(version=3, repository=artifact("b", kind="tree"), drifting=DRIFTING))
    assert drifting.state_of(machine.home, "digits") is None  # another version: nothing is known of it
    machine.look(DRIFTED, after_s=1)
    assert len(machine.told) == 3


def test_a_drift_that_was_found_and_not_told_is_told_after_a_kill(machine: Machine) -> None:
    with (
        mock.patch("shiplift.pipelines.daemons.drift_keeper.emit", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        machine.look(DRIFTED)
    machine.look(DRIFTED, after_s=1)
    assert (len(machine.told), machine.measured) == (1, 1)


def test_it_is_compared_when_due_and_more_often_for_an_alarm_of_a_bake(machine: Machine) -> None:
    for after_s in (0, 10, 3595, -90000):
        machine.look(STEADY, after_s=after_s)
    assert machine.measured == 3  # also after the clock was set back
    digest = package().repository.sha256
    alarms = (Alarm(kind="drift"),)
    baking.begin(machine.home, Baking(model="digits", version=2, package=digest, for_s=60, alarms=alarms))
    machine.look(DRIFTED, after_s=61)
    assert machine.measured == 4
    assert drifting.found_in_bake(machine.home, "digits").startswith("1 of 1 columns drifted")  # type: ignore[union-attr]


def test_what_can_t_be_compared_is_said_once_and_is_unknown_to_a_bake(machine: Machine) -> None:
    machine.problem = "a file is broken"
    for _ in range(2):
        machine.look(STEADY)
    assert drifting.found_in_bake(machine.home, "digits") is None
    assert [each.event for each in incidents.recent(machine.home)][-1] == "its drift is not known: a file is broken"
    assert machine.told == []
    note_served(machine.home, package())
    with pytest.raises(NotFound, match="is not measured"):
        drifting.report_of(machine.home, "digits", now=False)


def test_validation_data_go_when_their_model_is_compared_no_more(machine: Machine) -> None:
    files = [machine.home / "production" / "drift" / f"{name}.0123.npz" for name in ("digits", "retired")]
    machine.look(STEADY)
    for file in files:
        file.touch()
    machine.look(STEADY, after_s=1)
    assert [file.exists() for file in files] == [True, False]


def test_metrics_are_those_of_the_last_report(machine: Machine) -> None:
    machine.look(DRIFTED)
    state = drifting.state_of(machine.home, "digits")
    assert state is not None
    samples = {s.name: (s.labels, s.value) for f in DriftMetrics(lambda: [state.report]).collect() for s in f.samples}
    labels = {"model": "digits", "version": "2", "column": "input/age"}
    assert samples["shiplift_drift_psi"] == (labels, 0.5)
    assert samples["shiplift_drift_drifted"] == (labels, 1.0)


def test_only_a_hook_may_be_named_by_a_spec() -> None:
    hook = EventTarget(name="retrain", url="https://example.org", hook=True, models=("digits",))
    chat = EventTarget(name="chat", url="https://example.org", kinds=("model.retired",))

    def drifted(model: str, named: str) -> ModelEvent:
        return model_event(EventKind.DRIFTED, model, 1, at=1.0, hook=named)

    assert [hook.wants(drifted("digits", name)) for name in ("retrain", "", "chat")] == [True, False, False]
    assert not hook.wants(drifted("others", "retrain"))
    assert not chat.wants(drifted("digits", "chat"))
