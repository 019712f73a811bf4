"""The only pod of a revision goes once another is ready."""

from shiplift.runtime.serving.operator.resources import ConditionType
from tests.unit.runtime.serving.operator.world import World, name_of


def serving(replicas: int) -> World:
    world = World(replicas=replicas)
    world.run(60, until=World.settled)
    world.run(10)
    return world


def replicas(world: World) -> int:
    return int(world.live["Deployment", name_of(1)]["spec"]["replicas"])


def test_another_pod_starts_before_the_only_one_is_evicted() -> None:
    world = serving(1)
    (pod,) = world.ready(name_of(1))
    world.cordoned.add(pod)
    world.run(20, until=lambda w: len(w.ready(name_of(1))) == 2)
    assert replicas(world) == 2
    assert world.status.holds(ConditionType.READY)
    assert not world.status.holds(ConditionType.RECONCILING)
    assert world.live["PodDisruptionBudget", name_of(1)]["spec"]["minAvailable"] == 1
    del world.pods[name_of(1)][pod]  # it is evicted
    world.run(30)
    assert replicas(world) == 1
    assert len(world.ready(name_of(1))) == 1


def test_several_pods_are_evicted_one_by_one() -> None:
    world = serving(3)
    world.cordoned |= set(world.ready(name_of(1))[:2])
    world.run(20)
    assert replicas(world) == 3
    budget = world.live["PodDisruptionBudget", name_of(1)]["spec"]
    assert (budget["maxUnavailable"], "minAvailable" in budget) == (1, False)


def test_the_only_pod_that_is_silent_is_replaced_once_another_is_ready() -> None:
    world = serving(1)
    (pod,) = world.ready(name_of(1))
    world.silent.add(pod)
    least: list[int] = []
    world.checks = [lambda w: least.append(len(w.ready(name_of(1))))]
    world.run(120, until=lambda w: f"delete Pod {pod}" in w.writes)
    world.run(30)
    assert min(least) >= 1
    assert f"delete Pod {pod}" in world.writes
    assert (replicas(world), len(world.ready(name_of(1)))) == (1, 1)
    assert world.status.holds(ConditionType.READY)
