"""Scaling to zero against a small cluster with an activator: pods go and come, and no request is lost."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.measurement import Counts
from shiplift.runtime.records.site import ActivatorRef
from shiplift.runtime.serving.kubernetes.objects.activator import leads_to_activator
from shiplift.runtime.serving.kubernetes.objects.names import revision_of_group
from shiplift.runtime.serving.operator import measurements as m
from shiplift.runtime.serving.operator.deciding import Decision
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.observed import HeldRequests, Observed
from shiplift.runtime.serving.operator.resources import (
    Activation,
    ConditionType,
    Reason,
    RolloutSpec,
    ScalingSpec,
    ServiceSpec,
    ServiceStatus,
)
from tests.unit.runtime.serving.operator.world import ROUTES, World, name_of

IDLE_S, HOLD_S = 30, 60
ZERO = ScalingSpec(to_zero=True, idle_seconds=IDLE_S)


@dataclass
class Client:
    """What became of requests: those that wait, since when, and how long the others took."""

    waiting: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class Sleepy(World):
    """A world with an activator, and clients. The operator's own requests are counted by pods as any others are."""

    def __init__(self, *, scaling: ScalingSpec = ZERO, **changes: Any) -> None:
        super().__init__(scaling=scaling, **changes)
        self.cluster = self.cluster.model_copy(update={"activator": ActivatorRef(hold_s=HOLD_S)})
        self.client, self.came_at, self.answered_at = Client(), 0.0, self.now
        self.activator_answers, self.mute = True, False
        self.every_s, self.last_request = 0.0, self.now

    def look(self) -> Observed:
        if self.activator_answers:
            self.answered_at = self.now
        arrivals = HeldRequests(held=len(self.client.waiting), came_at=self.came_at, answered_at=self.answered_at)
        return replace(super().look(), arrivals=arrivals)

    def turn(self) -> Decision:
        while self.every_s and self.now - self.last_request >= self.every_s:
            self.last_request += self.every_s
            self.request()
        self.release()
        decision = super().turn()
        self.release()
        return decision

    def route(self) -> Any:
        return self.live[ROUTES[0]]

    def request(self) -> None:
        if leads_to_activator(self.route()):
            self.came_at = self.now
            self.client.waiting.append(self.now)
        elif self.answer():
            self.client.took.append(0)
        else:
            self.client.failed.append(f"no pod at {self.now}")

    def answer(self) -> bool:
        name = next((name for name in sorted(self.pods) if self.ready(name)), "")
        if name:
            self.count(name, answered=1)
        return bool(name)

    def release(self) -> None:
        """The activator passes on what it holds, once a pod is ready."""
        for began in list(self.client.waiting):
            if self.answer():
                self.client.took.append(self.now - began)
            elif self.now - began > HOLD_S:
                self.client.failed.append(f"held since {began}")
            else:
                continue
            self.client.waiting.remove(began)

    def measure(self, measurement: m.Measurement) -> None:
        if isinstance(measurement, m.ReadTraffic):
            names = [name for name in self.pods if revision_of_group(name) == measurement.revision]
            counts = {pod: self.counts.get(name, {}).get(pod, Counts()) for name in names for pod in self.ready(name)}
            self.evidence = m.with_traffic(self.evidence, measurement, {} if self.mute else counts, self.now)
            return
        if isinstance(measurement, m.AskPods):
            for _ in measurement.pods:
                self.count(measurement.group, answered=1)
        if isinstance(measurement, m.AskRoutes):
            routed = leads_to_activator(self.route()) if ROUTES[0] in self.live else False
            assert measurement.asleep == routed
            for _ in range(0 if measurement.asleep else 3):
                self.answer()
        super().measure(measurement)

    def replicas(self) -> dict[str, int]:
        return {name: body["spec"]["replicas"] for (kind, name), body in self.live.items() if kind == "Deployment"}

    def told(self, kind: ConditionType) -> tuple[str, str]:
        condition = self.status.condition(kind)
        return (condition.status, condition.reason) if condition else ("", "")


