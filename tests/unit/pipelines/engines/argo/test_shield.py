"""A Workflow that is stopped while a shielded stage runs: whoever writes first is seen by the other."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shiplift.pipelines.engines.argo import shield
from shiplift.pipelines.engines.argo.ending import ending_of
from shiplift.pipelines.engines.argo.pod import walk
from shiplift.pipelines.engines.argo.pod.call import Call
from shiplift.pipelines.engines.argo.workflows import SHIELDED
from shiplift.pipelines.graph import Pipeline, Placement, Stage
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import Aborted, CanaryFailed, Cancelled, NotFound, Temporary
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.promotion import Abort
from shiplift.runtime.records.release import Ending, StageRun, StageRuns, Taken
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.records.verdict import Verdict
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import check, site

NAME = "release-1"
HERE = '{"text": "here"}'
JUDGED = tuple(StageRun(name=name) for name in ("deploy", "load_test", "gate"))
BEFORE = StageRuns(runs=JUDGED, under_way="promote")
AFTER = StageRuns(runs=(*JUDGED, StageRun(name="promote")))


class Asked(Record):
    text: str


class Moved(Record):
    text: str


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as server:
        server.workflows[NAME] = workflow()
        yield server


def workflow(*nodes: dict[str, Any], shutdown: str = "", **notes: str) -> dict[str, Any]:
    return {
        "metadata": {"name": NAME, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": notes},
        "spec": {"shutdown": shutdown} if shutdown else {},
        "status": {"nodes": {node["id"]: node for node in nodes}},
    }


def said(server: ApiServer) -> StageRuns:
    """What the Workflow says of its shielded stage's pod."""
    return StageRuns.model_validate_json(server.workflows[NAME]["metadata"]["annotations"][SHIELDED])


def moving(server: ApiServer, home: Path, monkeypatch: pytest.MonkeyPatch, step: Any) -> Call:
    """The call of a pod whose only stage is shielded."""
    there = site(home).model_copy(
        update={"place": Cluster(namespace="shiplift", serving_namespace="shiplift-serving", server_image="x")}
    )
    monkeypatch.setattr(Call, "api", property(lambda _: server.api()))
    stages = (Stage(step, Placement(shielded=True, keep="never")),)
    return Call(stages=stages, out=home / "out", arguments={"site": there}, workflow=NAME)


