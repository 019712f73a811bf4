import pytest

from shiplift.runtime.serving.operator.resources import ConditionType, Reason
from tests.unit.runtime.serving.operator import world as world_module
from tests.unit.runtime.serving.operator.world import World, name_of


def serving(replicas: int) -> World:
    world = World(replicas=replicas)
    world.run(60, until=World.settled)
    world.run(10)
    world.writes.clear()
    return world


def deleted(world: World) -> list[str]:
    return [write for write in world.writes if write.startswith("delete Pod")]


def test_a_pod_that_does_not_answer_is_replaced_after_three_beats() -> None:
    world = serving(replicas=2)
    pod = world.ready(name_of(1))[0]
    world.silent.add(pod)
    began = world.now
    world.run(60, until=deleted)
    assert deleted(world) == [f"delete Pod {pod}"]
    assert 10 <= world.now - began <= 25
    assert any(f"{pod} is replaced" in event for event in world.events)
    world.run(30)
    assert len(world.ready(name_of(1))) == 2


def test_a_pod_that_froze_is_replaced_although_it_is_no_longer_ready() -> None:
    world = serving(replicas=2)
    pod = world.ready(name_of(1))[0]
    world.silent.add(pod)
    world.frozen.add(pod)
    began = world.now
    world.run(60, until=deleted)
    assert deleted(world) == [f"delete Pod {pod}"]
    assert world.now - began <= 25
    world.run(30)
    assert len(world.ready(name_of(1))) == 2


def test_a_pod_whose_container_restarts_is_left_alone() -> None:
    world = serving(replicas=2)
    name = name_of(1)
    pod = world.ready(name)[0]
    world.silent.add(pod)
    world.pods[name][pod] = world.now + 60  # neither ready nor started until then
    world.run(50)
    assert not deleted(world)


def test_the_last_ready_pod_stays_if_it_is_only_slow_and_no_other_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = serving(replicas=1)
    monkeypatch.setattr(world_module, "START_S", 1e9)
    world.silent |= set(world.ready(name_of(1)))
    world.run(60)
    assert not deleted(world)
    assert not world.status.holds(ConditionType.READY)


def test_the_last_pod_goes_if_it_answers_wrongly() -> None:
    world = serving(replicas=1)
    world.wrong.add(name_of(1))
    world.run(60, until=lambda w: w.retired)
    verified = world.status.condition(ConditionType.VERIFIED)
    assert verified is not None
    assert (verified.status, verified.reason) == ("False", Reason.WRONG_ANSWERS)
    world.run(60, until=deleted)
    assert deleted(world)


def test_pauses_between_replacements_grow() -> None:
    world = serving(replicas=3)
    world.wrong.add(name_of(1))
    world.run(600)
    assert 3 <= len(deleted(world)) <= 5


def test_without_a_heartbeat_nothing_is_asked() -> None:
    world = serving(replicas=1)
    world.want(heartbeat=world.spec.heartbeat.model_copy(update={"interval_seconds": 0}))
    world.wrong.add(name_of(1))
    world.run(60)
    assert not deleted(world)
    verified = world.status.condition(ConditionType.VERIFIED)
    assert verified is not None
    assert verified.status == "Unknown"
