"""Services that an autoscaler scales: whatever happens, both revisions of a rollout have the pods that they need."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.operator.deciding import next_action
from shiplift.runtime.serving.operator.resources import ConditionType, Reason, ScalingSpec, StatusCondition
from tests.unit.runtime.serving.operator.world import World, name_of

KEDA = frozenset({"ScaledObject", "PrometheusRule", "PodMonitor"})
Object = dict[str, Any]


def scaled(*, least: int = 1, most: int = 6, keda: bool = True, **spec: Any) -> World:
    """A world whose first revision serves, scaled by requests or by CPU."""
    world = World(replicas=least, scaling=ScalingSpec(max_replicas=most), **spec)
    if keda:
        world.optional = KEDA
        world.cluster = world.cluster.model_copy(update={"prometheus": "http://prometheus:9090"})
        for name, seen in world.revisions.items():
            world.revisions[name] = replace(seen, capacity=Capacity(peak_per_s=120, within_slo_per_s=100))
    world.run(90, until=World.settled)
    assert world.settled(), world.status
    return world


def replicas(world: World, version: int = 1) -> int:
    return int(world.live["Deployment", name_of(version)]["spec"]["replicas"])


def active(world: World) -> StatusCondition:
    condition = world.status.condition(ConditionType.SCALING_ACTIVE)
    assert condition is not None
    return condition


def test_without_a_maximum_there_is_no_autoscaler_and_no_condition() -> None:
    world = World()
    world.optional = KEDA
    world.run(60, until=World.settled)
    assert not {kind for kind, _ in world.live} & {"ScaledObject", "HorizontalPodAutoscaler"}
    assert world.status.condition(ConditionType.SCALING_ACTIVE) is None


@pytest.mark.parametrize("keda", [True, False])
def test_the_autoscaler_owns_the_number_of_pods_and_the_operator_does_not_fight_it(keda: bool) -> None:
    world = scaled(keda=keda)
    assert (active(world).status, active(world).reason) == ("True", Reason.SCALING if keda else Reason.SCALING_ON_CPU)
    world.desired[name_of(1)] = 4
    world.run(30)
    assert replicas(world) == 4
    writes = len(world.writes)
    world.run(60)
    assert [write for write in world.writes[writes:] if write != "status"] == []
    world.desired[name_of(1)] = 1
    world.run(30)
    assert (replicas(world), world.status.ready_replicas) == (1, 1)


def test_the_signal_is_the_rate_of_requests_over_the_measured_capacity() -> None:
    body = scaled().live["ScaledObject", name_of(1)]
    (trigger,) = body["spec"]["triggers"]
    assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
    assert "/ 120 - 1e-9" in trigger["metadata"]["query"]
    assert 'shiplift_dev_package=~"digits-1"' in trigger["metadata"]["query"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert body["spec"]["fallback"]["behavior"] == "currentReplicasIfHigher"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"optional": KEDA - {"ScaledObject"}}, "the cluster does not know ScaledObject"),
        ({"prometheus": ""}, "`monitoring.prometheus`"),
        ({"capacity": None}, "TritonRevision digits-1 has no capacity"),
    ],
)
def test_what_the_signal_lacks_is_said_and_cpu_is_taken_instead(change: Object, why: str) -> None:
    world = scaled()
    world.optional = change.get("optional", KEDA)
    if "prometheus" in change:
        world.cluster = world.cluster.model_copy(update=change)
    if "capacity" in change:
        world.revisions[name_of(1)] = replace(world.revisions[name_of(1)], capacity=None)
    world.run(60)
    assert ("HorizontalPodAutoscaler", name_of(1)) in world.live
    assert ("ScaledObject", name_of(1)) not in world.live
    assert active(world).reason == Reason.SCALING_ON_CPU
    assert why in active(world).message


def test_with_the_maximum_taken_away_the_autoscaler_goes_and_the_spec_counts() -> None:
    world = scaled()
    world.desired[name_of(1)] = 4
    world.run(30)
    world.want(scaling=ScalingSpec())
    world.run(60)
    assert not {kind for kind, _ in world.live} & {"ScaledObject", "HorizontalPodAutoscaler"}
    assert replicas(world) == 1


@pytest.mark.parametrize(("what", "change"), [("delete", {}), ("edit", {"maxReplicaCount": 100})])
def test_an_autoscaler_that_is_changed_from_outside_is_restored(what: str, change: Object) -> None:
    world = scaled()
    if what == "delete":
        del world.live["ScaledObject", name_of(1)]
    else:
        world.live["ScaledObject", name_of(1)]["spec"] |= change
        world.live["ScaledObject", name_of(1)]["metadata"]["generation"] += 1
    world.turn()
    assert world.live["ScaledObject", name_of(1)]["spec"]["maxReplicaCount"] == 6
    assert world.status.holds(ConditionType.READY)  # no request was in danger


def test_a_deployment_scaled_below_its_least_by_hand_gets_it_back_and_one_that_is_deleted_what_it_had() -> None:
    world = scaled(least=2)
    world.desired[name_of(1)] = 4
    world.run(30)
    world.live["Deployment", name_of(1)]["spec"]["replicas"] = 0
    world.live["Deployment", name_of(1)]["metadata"]["generation"] += 1
    (body,) = [body for body in next_action(world.look()).apply if body["kind"] == "Deployment"]
    assert body["spec"]["replicas"] == 2
    del world.live["Deployment", name_of(1)]
    (body,) = [body for body in next_action(world.look()).apply if body["kind"] == "Deployment"]
    assert body["spec"]["replicas"] == 4


def test_kubectl_scale_sets_the_least_number() -> None:
    world = scaled()
    world.want(replicas=3)
    world.run(30)
    assert world.live["ScaledObject", name_of(1)]["spec"]["minReplicaCount"] == 3
    assert replicas(world) == 3


@pytest.mark.parametrize("keda", [True, False])
def test_a_revision_takes_over_with_as_many_pods_as_the_one_before_and_neither_gives_any_up(keda: bool) -> None:
    world = scaled(keda=keda)
    world.desired[name_of(1)] = 4
    world.run(30)
    fewest: list[int] = []

    def enough(world: World) -> None:
        serving = [weight.revision for weight in world.status.weights if weight.percent]
        if world.status.version == 1:
            fewest.extend(len(world.ready(name)) for name in serving)

    world.want(2)
    world.turn()
    world.desired = {name_of(1): 1, name_of(2): 1}  # each would be content with one pod
    world.checks = [enough]
    world.run(until=lambda w: w.status.version == 2 and w.settled())
    assert min(fewest) == 4
    world.checks = []
    world.run(60)
    assert replicas(world, 2) == 1
    assert not [key for key in world.live if key[1] == name_of(1)]


def test_a_faster_revision_needs_fewer_pods() -> None:
    world = scaled()
    world.desired[name_of(1)] = 4
    world.run(30)
    fast = Capacity(peak_per_s=240, within_slo_per_s=200)
    world.revisions[name_of(2)] = replace(world.revisions[name_of(2)], capacity=fast)
    world.want(2)
    world.run(until=lambda w: w.status.weight == 10)
    assert replicas(world, 2) == 2


def test_a_revision_that_was_given_up_lets_the_other_one_scale_down_again() -> None:
    world = scaled()
    world.desired[name_of(1)] = 4
    world.run(30)
    world.wrong.add(name_of(2))
    world.want(2)
    world.run(120, until=lambda w: bool(w.status.failed_revision))
    assert replicas(world) == 4
    world.desired[name_of(1)] = 1
    world.run(60)
    assert replicas(world) == 1


def test_at_the_maximum_the_condition_says_so() -> None:
    world = scaled()
    limited = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas"}
    seen = world.look()
    seen.live["HorizontalPodAutoscaler", f"keda-hpa-{name_of(1)}"]["status"]["conditions"].append(limited)
    status = next_action(seen).status
    condition = status.condition(ConditionType.SCALING_ACTIVE) if status else None
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", Reason.AT_MAXIMUM)
    assert "all 6 pods are needed" in condition.message


@pytest.mark.parametrize(
    ("kind", "condition", "status", "reason", "message"),
    [
        ("ScaledObject", {"type": "Fallback", "status": "True"}, "False", Reason.NO_METRICS, "No pod is taken away"),
        (
            "HorizontalPodAutoscaler",
            {"type": "ScalingActive", "status": "False", "message": "no  value"},
            "False",
            Reason.NO_METRICS,
            "the autoscaler has no metrics: no value.",
        ),
        ("HorizontalPodAutoscaler", None, "Unknown", Reason.NO_AUTOSCALER, "KEDA has not acted on ScaledObject"),
    ],
)
def test_an_autoscaler_that_sees_nothing_is_not_active(
    kind: str, condition: Object | None, status: str, reason: Reason, message: str
) -> None:
    world = scaled()
    seen = world.look()
    name = name_of(1) if kind == "ScaledObject" else f"keda-hpa-{name_of(1)}"
    seen.live[kind, name]["status"] = {"conditions": [condition] if condition else []}
    after = next_action(seen).status
    told = after.condition(ConditionType.SCALING_ACTIVE) if after else None
    assert told is not None
    assert (told.status, told.reason) == (status, reason)
    assert message in told.message


@pytest.mark.parametrize(("age_s", "status"), [(5, "Unknown"), (90, "False")])
def test_an_autoscaler_that_was_just_made_may_have_no_value_yet(age_s: float, status: str) -> None:
    world = scaled()
    seen = world.look()
    hpa = seen.live["HorizontalPodAutoscaler", f"keda-hpa-{name_of(1)}"]
    hpa["metadata"]["creationTimestamp"] = datetime.fromtimestamp(world.now - age_s, UTC).isoformat()
    hpa["status"] = {"conditions": [{"type": "ScalingActive", "status": "False", "message": "no value"}]}
    after = next_action(seen).status
    told = after.condition(ConditionType.SCALING_ACTIVE) if after else None
    assert told is not None
    assert told.status == status
