"""Every route is asked, also when nothing happens: what clients see decides readiness."""

import pytest

from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.operator.evidence import Key, Route
from shiplift.runtime.serving.operator.measurements import AskRoutes
from shiplift.runtime.serving.operator.observed import GatewaySeen
from shiplift.runtime.serving.operator.resources import ConditionType, Reason
from tests.unit.runtime.serving.operator.world import ROUTES, World, name_of


def serving() -> World:
    world = World()
    world.run(60, until=World.settled)
    world.run(10)
    world.writes.clear()
    return world


@pytest.mark.parametrize("route", ["gRPC", "HTTP", "HTTP by path"])
def test_a_route_that_does_not_answer_ends_readiness_and_is_written_again(route: Route) -> None:
    world = serving()
    world.answers[route] = "does not answer: UNAVAILABLE"
    began = world.now
    world.run(60, until=lambda w: not w.status.holds(ConditionType.READY))
    assert world.now - began <= 7
    ready = world.status.condition(ConditionType.READY)
    assert ready is not None
    assert ready.reason is Reason.ROUTE_FAILED
    assert f"{route}: does not answer" in ready.message
    assert world.status.holds(ConditionType.RECONCILING)
    assert world.status.holds(ConditionType.AVAILABLE)
    world.run(20)
    written = [write for write in world.writes if write.startswith("apply")]
    assert {"apply HTTPRoute digits", "apply HTTPRoute digits-path", "apply GRPCRoute digits"} <= set(written)
    assert written.count("apply GRPCRoute digits") <= 2  # not for ever
    world.answers.clear()
    world.run(10, until=World.settled)
    assert world.settled()


def test_one_lost_request_changes_nothing() -> None:
    world = serving()
    world.answers["HTTP"] = "does not answer: reset"
    asked = world.evidence.routes_at
    world.run(60, until=lambda w: w.evidence.routes_at != asked)
    world.answers.clear()
    world.run(30)
    assert world.writes == []
    assert world.status.holds(ConditionType.READY)


def test_an_addition_to_a_route_is_seen_at_once() -> None:
    world = serving()
    rule = world.live["HTTPRoute", "digits"]["spec"]["rules"][0]
    rule["filters"] = [{"type": "RequestRedirect"}]
    world.live["HTTPRoute", "digits"]["metadata"]["generation"] += 1
    world.turn()
    assert "apply HTTPRoute digits" in world.writes
    assert "filters" not in world.live["HTTPRoute", "digits"]["spec"]["rules"][0]
    assert weights_of(world.live[ROUTES[1]]) == {name_of(1): 100}


def test_without_a_heartbeat_no_route_is_asked() -> None:
    world = serving()
    world.want(heartbeat=world.spec.heartbeat.model_copy(update={"interval_seconds": 0}))
    world.run(10)
    world.answers["HTTP"] = "does not answer"
    world.run(60)
    assert world.status.holds(ConditionType.READY)


def test_a_gateway_that_takes_no_connections_ends_readiness_at_the_next_look() -> None:
    world = serving()
    asked = world.evidence.routes_at
    world.gateway = GatewaySeen(accepts=False, changed_at=world.now)
    world.turn()
    ready = world.status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", Reason.ROUTE_FAILED)
    assert "takes no connections at 10.0.0.1" in ready.message
    assert world.status.holds(ConditionType.AVAILABLE)
    world.run(30)
    assert world.evidence.routes_at == asked  # nobody would answer
    assert not any(write.startswith("apply") for write in world.writes)


def test_it_is_ready_again_once_a_route_has_answered_through_it() -> None:
    world = serving()
    world.gateway = GatewaySeen(accepts=False, changed_at=world.now)
    world.run(20)
    world.answers["HTTP"] = "does not answer: it has no routes yet"
    world.gateway = GatewaySeen(accepts=True, changed_at=world.now)
    world.run(3)
    assert not world.status.holds(ConditionType.READY)
    world.answers.clear()
    assert seconds_until_ready(world) <= 1.0
    world.gateway = GatewaySeen(accepts=False, changed_at=world.now)
    world.turn()
    world.gateway = GatewaySeen(accepts=True, changed_at=world.now)
    assert seconds_until_ready(world) <= 0.5


