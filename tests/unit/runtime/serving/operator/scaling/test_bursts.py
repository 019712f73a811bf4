"""Queues that can't wait for the autoscaler raise its minimum for a while, and nothing else."""

from shiplift.runtime.serving.operator.resources import ConditionType, Reason
from tests.unit.runtime.serving.operator.scaling.test_scaling import replicas, scaled
from tests.unit.runtime.serving.operator.world import World, name_of


def minimum(world: World) -> int:
    return int(world.live["ScaledObject", name_of(1)]["spec"]["minReplicaCount"])


def test_a_step_gets_its_pods_within_seconds_and_the_autoscaler_takes_them_away_later() -> None:
    world = scaled()
    world.arriving, world.queue = 350.0, world.queue._replace(at=world.now)
    world.run(8)
    assert replicas(world) >= 4
    assert minimum(world) == replicas(world)
    world.run(60)
    assert minimum(world) == 1
    world.arriving, world.desired[name_of(1)] = 0.0, 1
    world.run(60)
    assert replicas(world) == 1


def test_raising_the_minimum_is_not_reported_as_a_repair() -> None:
    world = scaled()
    world.events.clear()
    world.arriving, world.queue = 350.0, world.queue._replace(at=world.now)
    for _ in range(60):
        world.turn()
        reconciling = world.status.condition(ConditionType.RECONCILING)
        assert reconciling is not None
        assert reconciling.reason != Reason.REPAIRING
    assert not [event for event in world.events if "restored" in event]


def test_what_the_pods_can_carry_starts_none() -> None:
    world = scaled()
    world.arriving, world.queue = 90.0, world.queue._replace(at=world.now)
    writes = len(world.writes)
    world.run(60)
    assert replicas(world) == 1
    assert [write for write in world.writes[writes:] if write and write != "status"] == []


def test_the_maximum_holds() -> None:
    world = scaled(most=3)
    world.arriving, world.queue = 5000.0, world.queue._replace(at=world.now)
    world.run(30)
    assert replicas(world) == 3


def test_without_an_autoscaler_queues_are_not_read() -> None:
    world = World()
    world.run(60, until=World.settled)
    world.arriving, world.queue = 5000.0, world.queue._replace(at=world.now)
    world.run(30)
    assert replicas(world) == 1
    assert world.evidence.demand.readings == ()
