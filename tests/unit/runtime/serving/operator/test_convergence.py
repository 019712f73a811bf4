"""The operator against a small cluster: whatever happens, it converges, and something ready serves all the while."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.serving.kubernetes.objects.front import weights_of
from shiplift.runtime.serving.operator.deciding import next_action
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, RolloutSpec, ServiceStatus
from tests.unit.runtime.serving.operator.world import ROUTES, World, name_of


def serving(**changes: Any) -> World:
    """A world whose first revision serves."""
    world = World(**changes)
    world.run(60, until=World.settled)
    assert world.settled(), world.status
    return world


def backends_are_ready(world: World) -> None:
    """Every backend with a weight, on every live route, has ready pods and a Service."""
    for key in ROUTES:
        for name, weight in weights_of(world.live[key]).items() if key in world.live else ():
            assert not weight or (world.ready(name) and ("Service", name) in world.live), (key, name)


def reason(world: World, kind: ConditionType = ConditionType.STALLED) -> str:
    condition = world.status.condition(kind)
    return condition.reason if condition and condition.status == "True" else ""


# --- rollouts ---


@pytest.mark.parametrize("gateway", [True, False])
def test_the_first_revision_serves(gateway: bool) -> None:
    world = serving(gateway=gateway)
    assert {str(weights) for weights in world.served().values()} == {str({name_of(1): 100})}
    assert world.status.version == 1
    assert world.status.ready_replicas == 1


@pytest.mark.parametrize("gateway", [True, False])
def test_the_next_one_takes_over_and_the_first_one_goes(gateway: bool) -> None:
    world = serving(gateway=gateway)
    world.checks = [backends_are_ready] if gateway else []
    world.want(2)
    seen = []
    for _ in range(300):
        world.turn()
        seen.append(world.status.weight)
        if world.settled() and world.status.version == 2:
            break
    assert sorted(set(seen)) == ([0, 10, 50, 100] if gateway else [0, 100])
    assert {name for kind, name in world.live if kind == "Deployment"} == {name_of(2)}
    assert ("Service", name_of(1)) not in world.live
    assert ("PodDisruptionBudget", name_of(1)) not in world.live


@pytest.mark.parametrize("gateway", [True, False])
def test_a_service_that_serves_stays_ready_while_the_former_revision_goes(gateway: bool) -> None:
    world = serving(gateway=gateway)
    world.want(2)
    world.run(until=lambda w: w.status.version == 2 and w.status.holds(ConditionType.READY))
    assert ("Deployment", name_of(1)) in world.live
    ready = []
    for _ in range(60):
        world.turn()
        ready.append(world.status.holds(ConditionType.READY))
    assert ("Deployment", name_of(1)) not in world.live
    assert all(ready)


def test_every_share_is_held() -> None:
    world = serving()
    world.want(2, rollout=RolloutSpec(canary_percent=(20,), hold_seconds=30))
    world.run(until=lambda w: w.status.weight == 20)
    began = world.now
    world.run(until=lambda w: w.status.weight == 100)
    assert 30 <= world.now - began < 50


def test_a_rollback_moves_in_one_step() -> None:
    world = serving()
    world.want(2, rollout=RolloutSpec(canary_percent=()))
    world.run(until=lambda w: w.status.weight)
    assert world.status.weight == 100


def test_sequences_are_never_split() -> None:
    world = serving()
    world.revisions[name_of(2)] = world.revision(2, sequences=True)
    world.want(2)
    world.run(until=lambda w: w.status.weight)
    assert world.status.weight == 100


def test_there_and_back_again_in_the_middle() -> None:
    world = serving()
    world.checks = [backends_are_ready]
    for version in (2, 1, 2, 3, 1):
        world.want(version)
        world.run(17)
    world.run(until=World.settled)
    assert world.settled()
    assert world.served()["GRPCRoute digits"] == {name_of(1): 100}


# --- aborts ---


@pytest.mark.parametrize("weight", [0, 10, 50, 100])
@pytest.mark.parametrize("gateway", [True, False])
def test_an_abort_gives_all_traffic_back_at_any_moment(gateway: bool, weight: int) -> None:
    world = serving(gateway=gateway)
    world.checks = [backends_are_ready] if gateway else []
    world.promote(2)
    world.run(until=lambda w: w.status.weight >= weight and ("Deployment", name_of(2)) in w.live)
    world.abort()
    began = world.now
    world.run(until=lambda w: {str(each) for each in w.served().values()} == {str({name_of(1): 100})})
    assert world.now - began < 15
    world.run(until=World.settled)
    assert world.status.version == 1
    world.run(100)
    assert ("Deployment", name_of(2)) not in world.live
    quiet(world)


def test_what_served_before_stays_ready_until_the_promotion_is_committed() -> None:
    world = serving()
    world.promote(2)
    world.run(until=lambda w: w.status.weight == 100 and w.status.holds(ConditionType.READY))
    world.run(200)
    assert world.ready(name_of(1))
    world.commit()
    world.abort()
    world.run(200)
    assert not world.ready(name_of(1))
    assert world.served()["GRPCRoute digits"] == {name_of(2): 100}


@pytest.mark.parametrize("gateway", [True, False])
def test_an_alarm_while_a_revision_bakes_gives_all_traffic_back(gateway: bool) -> None:
    world = serving(gateway=gateway)
    world.checks = [backends_are_ready] if gateway else []
    world.promote(2)
    world.run(until=lambda w: w.status.weight == 100 and w.status.holds(ConditionType.READY))
    world.bake()
    world.commit()
    world.run(200)
    assert world.ready(name_of(1))
    world.alarm()
    world.crash_after = 3  # the operator is killed on the way
    began = world.now
    back = {str({name_of(1): 100})}
    world.run(until=lambda w: {str({k: v for k, v in each.items() if v}) for each in w.served().values()} == back)
    assert world.now - began < 15
    world.crash_after = None
    world.run(100)
    stalled = world.status.condition(ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason is Reason.BAKE_ALARM
    assert stalled.message.startswith(f"{name_of(2)} was rolled back while baking: too slow.")
    world.want(1)  # as the rollback in the registry does
    world.run(until=World.settled)
    assert (world.settled(), world.status.version) == (True, 1)


def test_a_bake_without_an_alarm_lets_the_former_revision_go() -> None:
    world = serving()
    world.promote(2)
    world.run(until=lambda w: w.status.weight == 100 and w.status.holds(ConditionType.READY))
    world.bake()
    world.commit()
    world.run(200)
    assert world.baking is not None
    world.baking = world.baking.model_copy(update={"state": "passed"})
    world.run(200)
    assert not world.ready(name_of(1))


def copies_to(world: World) -> set[str]:
    """Who gets copies of requests, on any live route."""
    rules = [rule for key in ROUTES if key in world.live for rule in world.live[key]["spec"]["rules"]]
    filters = [each["requestMirror"] for rule in rules for each in rule.get("filters", ())]
    return {each["backendRef"]["name"] for each in filters}


def test_a_shadow_copies_requests_while_it_lasts_and_no_operator_leaves_that_on() -> None:
    world, challenger = serving(), name_of(2)
    world.mirror = Mirror(revision=challenger, share=0.2)
    world.run(30)
    assert copies_to(world) == set()  # its Service is not there
    world.live["Service", challenger] = {"kind": "Service", "metadata": {"name": challenger, "labels": {}}, "spec": {}}
    world.run(30, until=copies_to)
    assert copies_to(world) == {challenger}
    assert world.served() == {key: {name_of(1): 100} for key in world.served()}
    world.mirror, world.evidence = None, Evidence()  # over, and the operator is another one
    world.run(30, until=lambda w: not copies_to(w))
    assert copies_to(world) == set()


@settings(max_examples=6)
@given(
    acts=st.lists(st.tuples(st.sampled_from(["abort", "commit", "kill"]), st.integers(0, 40)), max_size=6),
    seed=st.integers(0, 1000),
)
def test_aborts_commits_and_kills_in_any_order_converge(acts: list[tuple[str, int]], seed: int) -> None:
    world = serving(seed=seed)
    world.checks = [backends_are_ready]
    world.promote(2)
    for act, seconds in acts:
        world.run(seconds)
        if act == "kill":
            world.crash_after = seconds
        else:
            getattr(world, act)()
    world.crash_after = None
    world.run(600, until=World.settled)
    assert world.settled(), world.status
    wanted = name_of(1) if world.promotion and world.promotion.abort else name_of(2)
    assert set(world.served()["HTTPRoute digits"]) - {world.look().kept} == {wanted}


# --- failures ---


def broken(world: World) -> None:
    world.broken.add(name_of(2))


def wrong(world: World) -> None:
    world.wrong.add(name_of(2))


def failing(world: World) -> None:
    world.failing.add(name_of(2))


def stuck(world: World) -> None:
    world.stuck = world.now


def missing(world: World) -> None:
    del world.revisions[name_of(2)]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (broken, Reason.START_FAILED),
        (wrong, Reason.WRONG_ANSWERS),
        (failing, Reason.CANARY_FAILED),
        (stuck, Reason.TRAFFIC_NOT_MOVED),
        (missing, Reason.NO_REVISION),
    ],
)
def test_a_failure_leaves_what_served_before(fault: Callable[[World], None], expected: Reason) -> None:
    world = serving()
    world.checks = [backends_are_ready]
    fault(world)
    world.want(2)
    world.run(until=reason)
    world.run(100)
    assert reason(world) == expected
    assert not world.status.holds(ConditionType.READY)
    assert world.status.holds(ConditionType.AVAILABLE)
    assert {str(weights) for weights in world.served().values()} == {str({name_of(1): 100})}
    assert world.status.failed_revision == ("" if expected is Reason.NO_REVISION else name_of(2))
    assert ("Deployment", name_of(2)) not in world.live
    quiet(world)
    world.want(1)
    world.run(until=World.settled)
    assert world.settled()


def test_a_failed_revision_is_tried_again_once_the_spec_changes() -> None:
    world = serving()
    broken(world)
    world.want(2)
    world.run(100)
    world.broken.clear()
    world.run(100)
    assert reason(world) == Reason.START_FAILED
    world.want(2, replicas=2)
    world.run(until=World.settled)
    assert world.status.version == 2


def test_pods_lost_in_a_canary_end_it() -> None:
    world = serving()
    world.want(2)
    world.run(until=lambda w: w.status.weight == 10)
    broken(world)
    world.run(until=reason)
    assert reason(world) == Reason.CANARY_FAILED


def test_the_first_revision_that_fails_is_not_retried() -> None:
    world = World()
    world.broken.add(name_of(1))
    world.run(60)
    assert reason(world) == Reason.START_FAILED
    assert not world.status.holds(ConditionType.AVAILABLE)
    assert "keeps exiting" in world.status.condition(ConditionType.STALLED).message  # type: ignore[union-attr]


# --- hands ---


def edited(world: World, *key: str) -> Any:
    """An object's spec, to be edited: the API server counts the change."""
    body = world.live[key[0], key[1]]
    body["metadata"]["generation"] += 1
    return body["spec"]