def is_asleep(world: World) -> bool:
    return world.status.activation is Activation.ASLEEP


def is_awake(world: World) -> bool:
    return world.status.activation is Activation.AWAKE and world.settled()


def serving(**changes: Any) -> Sleepy:
    world = Sleepy(**changes)
    world.run(60, until=World.settled)
    assert world.settled(), world.status
    return world


def asleep(**changes: Any) -> Sleepy:
    world = serving(**changes)
    world.run(IDLE_S + 90, until=is_asleep)
    assert is_asleep(world), world.status
    world.run(10)
    return world


def test_without_requests_it_goes_to_sleep_although_heartbeats_go_on() -> None:
    world = serving()
    began = world.now
    world.run(200, until=is_asleep)
    assert IDLE_S <= world.now - began < IDLE_S + 60
    world.run(20)
    assert world.replicas() == {name_of(1): 0}
    assert world.pods[name_of(1)] == {}
    assert all(leads_to_activator(world.live[key]) for key in ROUTES)
    assert world.told(ConditionType.READY) == ("True", Reason.SCALED_TO_ZERO)
    assert world.told(ConditionType.AVAILABLE) == ("True", Reason.SCALED_TO_ZERO)
    assert world.told(ConditionType.SCALING_ACTIVE) == ("True", Reason.SCALED_TO_ZERO)
    assert (world.status.weight, world.status.version, world.status.replicas) == (100, 1, 0)


def test_a_service_that_sleeps_writes_nothing() -> None:
    world = asleep()
    world.writes.clear()
    world.run(300)
    assert world.writes == []
    assert is_asleep(world)


def test_the_first_request_is_held_and_answered() -> None:
    world = asleep()
    world.request()
    world.run(60, until=lambda w: w.status.ready_replicas == 1 and w.settled())
    assert (world.client.failed, world.client.waiting) == ([], [])
    assert 0 < world.client.took[0] < 10
    assert not any(leads_to_activator(world.live[key]) for key in ROUTES)
    assert world.told(ConditionType.READY) == ("True", Reason.SERVING)
    assert world.told(ConditionType.AVAILABLE) == ("True", Reason.SERVING)


def test_while_it_wakes_up_it_says_so() -> None:
    world = asleep()
    world.request()
    world.turn()
    assert world.status.activation is Activation.WAKING
    assert world.told(ConditionType.READY) == ("False", Reason.WAKING)
    assert world.told(ConditionType.AVAILABLE) == ("Unknown", Reason.WAKING)
    assert world.told(ConditionType.RECONCILING) == ("True", Reason.WAKING)


def test_pods_that_do_not_start_are_no_secret() -> None:
    world = asleep()
    world.broken.add(name_of(1))
    world.request()
    world.run(world.cluster.ready_timeout_s + 30)
    assert world.told(ConditionType.AVAILABLE) == ("False", Reason.NO_PODS)
    assert len(world.client.failed) == 1


@pytest.mark.parametrize("heartbeat", [0, 5])
def test_steady_requests_keep_it_awake(heartbeat: float) -> None:
    world = serving(heartbeat={"interval_seconds": heartbeat})
    world.every_s = IDLE_S - 10
    world.run(600, until=is_asleep)
    assert not is_asleep(world)
    world.every_s = 0
    world.run(600, until=is_asleep)
    assert is_asleep(world)
    assert world.client.failed == []


def test_a_request_while_it_drains_keeps_it_awake() -> None:
    world = serving()
    world.run(200, until=lambda w: w.status.activation is Activation.DRAINING)
    world.request()
    world.run(10, until=lambda w: w.status.activation is Activation.AWAKE)
    world.run(10)
    assert world.replicas() == {name_of(1): 1}
    assert (world.client.failed, world.client.took) == ([], [0])
    assert not leads_to_activator(world.route())


def test_requests_that_reach_pods_by_another_way_keep_it_awake() -> None:
    world = serving()
    world.run(200, until=lambda w: w.status.activation is Activation.DRAINING)
    for _ in range(80):
        world.answer()
        world.turn()
        assert world.replicas() == {name_of(1): 1}


