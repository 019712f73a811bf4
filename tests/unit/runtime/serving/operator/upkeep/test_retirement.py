"""A pod that is replaced loses its traffic before it is deleted."""

from shiplift.runtime.serving.operator.observed import Observed, RetiredPod
from shiplift.runtime.serving.operator.upkeep import retirement
from tests.unit.runtime.serving.operator.world import World, name_of


def serving(replicas: int) -> World:
    world = World(replicas=replicas)
    world.run(60, until=World.settled)
    world.run(10)
    world.writes.clear()
    return world


def test_it_leaves_the_route_then_another_starts_then_it_is_deleted() -> None:
    world = serving(replicas=2)
    pod = world.ready(name_of(1))[0]
    world.silent.add(pod)
    world.run(60, until=lambda w: w.retired)
    left_at = world.now
    assert f"patch Pod {pod}" in world.writes
    assert f"delete Pod {pod}" not in world.writes
    world.run(60, until=lambda w: not w.retired)
    assert f"delete Pod {pod}" in world.writes
    assert world.now - left_at >= 4
    assert len(world.ready(name_of(1))) == 2


def observed(*, since: float, now: float, routed: bool) -> Observed:
    endpoints = [{"addresses": ["10.0.0.1"]}, {"targetRef": {"kind": "Pod", "name": "p" if routed else "q"}}]
    world = World()
    world.live["EndpointSlice", "digits-1-x"] = {"metadata": {}, "endpoints": endpoints}
    world.now, world.retired = now, {"p": since}
    seen = world.look()
    assert seen.retired == (RetiredPod(name="p", since=since),)
    return seen


def test_it_stays_for_as_long_as_endpoints_have_it_but_not_for_ever() -> None:
    assert list(retirement.to_delete(observed(since=100, now=102, routed=False))) == []
    assert list(retirement.to_delete(observed(since=100, now=120, routed=True))) == []
    assert list(retirement.to_delete(observed(since=100, now=120, routed=False))) == [("Pod", "p")]
    assert list(retirement.to_delete(observed(since=100, now=170, routed=True))) == [("Pod", "p")]


def test_an_operator_that_starts_meanwhile_deletes_it_too() -> None:
    world = serving(replicas=2)
    world.silent.add(world.ready(name_of(1))[0])
    world.run(60, until=lambda w: w.retired)
    world.evidence = type(world.evidence)()
    world.run(60, until=lambda w: not w.retired)
    assert not world.retired


def test_a_pod_whose_server_is_shutting_down_leaves_the_route_of_its_successor() -> None:
    world = serving(replicas=2)
    world.stopping = {"old": name_of(1), "older": "digits-0-gone"}
    world.run(2)
    assert "patch Pod old" in world.writes
    assert "delete Pod old" not in world.writes  # it ends by itself
    assert "patch Pod older" not in world.writes  # nothing leads to it