def scale_to_zero(world: World, name: str) -> None:
    edited(world, "Deployment", name)["replicas"] = 0


def relabel(world: World, name: str) -> None:
    edited(world, "Deployment", name)["template"]["metadata"]["labels"] = {"x": "y"}


def delete_deployment(world: World, name: str) -> None:
    world.delete(("Deployment", name))


def delete_service(world: World, name: str) -> None:
    world.delete(("Service", name))


def delete_budget(world: World, name: str) -> None:
    world.delete(("PodDisruptionBudget", name))


def delete_front(world: World, _: str) -> None:
    world.delete(("Service", "digits"))


def reselect(world: World, name: str) -> None:
    edited(world, "Service", name)["selector"] = {"x": "y"}


def delete_routes(world: World, _: str) -> None:
    for key in ROUTES:
        world.delete(key)


def delete_route(world: World, _: str) -> None:
    world.delete(ROUTES[1])


def edit_one_route(world: World, _: str) -> None:
    edited(world, *ROUTES[0])["rules"][0]["backendRefs"][0]["weight"] = 0


def edit_all_routes(world: World, _: str) -> None:
    for key in ROUTES:
        for rule in edited(world, *key)["rules"]:
            rule["backendRefs"] = [{"name": name_of(3), "port": 8000, "weight": 1}]


