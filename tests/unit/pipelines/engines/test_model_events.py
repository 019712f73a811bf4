"""What happened is listed, and followed, alike on both engines."""

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shiplift.pipelines.engines.argo import model_events as on_argo
from shiplift.pipelines.engines.argo.releases import ArgoReleases
from shiplift.pipelines.engines.local.engine import LocalEngine
from shiplift.runtime.events.emit import emit
from shiplift.runtime.events.event import model_event
from shiplift.runtime.events.kinds import EventKind
from shiplift.runtime.records.request import Request, Trigger


def test_a_machine_s_events_are_listed_and_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def happens(number: int, model: str = "digits") -> None:
        emit(tmp_path, model_event(EventKind.PROMOTED, model, number, at=number))

    monkeypatch.setattr(time, "sleep", lambda _: happens(9))
    local = LocalEngine(tmp_path)
    assert (list(local.model_events("", newest=5, follow=False)), local.told()) == ([], ())
    for number in (1, 2, 3):
        happens(number)
    happens(4, "letters")
    assert [each.version for each in local.model_events("digits", newest=2, follow=False)] == [2, 3]
    assert [each.version for each in islice(local.model_events("", newest=1, follow=True), 2)] == [4, 9]


class Run(SimpleNamespace):
    """A Workflow of a release."""

    def __init__(self, version: int, begun_at: float, **fields: Any) -> None:
        request = Request(model="digits", version=version)
        defaults = {
            "active": True,
            "report": None,
            "finished_at": 0.0,
            "trigger": Trigger(kind="webhook"),
            "template": "release",
        }
        super().__init__(name=f"r{version}", request=request, first_pod_at=begun_at, **defaults | fields)


def test_a_cluster_s_events_are_those_of_its_workflows(monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(outcome="refused", alias="", reason="too slow", model="digits", version=1, release="r1")
    runs = [Run(2, 7.0), Run(1, 5.0, active=False, report=done, finished_at=6.0), Run(4, 0.0)]
    monkeypatch.setattr(time, "sleep", lambda _: runs.append(Run(3, 9.0)))

    class Releases:
        def everything(self, *, model: str) -> Iterator[Run]:
            assert model == "digits"
            yield from runs

    releases = cast("ArgoReleases", Releases())
    found = on_argo.model_events(releases, "digits", newest=2, follow=True)
    assert [(each.kind, each.version) for each in islice(found, 3)] == [
        (EventKind.REFUSED, 1),
        (EventKind.STARTED, 2),
        (EventKind.STARTED, 3),
    ]
