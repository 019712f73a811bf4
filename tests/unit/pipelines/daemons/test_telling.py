"""A cluster's targets hear of its releases, over restarts of who tells them, which keeps nothing on disk."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.pipelines.daemons.telling import Telling
from shiplift.pipelines.engines.argo.engine import ArgoEngine
from shiplift.pipelines.engines.argo.layout import EVENTS
from shiplift.pipelines.engines.argo.releases import concluding
from shiplift.pipelines.engines.argo.told import TargetPosition, ToldTargets
from shiplift.runtime.base.errors import NotFound
from shiplift.runtime.events.targets import EventSettings, EventTarget
from shiplift.runtime.records.request import Request, Trigger
from tests.unit.api_server import ApiServer, running
from tests.unit.pipelines.daemons.test_reconciler import Lab, ended_report, reported

START = 1_800_000_000.0
OPS = EventTarget(name="ops", url="https://events.example")
SHA = "a1" * 20


def iso(at: float) -> str:
    return datetime.fromtimestamp(START + at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Cluster:
    """A namespace with releases, one who tells of them, and the targets' servers; `down` answers 503."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.lab, self.server, self.now = Lab(server, folder), server, START
        self.got: list[tuple[str, str, str]] = []
        self.events: list[dict[str, Any]] = []
        self.down = False
        self.log: list[str] = []
        server.objects["configmaps"][EVENTS] = {"metadata": {"name": EVENTS}}
        self.telling = self.restarted()

    def restarted(self, *targets: EventTarget) -> Telling:
        return Telling(
            EventSettings(targets=targets or (OPS,)),
            "urn:shiplift:x",
            ToldTargets(self.server.api()),
            self.log.append,
            transport=httpx.MockTransport(self._receive),
            clock=lambda: self.now,
        )

    def _receive(self, request: httpx.Request) -> httpx.Response:
        if not self.down:
            event = json.loads(request.content)
            self.events.append(event)
            self.got.append((request.url.host, event["type"].rpartition("release.")[2], event["subject"]))
        return httpx.Response(503 if self.down else 204)

    def release(self, version: int, *, begun: float, ended: float = 0, by_another: bool = False) -> None:
        """A release that began, and ended if it did, so many seconds after the start."""
        request = Request(model="digits", version=version)
        name = self.lab.releases.accept(request, Trigger(kind="git", commit=SHA, repository="acme/models")).name
        report = ended_report(name).model_copy(update={"version": version})
        status = reported(None if by_another or not ended else report, iso(begun))
        if ended:
            self.server.end(name, **status, finishedAt=iso(ended))
        else:
            self.server.workflows[name]["status"] = {"phase": "Running", **status}
        if by_another:
            self.server.workflows[concluding(name)] = {
                "metadata": {"name": concluding(name)},
                "spec": {"workflowTemplateRef": {"name": "conclude"}},
                "status": {"phase": "Succeeded", "finishedAt": iso(ended + 60), **reported(report)},
            }

    def turn(self, at: float) -> list[tuple[str, str]]:
        """Takes a turn at a time after the start; what the targets got."""
        self.now, before = START + at, len(self.got)
        runs = {run.name: run for run in self.lab.releases.everything()}
        self.telling.turn(runs, lambda model, version: f"https://page.example/{model}/{version}")
        return [(kind, subject) for _, kind, subject in self.got[before:]]

    def told(self) -> dict[str, TargetPosition]:
        return ToldTargets(self.server.api()).read()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running() as server:
        yield Cluster(server, tmp_path)


def test_targets_hear_of_each_beginning_and_end_once_in_order(cluster: Cluster) -> None:
    cluster.release(1, begun=-900, ended=-800)
    assert cluster.turn(0) == []  # a new target hears of what happens from now on
    cluster.release(2, begun=10)
    assert cluster.turn(60) == [("started", "digits/2")]
    cluster.release(3, begun=70, ended=90)
    assert cluster.turn(120) == [("started", "digits/3"), ("promoted", "digits/3")]
    assert cluster.turn(180) == []
    data = cluster.events[-1]["data"]
    assert (data["commit"], data["repository"]) == (SHA, "acme/models")
    assert data["link"] == "https://page.example/digits/3"
    assert cluster.told()["ops"].until == START + 90


def test_a_restart_loses_nothing_and_repeats_nothing_that_was_recorded(cluster: Cluster) -> None:
    cluster.turn(0)
    cluster.release(1, begun=10, ended=20)
    cluster.turn(60)
    cluster.release(2, begun=5000, ended=5010)
    cluster.turn(5060)
    cluster.down = True
    cluster.release(3, begun=5070, ended=5080)
    assert cluster.turn(5120) == []
    assert (cluster.told()["ops"].waiting, cluster.told()["ops"].problem) == (2, "it answered 503")
    cluster.release(4, begun=5130, ended=5140)  # while nobody looks
    cluster.down, cluster.telling = False, cluster.restarted(OPS, OPS.model_copy(update={"name": "new"}))
    expected = [(kind, f"digits/{version}") for version in (3, 4) for kind in ("started", "promoted")]
    assert cluster.turn(9000) == expected
    assert cluster.told()["new"].waiting == 0
    cluster.release(5, begun=5075, ended=5078)  # the cluster tells of it late
    cluster.telling = cluster.restarted()
    assert {("started", "digits/5"), ("promoted", "digits/5")} <= set(cluster.turn(9030))
    cluster.telling = cluster.restarted(EventTarget(name="other", url="https://events.example"))
    assert cluster.turn(9060) == []
    assert set(cluster.told()) == {"other"}


def test_a_release_that_another_workflow_concluded_has_ended(cluster: Cluster) -> None:
    cluster.turn(0)
    cluster.release(1, begun=10, ended=20, by_another=True)
    assert cluster.turn(120) == [("started", "digits/1"), ("promoted", "digits/1")]


def test_dead_letters_are_counted_over_restarts(cluster: Cluster) -> None:
    cluster.turn(0)
    cluster.down = True
    cluster.release(1, begun=10, ended=20)
    cluster.turn(60)
    for _ in range(2):
        assert cluster.turn(80 * 3600) == []
        assert (cluster.told()["ops"].dead, cluster.told()["ops"].waiting) == (2, 0)
        cluster.telling = cluster.restarted()
    assert "lost 2 events to the dead letters" in cluster.log[-1]


def test_what_can_t_be_recorded_is_an_error_and_an_entry_that_can_t_be_read_is_a_new_target(cluster: Cluster) -> None:
    cluster.server.objects["configmaps"][EVENTS]["data"] = {"ops": "{"}
    cluster.release(1, begun=10, ended=20)
    assert cluster.turn(60) == []
    del cluster.server.objects["configmaps"][EVENTS]
    cluster.telling = cluster.restarted()
    with pytest.raises(NotFound, match="shiplift install"):
        cluster.turn(120)


def test_the_command_says_which_targets_are_behind(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.server.kubeconfig(tmp_path)))
    engine = ArgoEngine("shiplift", tmp_path)
    assert engine.told() == ()
    cluster.turn(0)
    cluster.down = True
    cluster.release(1, begun=10)
    cluster.turn(60)
    (place,) = engine.told()
    assert (place.target, place.waiting, place.problem) == ("ops", 1, "it answered 503")
    cluster.server.forbidden.add(EVENTS)
    assert ArgoEngine("shiplift", tmp_path).told() == ()