def wipe_status(world: World, _: str) -> None:
    world.status = ServiceStatus()


def lie_in_status(world: World, _: str) -> None:
    weights = ({"revision": "nobody", "percent": 100},)
    world.status = ServiceStatus.model_validate(world.status.to_object() | {"weights": weights})


HANDS = [
    scale_to_zero,
    relabel,
    delete_deployment,
    delete_service,
    delete_budget,
    delete_front,
    reselect,
    delete_routes,
    delete_route,
    edit_one_route,
    edit_all_routes,
    wipe_status,
    lie_in_status,
]


@pytest.mark.parametrize("hand", HANDS)
def test_what_a_hand_did_is_undone_at_once(hand: Callable[[World, str], None]) -> None:
    world = serving()
    right = world.served()
    hand(world, name_of(1))
    world.turn()
    assert world.served() == right
    assert world.live["Deployment", name_of(1)]["spec"]["replicas"] == 1
    assert world.live["Service", name_of(1)]["spec"]["selector"] == {"shiplift.dev/package": name_of(1)}
    world.run(60, until=World.settled)
    assert world.settled()
    quiet(world)


def test_a_deleted_route_is_reported_and_verified_again() -> None:
    world = serving()
    world.events.clear()
    delete_route(world, "")
    world.turn()
    assert not world.status.holds(ConditionType.READY)
    assert any("restored after a change from outside: HTTPRoute digits" in event for event in world.events)
    world.run(60, until=World.settled)
    assert world.settled()


