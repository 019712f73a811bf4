"""Each event of a service's objects wakes it, whatever happens to the watches."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shiplift.pipelines.daemons.operator import watches as watching
from shiplift.pipelines.daemons.operator.watches import Watches, pause_after, services_of
from shiplift.runtime.serving.kubernetes.kinds import POD, TRITON_SERVICE, ResourceKind
from tests.unit.api_server import ApiServer, running


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"kind": "TritonService", "metadata": {"name": "digits"}}, "digits"),
        ({"kind": "TritonRevision", "metadata": {"name": "x"}, "spec": {"package": {"model": "digits"}}}, "digits"),
        ({"kind": "Pod", "metadata": {"name": "x", "labels": {"shiplift.dev/model": "digits"}}}, "digits"),
        ({"kind": "Pod", "metadata": {"name": "x"}}, ""),
    ],
)
def test_which_service_an_event_is_about(body: Any, name: str) -> None:
    assert services_of(body) == ((name,) if name else ())


def happening(version: int, model: str, event: str = "MODIFIED") -> dict[str, Any]:
    meta = {"name": "p", "resourceVersion": str(version), "labels": {"shiplift.dev/model": model}}
    return {"type": event, "object": {"apiVersion": "v1", "kind": "Pod", "metadata": meta}}


EXPIRED = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


class Watched:
    """Watches that run, their server, and what they woke."""

    def __init__(self, server: ApiServer, *kinds: ResourceKind) -> None:
        self.server, self.woken = server, list[str]()
        self.watches = Watches(server.api("models"), kinds, self.woken.append)

    @property
    def of_pods(self) -> list[str]:
        return [since for plural, since in self.server.watched if plural == "pods"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(watching, "_REST_S", 0.01)
    monkeypatch.setattr(watching, "_BRIEF_S", 0.01)
    with running() as api_server:
        yield api_server


@contextmanager
def watched(server: ApiServer, *kinds: ResourceKind) -> Iterator[Watched]:
    watched = Watched(server, *kinds)
    watched.watches.start()
    try:
        yield watched
    finally:
        watched.watches.stop()
        for kind in kinds:
            server.happened[kind.plural].put(None)


def test_an_event_wakes_its_service_and_nothing_is_written(server: ApiServer) -> None:
    with watched(server, TRITON_SERVICE, POD) as seen:
        server.happened["pods"].put(happening(1, "digits", "ADDED"))
        until(lambda: seen.woken)
        assert seen.watches.alive()
    assert seen.woken == ["digits"]
    assert {method for method, _ in server.asked} == {"GET"}


def test_a_watch_that_ends_goes_on_where_it_was(server: ApiServer) -> None:
    with watched(server, POD) as seen:
        bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "9"}}}
        for event in (happening(7, "a"), None, happening(8, "b"), bookmark, None, happening(10, "c")):
            server.happened["pods"].put(event)
        until(lambda: len(seen.woken) == 3)
        assert seen.of_pods == ["", "7", "9"]
    assert seen.woken == ["a", "b", "c"]


def test_watches_that_the_server_ends_at_once_begin_again_after_a_pause(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_BRIEF_S", 0.1)
    for _ in range(200):
        server.happened["pods"].put(None)
    started = time.monotonic()
    with watched(server, POD) as seen:
        until(lambda: len(seen.of_pods) == 5)
        assert time.monotonic() - started >= 4 * 0.05


def test_pauses_differ_and_a_watch_that_lasted_needs_none() -> None:
    pauses = {pause_after(lasted_s=0) for _ in range(100)}
    assert len(pauses) > 50
    assert all(0.5 <= pause_s <= 1.5 for pause_s in pauses)
    assert pause_after(lasted_s=300) == 0


def test_after_a_gap_it_begins_with_all_objects(server: ApiServer) -> None:
    with watched(server, POD) as seen:
        for event in (happening(7, "a"), None, EXPIRED, None, happening(3, "b", "ADDED")):
            server.happened["pods"].put(event)
        until(lambda: len(seen.woken) == 2)
        assert seen.of_pods[:3] == ["", "7", ""]


@pytest.mark.parametrize("fault", [0, 403, 404, 500, 503])
def test_a_watch_that_fails_begins_again_and_stops_no_other(server: ApiServer, fault: int) -> None:
    server.faults = [fault]
    with watched(server, TRITON_SERVICE, POD) as seen:
        until(lambda: len(server.watched) == 2)
        server.happened["pods"].put(happening(1, "digits"))
        server.happened["tritonservices"].put(happening(1, "other"))
        until(lambda: len(seen.woken) == 2)
        assert seen.watches.alive()


def test_one_that_fails_for_long_is_told(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_UNHEALTHY_S", 0.05)
    with watched(server, POD) as seen:
        server.faults = [403] * 1000
        server.happened["pods"].put(None)
        until(lambda: not seen.watches.alive())
        server.faults = []
        until(seen.watches.alive)


def test_an_event_that_makes_no_sense_is_no_end(server: ApiServer) -> None:
    with watched(server, POD) as seen:
        for event in ({"type": "MODIFIED"}, None, {"odd": 1}, None, happening(1, "digits")):
            server.happened["pods"].put(event)
        until(lambda: seen.woken == ["digits"])
