"""A promotion holds its model's Lease alone, and takes over that of a dead one; leadership has tests of its own."""

import threading
import time
from collections.abc import Iterator

import pytest

from shiplift.runtime.base.errors import Temporary
from shiplift.runtime.serving.kubernetes import lease as leases
from shiplift.runtime.serving.kubernetes.kinds import LEASE
from shiplift.runtime.serving.kubernetes.lease import held
from tests.unit.api_server import ApiServer, running

NAME = "shiplift-digits"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(leases, "_POLL_S", 0.01)
    with running() as api_server:
        yield api_server


def spec(server: ApiServer) -> dict[str, object]:
    return dict(server.objects["leases"][NAME]["spec"])


def taken_by_another(server: ApiServer) -> None:
    """It is another version now: a renewal that read the one before gets a conflict."""
    with server.lock:
        lease = server.objects["leases"][NAME]
        changed = {"metadata": {**lease["metadata"], "resourceVersion": "2"}, "spec": {"holderIdentity": "another"}}
        server.objects["leases"][NAME] = {**lease, **changed}


def test_two_promotions_of_a_model_follow_each_other(server: ApiServer) -> None:
    order: list[str] = []

    def second() -> None:
        with held(server.api(), NAME):
            order.append("second")

    with held(server.api(), NAME):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)  # nothing to wait for: it must not happen
        order.append("first")
    thread.join(timeout=120)
    assert order == ["first", "second"]
    assert spec(server)["holderIdentity"] == ""


def test_one_that_waits_for_too_long_says_so(server: ApiServer) -> None:
    with (
        held(server.api(), NAME),
        pytest.raises(Temporary, match="another promotion has held shiplift-digits"),
        held(server.api(), NAME, wait_s=0.05),
    ):
        pass


def test_what_a_dead_one_held_is_taken_over_once_it_is_stale(server: ApiServer) -> None:
    dead = {"holderIdentity": "dead", "leaseDurationSeconds": 30, "renewTime": "2026-01-01T00:00:00.000000Z"}
    body = {"apiVersion": LEASE.version, "kind": LEASE.name, "metadata": {"name": NAME}}
    server.objects["leases"][NAME] = {**body, "spec": dead}
    with held(server.api(), NAME):
        assert spec(server)["holderIdentity"] != "dead"
        assert spec(server)["leaseTransitions"] == 1


def test_it_is_renewed_while_it_is_held_and_never_taken_back(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_LASTS_S", 0.04)
    with held(server.api(), NAME):
        first = spec(server)["renewTime"]
        deadline = time.monotonic() + 120
        while spec(server)["renewTime"] == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert spec(server)["renewTime"] != first
        taken_by_another(server)
        time.sleep(0.1)  # nothing to wait for: it must not happen
    assert spec(server) == {"holderIdentity": "another"}
