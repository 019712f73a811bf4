"""What the operator exports of each service; alerts and dashboards show nothing else."""

import re
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from shiplift.pipelines.daemons.operator.services import ServiceMetrics
from shiplift.runtime.serving.operator.evidence import Beat
from shiplift.runtime.serving.operator.resources import Activation, ScalingSpec
from tests.unit.runtime.serving.operator.monitoring.test_seen import queries
from tests.unit.runtime.serving.operator.world import World, name_of


def exported(world: World) -> tuple[ServiceMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = ServiceMetrics(registry)
    metrics.look(world.look(), world.evidence, world.status)
    return metrics, registry


def lines(registry: CollectorRegistry) -> set[str]:
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def serving() -> World:
    world = World(replicas=2, scaling=ScalingSpec(max_replicas=6))
    world.run(90, until=World.settled)
    return world


def test_the_heartbeat_s_findings_are_exported_by_service_and_revision() -> None:
    world = serving()
    pod = world.ready(name_of(1))[0]
    world.evidence = replace(world.evidence, beats={**world.evidence.beats, pod: Beat(misses=1, message="late")})
    shown = lines(exported(world)[1])
    assert 'shiplift_heartbeat_failing_pods{revision="digits-1",service="digits"} 1.0' in shown
    assert 'shiplift_revision_weight_percent{revision="digits-1",service="digits"} 100.0' in shown
    assert 'shiplift_service_replicas{service="digits"} 2.0' in shown
    assert 'shiplift_service_max_replicas{service="digits"} 6.0' in shown
    assert 'shiplift_service_version{service="digits"} 1.0' in shown
    assert 'shiplift_service_condition{condition="Ready",service="digits"} 1.0' in shown


def test_targets_are_told_apart_where_several_serve() -> None:
    world = World(scaling=ScalingSpec(max_replicas=6))
    world.add_groups(1, fast=300, slow=100)
    world.run(90, until=World.settled)
    shown = lines(exported(world)[1])
    assert 'shiplift_group_replicas{service="digits",target="slow"} 1.0' in shown
    assert 'shiplift_group_weight_percent{service="digits",target="fast"} 75.0' in shown
    assert 'shiplift_service_max_replicas{service="digits"} 12.0' in shown
    assert not any("shiplift_group" in line for line in lines(exported(serving())[1]))


def test_a_service_without_pods_on_purpose_raises_no_alert() -> None:
    world = World()
    world.add_groups(1, fast=300, slow=100)
    world.run(90, until=World.settled)
    world.pods.clear()
    world.status = world.status.model_copy(update={"activation": Activation.ASLEEP})
    shown = lines(exported(world)[1])
    assert 'shiplift_heartbeat_failing_pods{revision="digits-1",service="digits"} 0.0' in shown
    assert not any("shiplift_group_replicas" in line for line in shown)


def test_without_a_heartbeat_or_a_maximum_there_is_no_such_metric() -> None:
    world = World()
    shown = " ".join(lines(exported(world)[1]))
    assert "shiplift_heartbeat_failing_pods" not in shown
    assert "max_replicas" not in shown


def test_a_service_that_is_gone_is_forgotten() -> None:
    metrics, registry = exported(serving())
    metrics.forget("digits")
    assert lines(registry) == set()


def test_alerts_and_dashboards_show_what_is_exported() -> None:
    shown = " ".join(lines(exported(serving())[1]))
    asked = {
        name for query in queries() for name in re.findall(r"\bshiplift_(?:service|revision|heartbeat)_[a-z_]+", query)
    }
    assert asked
    assert {each for each in asked if each not in shown} == set()
