"""A service whose revision has a group for each target: it starts, takes over, loses a group, and is scaled."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.kubernetes.objects.names import REVISION
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, RolloutSpec, ScalingSpec
from tests.unit.runtime.serving.operator.test_convergence import HANDS, killed_while_it_promotes, quiet, reason
from tests.unit.runtime.serving.operator.world import ROUTES, World, name_of

ONE, TWO = name_of(1), name_of(2)
KEDA = frozenset({"ScaledObject", "PrometheusRule", "PodMonitor"})
Object = dict[str, Any]


def slow(version: int) -> str:
    return f"{name_of(version)}--slow"


def grouped(*versions: int, settle: bool = True, **spec: Any) -> World:
    world = World(**spec)
    for version in versions:
        world.add_groups(version, fast=300, slow=100)
    if settle:
        world.run(90, until=World.settled)
        assert world.settled(), world.status
    return world


def ready_backends(world: World) -> None:
    """Each revision with traffic has a ready pod behind some backend of every route."""
    for key in ROUTES:
        weights = weights_of(world.live[key]) if key in world.live else {}
        assert not any(weights.values()) or any(world.ready(name) for name, weight in weights.items() if weight)


def test_each_target_is_a_group_with_a_deployment_and_service_and_both_get_traffic_by_capacity() -> None:
    world = grouped(1)
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        assert {name for each, name in world.live if each == kind} - {"digits"} == {ONE, slow(1)}
    assert {str(weights) for weights in world.served().values()} == {str({ONE: 7500, slow(1): 2500})}
    assert (world.status.revision, world.status.version, world.status.replicas) == (ONE, 1, 2)
    assert world.status.selector == f"shiplift.dev/package in ({ONE},{slow(1)})"
    told = [(each.target, each.ready_replicas, each.percent, each.capacity_per_second) for each in world.status.groups]
    assert told == [("fast", 1, 75.0, 300), ("slow", 1, 25.0, 100)]
    assert world.status.targets == "fast 75 %, slow 25 %"


def test_a_service_of_today_is_one_group_and_an_upgrade_writes_nothing() -> None:
    world = grouped()
    bodies = [world.live["Deployment", ONE], world.live["Service", ONE]]
    assert not any(REVISION in str(body) for body in bodies)
    assert weights_of(world.live[ROUTES[0]]) == {ONE: 100}
    assert (world.status.groups, world.status.targets) == ((), "")
    assert world.status.selector == f"shiplift.dev/package={ONE}"


@pytest.mark.parametrize(("before", "after"), [((), (2,)), ((1,), ()), ((1,), (2,))])
def test_a_rollout_from_and_to_groups_holds_every_share(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    world = grouped(*before, *after)
    world.checks = [ready_backends]
    world.want(2)
    seen = []
    for _ in range(300):
        world.turn()
        seen.append(world.status.weight)
        if world.settled() and world.status.version == 2:
            break
    assert sorted(set(seen)) == [0, 10, 50, 100]
    assert {name for kind, name in world.live if kind == "Deployment"} == {TWO, *([slow(2)] if after else [])}


def test_a_pod_more_or_less_in_a_canary_s_group_does_not_begin_its_verification_anew() -> None:
    world = grouped(1, 2)
    world.want(2, rollout=RolloutSpec(canary_percent=(20,), hold_seconds=40))
    world.run(until=lambda w: w.status.weight == 20 and w.evidence.hold is not None)
    held = world.evidence.hold
    assert held is not None
    del world.pods[slow(2)][world.ready(slow(2))[0]]  # its Deployment starts another
    world.turn()
    assert weights_of(world.live[ROUTES[0]]) == {ONE: 6000, slow(1): 2000, TWO: 2000, slow(2): 0}
    assert world.evidence.hold is not None
    assert world.evidence.hold.since == held.since
    world.run(10)
    assert weights_of(world.live[ROUTES[0]])[slow(2)] == 500


def test_a_group_whose_pods_die_gets_no_traffic_until_they_are_back_and_the_service_stays_ready() -> None:
    world = grouped(1)
    world.broken.add(slow(1))
    world.pods[slow(1)] = dict.fromkeys(world.pods[slow(1)], world.now + 1000)
    said = []
    for _ in range(20):
        world.turn()
        said.append(world.status.holds(ConditionType.READY))
    assert all(said)
    assert weights_of(world.live[ROUTES[0]]) == {ONE: 10000, slow(1): 0}
    ready = world.status.condition(ConditionType.READY)
    assert ready is not None
    assert ready.message == (
        f"{ONE} answers all requests, but no pod of {ONE} for target slow is ready: its other targets take the traffic"
    )
    assert reason(world, ConditionType.RECONCILING) == Reason.STARTING
    assert not any("restored" in event for event in world.events)
    world.broken.clear()
    world.pods[slow(1)] = dict.fromkeys(world.pods[slow(1)], 0.0)
    world.run(30, until=World.settled)
    assert weights_of(world.live[ROUTES[0]]) == {ONE: 7500, slow(1): 2500}


def test_a_route_whose_split_was_edited_is_restored() -> None:
    world = grouped(1)
    backends = world.live[ROUTES[0]]["spec"]["rules"][0]["backendRefs"]
    backends[0]["weight"], backends[1]["weight"] = 0, 10000
    world.live[ROUTES[0]]["metadata"]["generation"] += 1
    world.turn()
    assert weights_of(world.live[ROUTES[0]]) == {ONE: 7500, slow(1): 2500}
    assert world.status.revision == ONE


def test_a_revision_with_a_group_that_never_starts_is_refused_and_says_why() -> None:
    world = grouped(1, 2)
    world.broken.add(slow(2))
    world.want(2)
    world.run(until=lambda w: w.status.failed_revision)
    stalled = world.status.condition(ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason == Reason.START_FAILED
    assert "container triton keeps exiting" in stalled.message
    world.run(60)
    assert world.served()["GRPCRoute digits"] == {ONE: 7500, slow(1): 2500}
    assert ("Deployment", slow(2)) not in world.live


def test_every_group_is_asked_for_its_own_golden_answers() -> None:
    world = grouped(1, replicas=2)
    pods = {pod for name in (ONE, slow(1)) for pod in world.ready(name)}
    assert len(pods) == 4
    assert set(world.evidence.beats) == pods


def test_without_a_gateway_one_name_leads_to_the_pods_of_all_groups() -> None:
    world = World(gateway=False)
    world.add_groups(1, fast=300, slow=100)
    world.run(90, until=World.settled)
    assert world.live["Service", "digits"]["spec"]["selector"] == {REVISION: ONE}
    for name in (ONE, slow(1)):
        labels = world.live["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        assert (labels[REVISION], labels["shiplift.dev/package"]) == (ONE, name)


@pytest.mark.parametrize("group", [ONE, slow(1)])
@pytest.mark.parametrize("hand", HANDS)
def test_what_a_hand_did_to_any_group_is_undone_at_once(hand: Callable[[World, str], None], group: str) -> None:
    world = grouped(1)
    right = world.served()
    hand(world, group)
    world.turn()
    world.run(60, until=World.settled)
    assert world.settled()
    assert world.served() == right
    assert world.live["Service", group]["spec"]["selector"] == {"shiplift.dev/package": group}
    quiet(world)


@settings(max_examples=settings().max_examples // 5)
@given(
    kills=st.lists(st.integers(0, 25), max_size=8),
    gap=st.integers(1, 12),
    seed=st.integers(0, 1000),
    wants=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_an_operator_killed_anywhere_converges_with_groups_too(
    kills: list[int], gap: int, seed: int, wants: list[int]
) -> None:
    world = grouped(1, 3, seed=seed)
    world.checks = [ready_backends]
    killed_while_it_promotes(world, wants, kills, gap)
    assert set(world.served()["HTTPRoute digits"]) == set(world.names(name_of(wants[-1])))
    quiet(world)


def scaled(*versions: int, most: int = 8) -> World:
    world = grouped(*versions, settle=False, scaling=ScalingSpec(max_replicas=most))
    world.optional = KEDA
    world.cluster = world.cluster.model_copy(update={"prometheus": "http://prometheus:9090"})
    world.run(90, until=World.settled)
    assert world.settled(), world.status
    return world


def test_each_group_is_scaled_on_the_service_s_requests_over_what_one_pod_of_each_takes() -> None:
    world = scaled(1)
    for name in (ONE, slow(1)):
        body = world.live["ScaledObject", name]
        query = body["spec"]["triggers"][0]["metadata"]["query"]
        assert "/ 480 - 1e-9" in query  # the peaks of both
        assert f'shiplift_dev_package=~"{ONE}|{slow(1)}"' in query
        assert body["spec"]["scaleTargetRef"] == {"name": name}
    world.desired[ONE] = 3
    world.run(30)
    assert weights_of(world.live[ROUTES[0]]) == {ONE: 9000, slow(1): 1000}


def test_a_revision_takes_over_with_the_pods_that_make_up_for_all_groups_of_the_one_before() -> None:
    world = scaled(1, 2)
    world.desired = {ONE: 2, slow(1): 6}  # together 1200 requests/s: three pods in each group of an equal one
    world.run(30)
    world.want(2)
    world.run(until=lambda w: w.status.weight == 10)
    pods = {name: world.live["Deployment", name]["spec"]["replicas"] for name in (TWO, slow(2))}
    assert pods == {TWO: 3, slow(2): 3}
