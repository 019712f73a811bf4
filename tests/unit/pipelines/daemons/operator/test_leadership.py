from functools import partial
from typing import Any

import pytest

from shiplift.pipelines.daemons.operator.leadership import LASTS_S, RENEW_S, Leadership, identity_of, pod_is_gone
from tests.unit.api_server import ApiServer, running

NAME = "shiplift-operator.leader"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def leader(server: ApiServer, clock: Clock, pod: str) -> Leadership:
    api = server.api()
    identity = identity_of(pod, f"uid-{pod}") if pod else ""
    return Leadership(api, NAME, identity=identity, is_gone=partial(pod_is_gone, api), clock=clock)


def run(server: ApiServer, name: str, **changes: Any) -> None:
    server.objects["pods"][name] = {"metadata": {"name": name, "uid": f"uid-{name}"}, **changes}


def test_only_one_leads_until_it_lets_go() -> None:
    with running() as server:
        clock = Clock()
        run(server, "a")
        first, second = leader(server, clock, "a"), leader(server, clock, "b")
        for _ in range(20):  # longer than a Lease lasts
            first.renew()
            second.renew()
            assert (first.holds, second.holds) == (True, False)
            clock.now += RENEW_S
        first.release()
        second.renew()
        assert (first.holds, second.holds) == (False, True)


def test_a_killed_process_continues_at_once_in_its_restarted_container() -> None:
    with running() as server:
        clock = Clock()
        run(server, "a")
        leader(server, clock, "a").renew()
        restarted = leader(server, clock, "a")
        restarted.renew()
        assert restarted.holds


@pytest.mark.parametrize("end", ["deleted", "replaced", "failed"])
def test_a_holder_whose_pod_is_gone_is_not_waited_for(end: str) -> None:
    with running() as server:
        clock = Clock()
        run(server, "a")
        leader(server, clock, "a").renew()
        second = leader(server, clock, "b")
        second.renew()
        assert not second.holds
        if end == "deleted":
            del server.objects["pods"]["a"]
        elif end == "replaced":
            server.objects["pods"]["a"]["metadata"]["uid"] = "another"
        else:
            server.objects["pods"]["a"]["status"] = {"phase": "Failed"}
        second.renew()
        assert second.holds


@pytest.mark.parametrize("pod", ["a", ""])
def test_a_holder_that_is_silent_is_waited_for(pod: str) -> None:
    with running() as server:
        clock = Clock()
        run(server, "a", metadata={"name": "a", "uid": "uid-a", "deletionTimestamp": "2026-01-01T00:00:00Z"})
        first, second = leader(server, clock, pod), leader(server, clock, "b")
        first.renew()
        second.renew()
        began = clock.now
        while not second.holds:
            clock.now += RENEW_S
            assert not (first.holds and second.holds)
            second.renew()
        assert LASTS_S < clock.now - began <= LASTS_S + 2 * RENEW_S


def test_clocks_that_differ_do_no_harm() -> None:
    with running() as server:
        clock = Clock()
        first, second = leader(server, clock, ""), leader(server, clock, "b")
        first.renew()
        server.objects["leases"][NAME]["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"  # far behind ours
        second.renew()
        assert not second.holds


def test_a_leader_that_can_not_renew_stops_before_another_may_begin() -> None:
    with running() as server:
        clock = Clock()
        run(server, "a")
        first, second = leader(server, clock, "a"), leader(server, clock, "b")
        first.renew()
        second.renew()
        clock.now += LASTS_S - 1
        assert not first.holds
        second.renew()
        assert not second.holds


def test_a_lease_that_was_deleted_is_made_again() -> None:
    with running() as server:
        clock = Clock()
        first = leader(server, clock, "")
        first.renew()
        del server.objects["leases"][NAME]
        first.renew()
        assert first.holds
        assert server.objects["leases"][NAME]["spec"]["leaseTransitions"] == 1