def test_unreadable_counters_do_not_count_as_idleness() -> None:
    world = serving()
    world.mute = True
    world.run(600, until=is_asleep)
    assert world.replicas() == {name_of(1): 1}
    assert world.told(ConditionType.SCALING_ACTIVE) == ("False", Reason.NO_METRICS)


def test_without_the_activator_it_does_not_sleep_and_says_so() -> None:
    world = serving()
    world.activator_answers = False
    world.run(600, until=is_asleep)
    assert world.status.activation is Activation.AWAKE
    assert world.told(ConditionType.SCALING_ACTIVE) == ("False", Reason.NO_ACTIVATOR)
    assert world.told(ConditionType.READY) == ("True", Reason.SERVING)


def test_it_wakes_up_when_the_activator_is_silent() -> None:
    world = asleep()
    world.activator_answers = False
    world.run(60, until=lambda w: w.status.activation is Activation.AWAKE)
    assert world.replicas() == {name_of(1): 1}
    assert not leads_to_activator(world.route())


@pytest.mark.parametrize("route", ["gRPC", "HTTP", "HTTP by path"])
def test_it_is_not_ready_while_a_route_does_not_lead_to_the_activator(route: str) -> None:
    world = asleep()
    world.answers[route] = "does not lead to the activator"
    world.run(20)
    assert world.told(ConditionType.READY)[0] == world.told(ConditionType.AVAILABLE)[0] == "False"
    world.answers.clear()
    world.run(20)
    assert world.told(ConditionType.READY) == ("True", Reason.SCALED_TO_ZERO)


def test_it_does_not_sleep_before_every_route_leads_to_the_activator() -> None:
    world = serving()
    world.answers["HTTP"] = "does not lead to the activator"
    for _ in range(200):
        world.turn()
        assert world.replicas() == {name_of(1): 1}


def test_a_promotion_wakes_only_what_it_promotes() -> None:
    world = asleep()
    world.want(2)
    started: set[str] = set()
    world.checks = [lambda w: started.update(name for name, pods in w.pods.items() if pods)]
    world.run(200, until=lambda w: is_awake(w) and w.status.version == 2)
    assert world.status.version == 2
    assert started == {name_of(2)}
    world.request()
    assert (world.client.failed, world.client.waiting) == ([], [])


def test_a_request_during_a_promotion_is_answered_by_what_served() -> None:
    world = asleep()
    world.broken.add(name_of(2))
    world.want(2)
    world.run(5)
    world.request()
    world.run(60)
    assert (world.client.failed, len(world.client.took)) == ([], 1)
    assert world.status.revision == name_of(1)


def test_switched_off_it_has_pods_again() -> None:
    world = asleep()
    world.want(scaling=ScalingSpec())
    world.every_s = 3
    world.run(60, until=is_awake)
    assert world.replicas() == {name_of(1): 1}
    assert world.status.activation is Activation.AWAKE
    assert world.client.failed == []
    world.run(200, until=is_asleep)
    assert not is_asleep(world)


@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_lost_status_costs_no_request(all_of_it: bool) -> None:
    world = asleep()
    awake = world.status.model_copy(update={"activation": Activation.AWAKE})
    world.status, world.evidence = ServiceStatus() if all_of_it else awake, Evidence()
    world.request()
    world.turn()
    world.run(60, until=is_awake)
    assert world.status.version == 1
    assert (world.client.failed, world.client.waiting) == ([], [])


@pytest.mark.parametrize("harm", ["replicas", "route"])
def test_a_change_from_outside_is_undone_while_it_sleeps(harm: str) -> None:
    world = asleep()
    key = ("Deployment", name_of(1)) if harm == "replicas" else ROUTES[1]
    world.live[key]["metadata"]["generation"] += 1
    if harm == "replicas":
        world.live["Deployment", name_of(1)]["spec"]["replicas"] = 2
    else:
        world.live[ROUTES[1]]["spec"]["rules"][0]["backendRefs"] = [{"name": name_of(1), "port": 8000, "weight": 100}]
    world.run(15)
    assert world.replicas() == {name_of(1): 0}
    assert all(leads_to_activator(world.live[key]) for key in ROUTES)