def test_a_shielded_stage_says_that_it_begins_and_how_it_went(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def move() -> Moved:
        seen.append(said(server))
        return Moved(text="there")

    assert walk.run(moving(server, tmp_path, monkeypatch, move)) == 0
    assert [report.under_way for report in seen] == ["move"]
    assert [(run.name, run.outcome) for run in said(server).runs] == [("move", "ok")]
    assert said(server).under_way == ""


def test_it_does_not_begin_once_its_workflow_is_stopped(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move() -> Moved:
        raise AssertionError("it began")

    server.workflows[NAME]["spec"]["shutdown"] = "Stop"
    call = moving(server, tmp_path, monkeypatch, move)
    assert walk.run(call) == Cancelled.exit_code
    assert [(run.name, run.outcome) for run in said(server).runs] == [("move", "cancelled")]
    assert said(server).under_way == ""
    assert walk.run(replace(call, workflow="gone")) == Temporary.exit_code


def test_what_an_earlier_attempt_said_is_forgotten(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look() -> Moved:
        seen.append(said(server))
        return Moved(text="")

    server.workflows[NAME]["metadata"]["annotations"][SHIELDED] = AFTER.model_dump_json()
    call = moving(server, tmp_path, monkeypatch, look)
    walk.run(replace(call, stages=(Stage(look, Placement(keep="never")), *call.stages)))
    assert seen[0] == StageRuns()


class Concluded(Record):
    stages: tuple[StageRun, ...]
    cancelled: bool
    verdict: Verdict | None


def wind_up(ending: Ending) -> Concluded:
    return Concluded(stages=ending.stages, cancelled=ending.failure is not None, verdict=ending.verdict)


class Kept:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}

    def get(self, key: str, stage: str, kind: type[Any]) -> Any:
        record = self.records.get((key, stage))
        assert record is None or isinstance(record, kind)
        return record

    def put(self, key: str, stage: str, record: Record) -> None:
        self.records[key, stage] = record

    def explain(self, error: NotFound) -> NotFound:
        return error


def killed(server: ApiServer) -> None:
    """A Workflow that was stopped, whose pod was killed while it moved traffic, so that Argo knows no record of it."""
    node = {
        "id": "move-1",
        "type": "Pod",
        "templateName": "move",
        "phase": "Failed",
        "message": "workflow shutdown",
        "startedAt": "2026-01-01T00:00:01Z",
        "finishedAt": "2026-01-01T00:00:09Z",
    }
    runs = StageRuns(under_way="move")
    server.workflows[NAME] = workflow(node, shutdown="Stop", **{SHIELDED: runs.model_dump_json()})


def exit_handler(
    server: ApiServer, home: Path, monkeypatch: pytest.MonkeyPatch, move: Any, halt: Any = None, **taken: str
) -> tuple[int, dict[str, Any]]:
    """Runs the exit handler of a pipeline with one shielded stage; its exit code and its record."""
    at = Placement(shielded=True, keep="never")
    last, shielded = Stage(wind_up, Placement(keep="never")), Stage(move, replace(at, halt=halt) if halt else at)
    release = Pipeline("release", inputs=(Asked, Verdict), stages=(shielded,), on_exit=last)
    monkeypatch.setattr(Call, "api", property(lambda _: server.api()))
    ledger: Any = Kept()
    if taken:
        ledger.put(shield.key(NAME, shielded), shielded.name, Taken(texts=taken))
    call = Call(
        stages=(last,), out=home / "out", arguments={"site": site(home)}, workflow=NAME, broker=ledger, pipeline=release
    )
    code, file = walk.run(call), home / "out" / "concluded.json"
    return code, json.loads(file.read_text()) if file.exists() else {}


def test_the_exit_handler_finishes_what_was_killed_half_way(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []

    def move(asked: Asked) -> Moved:
        moved.append(asked.text)
        return Moved(text="there")

    killed(server)
    code, record = exit_handler(server, tmp_path, monkeypatch, move, asked=HERE)
    assert (code, moved, record["cancelled"]) == (0, ["here"], False)
    assert [(run["name"], run["outcome"]) for run in record["stages"]] == [("move", "ok")]
    assert said(server).under_way == ""


def test_the_verdict_is_reported_that_argo_knows_nothing_of(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(verdict: Verdict) -> Moved:
        return Moved(text=verdict.outcome)

    verdict = Verdict.of((check(),)).model_dump_json()
    killed(server)
    _, record = exit_handler(server, tmp_path, monkeypatch, move, verdict=verdict)
    assert record["verdict"] == json.loads(verdict)


def test_what_fails_then_too_was_cancelled(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def move(asked: Asked) -> Moved:
        raise CanaryFailed("2 of 60 requests failed", do="Look.")

    killed(server)
    code, record = exit_handler(server, tmp_path, monkeypatch, move, asked=HERE)
    assert (code, record["cancelled"], record["stages"][0]["outcome"]) == (0, True, "failed")


def test_while_what_it_needs_is_away_the_exit_handler_is_tried_again(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(asked: Asked) -> Moved:
        raise Temporary("the registry does not answer", do="Wait.")

    killed(server)
    assert exit_handler(server, tmp_path, monkeypatch, move, asked=HERE) == (Temporary.exit_code, {})
    assert said(server).under_way == "move"


def test_what_a_stage_takes_is_in_the_ledger_before_it_begins(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Argo may never report what a killed pod left."""
    ledger: Any = Kept()
    seen = []

    def move(asked: Asked) -> Moved:
        seen.extend(ledger.records.values())
        return Moved(text=asked.text)

    call = replace(moving(server, tmp_path, monkeypatch, move), broker=ledger)
    call.arguments["asked"] = Asked(text="here")
    assert walk.run(call) == 0
    assert [json.loads(record.texts["asked"]) for record in seen] == [{"text": "here"}]
    assert list(ledger.records) == [(shield.key(NAME, call.stages[0]), "move")]
    assert shield.key("release-2", call.stages[0]) != shield.key(NAME, call.stages[0])


@pytest.mark.parametrize("moved", [True, False])
def test_what_a_person_aborted_runs_again_only_to_give_its_traffic_back(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: bool
) -> None:
    """A pod that is lost and started again asks its place whether there is something to give back."""
    halted, ran = [], []

    def halt(order: Abort, arguments: Any) -> bool:
        halted.append((order.by, sorted(arguments)))
        return moved

    def move(asked: Asked) -> Moved:
        ran.append(asked.text)
        raise Aborted("aborted by ana: too slow", do="Look.")

    shield.abort(server.api(), NAME, Abort(by="ana", reason="too slow"))
    assert shield.abort(server.api(), NAME, Abort(by="bob")).by == "ana"
    call = moving(server, tmp_path, monkeypatch, move)
    call.arguments["asked"] = Asked(text="here")
    call = replace(call, stages=(Stage(move, replace(call.stages[0].at, halt=halt)),))
    assert walk.run(call) == Aborted.exit_code
    assert (halted, ran) == ([("ana", ["asked"])], ["here"] if moved else [])
    assert [(run.outcome, run.message[:24]) for run in said(server).runs] == [("aborted", "aborted by ana: too slow")]
    failure = ending_of(server.workflows[NAME], RELEASE).failure
    assert failure is not None
    assert (failure.kind, failure.what) == ("Aborted", "aborted by ana: too slow")


def test_a_stopped_workflow_s_traffic_goes_back(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []

    def halt(order: Abort, _: Any) -> bool:
        orders.append(order.sentence)
        return False

    def move(asked: Asked) -> Moved:
        raise AssertionError("it was run")

    killed(server)
    code, record = exit_handler(server, tmp_path, monkeypatch, move, halt=halt, asked=HERE)
    assert (code, record["cancelled"]) == (0, True)
    assert orders == ["aborted by someone: its Workflow was stopped"]


@pytest.mark.parametrize("missing", ["shutdown", "record", "begun", "field", "name"])
def test_nothing_else_is_finished(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def move(asked: Asked) -> Moved:
        raise AssertionError("it was run")

    killed(server)
    body = server.workflows[NAME]
    if missing == "shutdown":
        body["spec"] = {}
    if missing == "begun":
        body["metadata"]["annotations"] = {}
    written_before_an_upgrade = {"field": {"asked": '{"of": "old"}'}, "name": {"told": HERE}}
    taken = {"record": {}, **written_before_an_upgrade}.get(missing, {"asked": HERE})
    code, record = exit_handler(server, tmp_path, monkeypatch, move, **taken)
    assert (code, record["cancelled"]) == (0, True)


def stopped_at_the_gate() -> dict[str, Any]:
    """The node of the pod that promotes, with the outputs that Argo kept when the Workflow was stopped."""
    gives = {
        "stage_runs": BEFORE.model_dump_json(),
        "verdict": Verdict.of((check(),)).model_dump_json(),
    }
    return {
        "id": "deliver",
        "type": "Pod",
        "templateName": "deliver",
        "phase": "Failed",
        "startedAt": "2026-01-01T00:00:01Z",
        "finishedAt": "2026-01-01T00:00:09Z",
        "message": "workflow shutdown with strategy:  Stop",
        "outputs": {"parameters": [{"name": name, "value": value} for name, value in gives.items()]},
    }


def test_a_release_that_was_promoted_before_it_could_be_stopped_ended_well() -> None:
    ending = ending_of(workflow(stopped_at_the_gate(), shutdown="Stop", **{SHIELDED: AFTER.model_dump_json()}), RELEASE)
    assert ending.failure is None
    assert [(run.name, run.outcome) for run in ending.stages[-2:]] == [("gate", "ok"), ("promote", "ok")]


@pytest.mark.parametrize("promote", ["failed", "cancelled", ""])
def test_one_whose_promotion_failed_was_cancelled(promote: Any) -> None:
    runs = (*JUDGED, *([StageRun(name="promote", outcome=promote)] if promote else []))
    report = StageRuns(runs=runs, under_way="" if promote else "promote")
    ending = ending_of(
        workflow(stopped_at_the_gate(), shutdown="Stop", **{SHIELDED: report.model_dump_json()}), RELEASE
    )
    assert ending.failure is not None
    assert ending.failure.kind == "Cancelled"
    assert ending.stages[-1].name == "promote"
    assert ending.stages[-1].outcome != "ok"