@pytest.mark.parametrize("key", ROUTES)
def test_a_route_that_was_deleted_is_put_back_and_asked_in_the_same_look(key: Key) -> None:
    world = serving()
    del world.live[key]
    world.turn()
    assert key in world.live
    ready = world.status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", Reason.REPAIRING)
    assert world.evidence.routes  # asked after it was put back
    assert world.last is not None
    (asked,) = world.last.measure  # nothing else, which would hold up saying that they answer
    assert isinstance(asked, AskRoutes)
    assert asked.patience_s > 0
    world.turn()
    assert world.status.holds(ConditionType.READY)
    assert world.evidence.verified == name_of(1)


def test_a_route_that_was_put_back_and_does_not_answer_is_not_called_ready() -> None:
    world = serving()
    del world.live[ROUTES[1]]
    world.answers["HTTP"] = "does not answer: 404"
    world.run(5)
    ready = world.status.condition(ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", Reason.ROUTE_FAILED)
    assert "HTTP: does not answer: 404" in ready.message
    world.answers.clear()
    assert seconds_until_ready(world) <= 1.0


def test_a_route_that_led_elsewhere_is_verified_again_request_by_request() -> None:
    world = World()
    world.run(60, until=World.settled)
    world.want(2)
    world.run(300, until=lambda w: w.status.weight == 100 and w.status.revision == name_of(2))
    backends = [name_of(1), name_of(2)]
    assert set(weights_of(world.live[ROUTES[1]])) <= set(backends)
    rule = world.live[ROUTES[1]]["spec"]["rules"][0]
    rule["backendRefs"] = [{**rule["backendRefs"][0], "name": name_of(1), "weight": 100}]
    world.turn()
    assert world.evidence.verified == ""


def seconds_until_ready(world: World) -> float:
    began = world.now
    for _ in range(20):
        looked_at = world.now
        world.turn()
        if world.status.holds(ConditionType.READY):
            return looked_at - began
    raise AssertionError("it is never ready")


def test_the_last_pod_answers_while_it_ends() -> None:
    world = serving()
    world.broken.add(name_of(1))
    world.ending = frozenset({name_of(1)})
    world.turn()
    assert world.status.holds(ConditionType.AVAILABLE)
    assert world.status.holds(ConditionType.READY)
    assert world.status.holds(ConditionType.RECONCILING)
    world.ending = frozenset()
    world.turn()
    assert not world.status.holds(ConditionType.AVAILABLE)
    assert not world.status.holds(ConditionType.READY)


def test_without_a_heartbeat_a_gateway_that_takes_connections_again_is_enough() -> None:
    world = serving()
    world.want(heartbeat=world.spec.heartbeat.model_copy(update={"interval_seconds": 0}))
    world.run(10)
    world.gateway = GatewaySeen(accepts=False, changed_at=world.now)
    world.turn()
    assert not world.status.holds(ConditionType.READY)
    world.gateway = GatewaySeen(accepts=True, changed_at=world.now)
    world.turn()
    assert world.status.holds(ConditionType.READY)


def test_routes_that_fail_because_there_are_no_pods_cause_no_rush() -> None:
    world = serving()
    world.broken.add(name_of(1))
    world.answers.update(dict.fromkeys(("gRPC", "HTTP", "HTTP by path"), "does not answer"))
    world.run(20)
    assert world.status.condition(ConditionType.READY).reason is Reason.NO_PODS  # type: ignore[union-attr]
    began, looks = world.now, 0
    while world.now < began + 10:
        world.turn()
        looks += 1
    assert looks <= 22