def test_the_autoscaler_goes_first_and_comes_back() -> None:
    scaling = ScalingSpec(to_zero=True, idle_seconds=IDLE_S, max_replicas=3)
    world = serving(scaling=scaling)
    world.optional = frozenset({"ScaledObject", "PrometheusRule"})
    world.cluster = world.cluster.model_copy(update={"prometheus": "http://prometheus"})
    capacity = Capacity(peak_per_s=30, within_slo_per_s=25)
    world.revisions[name_of(1)] = replace(world.revisions[name_of(1)], capacity=capacity)
    world.run(20, until=lambda w: ("ScaledObject", name_of(1)) in w.live)
    assert ("ScaledObject", name_of(1)) in world.live
    world.run(200, until=is_asleep)
    world.run(30)
    assert not {key for key in world.live if key[0] in ("ScaledObject", "HorizontalPodAutoscaler")}
    assert world.replicas() == {name_of(1): 0}
    world.request()
    world.run(60, until=is_awake)
    assert ("ScaledObject", name_of(1)) in world.live
    assert world.client.failed == []


def test_groups_sleep_and_wake_up_together() -> None:
    world = Sleepy()
    world.add_groups(1, fast=30, slow=10)
    world.run(60, until=World.settled)
    world.run(200, until=is_asleep)
    world.run(10)
    assert set(world.replicas().values()) == {0}
    (rule,) = world.route()["spec"]["rules"]
    (_, backends) = rule["filters"][0]["requestHeaderModifier"]["set"]
    assert backends["value"] == f"{name_of(1)},{name_of(1)}--slow"
    world.request()
    world.run(60, until=lambda w: is_awake(w) and w.status.ready_replicas == 2)
    assert set(world.replicas().values()) == {1}
    assert world.client.failed == []


@settings(max_examples=settings().max_examples // 5)
@given(
    crashes=st.lists(st.integers(0, 40), max_size=8),
    every_s=st.sampled_from([7.0, 35.0, 50.0, 90.0]),
    seed=st.integers(0, 3),
)
def test_wherever_the_operator_dies_no_request_is_lost(crashes: list[int], every_s: float, seed: int) -> None:
    world = serving(seed=seed)
    world.every_s, world.last_request = every_s, world.now
    for crash in crashes:
        world.crash_after = crash
        world.run(every_s * 1.3)
    world.crash_after = None
    world.run(300)
    world.every_s = 0
    world.run(60)
    assert world.client.failed == []
    assert world.client.waiting == []
    world.run(300, until=is_asleep)
    assert is_asleep(world)


def test_a_rollback_by_hand_to_a_sleeping_service_moves_in_one_step() -> None:
    world = asleep(rollout=RolloutSpec(canary_percent=(10, 50)))
    world.want(2)
    weights = set()
    world.checks = [lambda w: weights.add(w.status.weight)]
    world.run(200, until=lambda w: is_awake(w) and w.status.version == 2)
    assert weights <= {0, 100}


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"gateway": False}, "set `gateway`"), ({"activator": False}, "set `activator`")],
)
def test_if_it_can_not_work_the_status_says_what_is_missing(changes: dict[str, bool], why: str) -> None:
    world = Sleepy(gateway=changes.get("gateway", True))
    if not changes.get("activator", True):
        world.cluster = world.cluster.model_copy(update={"activator": None})
    world.run(200)
    assert world.replicas() == {name_of(1): 1}
    condition = world.status.condition(ConditionType.SCALING_ACTIVE)
    assert condition is not None
    assert (condition.status, why in condition.message) == ("False", True)


def test_production_is_never_without_pods() -> None:
    with pytest.raises(ValueError, match="toZero leaves a service without pods, which production forbids"):
        ServiceSpec(model="digits", revision="r", production=True, scaling=ZERO)