def test_a_disruption_budget_put_back_does_not_end_readiness() -> None:
    world = serving()
    delete_budget(world, name_of(1))
    world.turn()
    assert world.status.holds(ConditionType.READY)


# --- idleness ---


def quiet(world: World) -> None:
    """Nothing is written, and the same decision is taken, for a minute."""
    world.run(10)  # for a heartbeat
    world.writes.clear()
    world.run(60)
    assert world.writes == []
    assert next_action(world.look()) == next_action(world.look())


def test_nothing_is_written_when_nothing_changes() -> None:
    quiet(serving())


def test_a_new_operator_writes_nothing() -> None:
    world = serving()
    world.evidence = type(world.evidence)()
    world.run(30)
    writes = [write for write in world.writes if not write.startswith("apply Deployment")]
    world.writes.clear()
    world.run(60)
    assert world.writes == []
    assert writes.count("status") == writes.count("status")


def test_a_service_scaled_by_its_spec() -> None:
    world = serving()
    world.want(replicas=3)
    world.run(30, until=lambda w: w.settled() and w.status.ready_replicas == 3)
    assert world.status.ready_replicas == 3
    assert world.status.observed_generation == world.generation


# --- everything at once ---


def killed_while_it_promotes(world: World, wants: list[int], kills: list[int], gap: int) -> None:
    """Promotes one version after another, kills the operator after so many writes each time, and lets it settle."""
    for version in wants:
        world.want(version)
        for kill in kills:
            world.crash_after = kill
            world.run(gap)
    world.crash_after = None
    world.run(600, until=World.settled)
    assert world.settled(), world.status


@settings(max_examples=settings().max_examples // 5)
@given(
    kills=st.lists(st.integers(0, 25), max_size=12),
    gap=st.integers(1, 12),
    seed=st.integers(0, 1000),
    wants=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_an_operator_killed_anywhere_converges_and_loses_nothing(
    kills: list[int], gap: int, seed: int, wants: list[int]
) -> None:
    world = serving(seed=seed)
    world.checks = [backends_are_ready]
    killed_while_it_promotes(world, wants, kills, gap)
    assert set(world.served()["HTTPRoute digits"]) == {name_of(wants[-1])}
    quiet(world)


@settings(max_examples=settings().max_examples // 5)
@given(
    hands=st.lists(st.tuples(st.integers(0, len(HANDS) - 1), st.integers(1, 40)), max_size=5),
    kill=st.none() | st.integers(0, 40),
    seed=st.integers(0, 1000),
)
def test_hands_at_any_moment_of_a_rollout(hands: list[tuple[int, int]], kill: int | None, seed: int) -> None:
    world = serving(seed=seed)
    world.want(2)
    world.crash_after = kill
    for hand, seconds in hands:
        world.run(seconds)
        name = next((name for kind, name in sorted(world.live) if kind == "Deployment"), "")
        if all(key in world.live for key in (("Service", name), *ROUTES)):
            HANDS[hand](world, name)
    world.crash_after = None
    world.turn()
    world.run(900, until=lambda w: w.settled() or reason(w))
    assert any(world.ready(name) for name in world.served()["GRPCRoute digits"])
    world.run(100)
    assert world.settled() or reason(world), world.status
    quiet(world)
