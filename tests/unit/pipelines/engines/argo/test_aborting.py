"""An abort on a cluster: what it writes, and what it waits for."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shiplift.pipelines.engines.argo import aborting, shield
from shiplift.pipelines.engines.argo.aborting import Aborting
from shiplift.pipelines.engines.argo.releases import ArgoReleases
from shiplift.pipelines.engines.argo.workflows import SHIELDED
from shiplift.runtime.base.errors import Aborted, NothingToAbort
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.promotion import Abort, Moving
from shiplift.runtime.records.release import ReleaseReport, StageRuns
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.operator.resources import PROMOTION
from tests.unit.api_server import ApiServer, running

NAME, OLD, NEW = "release-digits-2", "digits-1-old", "digits-2-new"
ANA = Abort(by="ana", reason="too slow")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(aborting, "_POLL_S", 0.01)
    with running() as server:
        parameters = {"request": Request(model="digits", version=2), "trigger": Trigger(requested_at=7)}
        node = {"type": "Pod", "id": "n", "templateName": "admit", "startedAt": "2026-01-01T00:00:00Z"}
        server.workflows[NAME] = {
            "metadata": {"name": NAME, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {}, "annotations": {}},
            "spec": {
                "workflowTemplateRef": {"name": "release"},
                "arguments": {
                    "parameters": [{"name": key, "value": each.model_dump_json()} for key, each in parameters.items()]
                },
            },
            "status": {"phase": "Running", "nodes": {"n": node}},
        }
        server.workflows[NAME]["metadata"]["labels"]["shiplift.dev/model"] = "digits"
        yield server


def abort(server: ApiServer, order: Abort = ANA) -> Any:
    releases = ArgoReleases(server.api(), lambda _model, _version: {})
    return Aborting(releases, server.api(), server.api("models")).abort("digits", order)


def when(condition: Callable[[], Any], act: Callable[[], None]) -> threading.Thread:
    """Acts once something is true, as a controller does."""

    def wait() -> None:
        while not condition():
            ended.wait(0.005)
        act()

    ended = threading.Event()
    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def service(server: ApiServer, *, committed: bool = False) -> dict[str, Any]:
    """A service whose traffic a promotion moves."""
    promotion = Moving(version=2, requested_at=7, revision=NEW, before=OLD, committed=committed)
    body = {
        "metadata": {"name": "digits", "generation": 2, "annotations": {PROMOTION: promotion.model_dump_json()}},
        "spec": {"model": "digits", "revision": NEW, "replicas": 1},
        "status": {"observedGeneration": 2, "weights": [{"revision": OLD, "percent": 50}]},
    }
    server.objects["tritonservices"]["digits"] = body
    return body


def concluded(server: ApiServer, *, code: int = Aborted.exit_code, alias: str = "") -> None:
    """What the exit handler leaves."""
    failure = None if alias else Failure.of(Aborted(ANA.sentence, do="Look."))
    report = ReleaseReport(
        model="digits",
        version=2,
        verdict=Outcome.INCONCLUSIVE,
        alias=alias,
        endpoint=None,
        stages=(),
        checks=(),
        release=NAME,
        reason="",
        exit_code=code,
        failure=failure,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
    )
    outputs = {"parameters": [{"name": "release_report", "value": report.model_dump_json()}]}
    server.end(NAME, "Failed", nodes={"n9": {"finishedAt": "2026-01-01T00:09:00Z", "outputs": outputs}})


def test_before_its_promotion_a_release_is_stopped_and_says_who_did_it(server: ApiServer) -> None:
    body = server.workflows[NAME]
    when(lambda: body["spec"].get("shutdown") == "Stop", lambda: concluded(server))
    answer = abort(server)
    assert (answer.release, answer.champion, answer.message) == (NAME, 0, "aborted by ana: too slow")
    assert shield.ordered(body) == ANA
    assert abort(server, Abort(by="bob")) == answer  # the second time there is nothing to do


def test_while_the_traffic_moves_the_service_is_set_back_and_the_workflow_runs_on(server: ApiServer) -> None:
    body = service(server)
    server.workflows[NAME]["metadata"]["annotations"][SHIELDED] = StageRuns(under_way="promote").model_dump_json()

    def follow() -> None:
        ready = {"type": "Ready", "status": "True", "reason": "Serving"}
        weights = [{"revision": OLD, "percent": 100}]
        body["status"] = {
            "observedGeneration": 2,
            "revision": OLD,
            "version": 1,
            "weights": weights,
            "conditions": [ready],
        }

    when(lambda: body["spec"]["revision"] == OLD, follow)
    answer = abort(server)
    assert (answer.version, answer.champion, answer.message) == (2, 1, "aborted by ana: too slow")
    assert body["spec"]["rollout"] == {"canaryPercent": [], "holdSeconds": 0.0}
    assert "shutdown" not in server.workflows[NAME]["spec"]


def test_a_promotion_that_is_committed_is_too_late(server: ApiServer) -> None:
    body = service(server, committed=True)
    when(lambda: shield.ordered(server.workflows[NAME]), lambda: concluded(server, code=0, alias="champion"))
    with pytest.raises(NothingToAbort, match="was promoted before it could be aborted"):
        abort(server)
    assert body["spec"]["revision"] == NEW


@pytest.mark.parametrize("nodes", [{}, None])
def test_without_a_release_that_has_begun_there_is_nothing_to_abort(server: ApiServer, nodes: Any) -> None:
    if nodes is None:
        del server.workflows[NAME]
    else:
        server.workflows[NAME]["status"] = {"phase": "Running", "nodes": nodes}
    with pytest.raises(NothingToAbort, match="waits in the queue" if nodes is not None else "is under way"):
        abort(server)


def test_the_cluster_says_who_the_user_is(server: ApiServer) -> None:
    server.created = lambda body: body.update(status={"userInfo": {"username": "ana"}})
    assert server.api().user() == "ana"
    server.faults = [403]  # a cluster without that API
    assert server.api().user() == ""
