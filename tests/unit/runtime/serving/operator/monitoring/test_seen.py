"""What people see of a service: its queries parse, name what is exported, and change only if the service does."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import promql_parser
import pytest
import yaml

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.operator.monitoring import seen
from shiplift.runtime.serving.operator.resources import HeartbeatSpec, ScalingSpec, SloSpec
from tests.unit.runtime.serving.operator.world import World, name_of

KINDS = frozenset({"ScaledObject", "PrometheusRule", "PodMonitor"})
Object = dict[str, Any]


def world(**spec: Any) -> World:
    made = World(scaling=ScalingSpec(max_replicas=6), **spec)
    made.optional = KINDS
    made.cluster = made.cluster.model_copy(update={"prometheus": "http://prometheus:9090"})
    for name, revision in made.revisions.items():
        made.revisions[name] = replace(revision, capacity=Capacity(peak_per_s=120, within_slo_per_s=100, p99_ms=25))
    return made


def objects(made: World, *versions: int, patience: float = 1.0) -> dict[str, Object]:
    bodies = seen.objects(made.look(), made.spec, {name_of(version) for version in versions}, patience=patience)
    return {body["kind"]: body for body in bodies}


def alerts(made: World, **settings: Any) -> dict[str, Object]:
    groups = objects(made, 1, **settings)["PrometheusRule"]["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def board(made: World) -> Object:
    (text,) = objects(made, 1)["ConfigMap"]["data"].values()
    return dict(json.loads(text))


def queries() -> Iterator[str]:
    for group in objects(world(), 1, 2)["PrometheusRule"]["spec"]["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    shown = board(world())
    yield from (target["expr"] for panel in shown["panels"] for target in panel["targets"])
    yield from (annotation["expr"] for annotation in shown["annotations"]["list"])


def test_where_several_targets_serve_an_alert_and_the_dashboard_tell_them_apart() -> None:
    made = world()
    assert "ShipliftTargetDown" not in alerts(made)
    assert "Targets" not in {panel["title"] for panel in board(made)["panels"]}
    made.add_groups(1, fast=300, slow=100)
    rule = alerts(made)["ShipliftTargetDown"]
    assert rule["expr"] == 'min(shiplift_group_replicas{namespace="shiplift",service="digits"}) == 0'
    shown = board(made)["panels"]
    asked = {target["expr"] for panel in shown if panel["title"].startswith("Targets") for target in panel["targets"]}
    for expression in (*asked, rule["expr"]):
        promql_parser.parse(expression)
    assert len(asked) == 2


def test_the_objects_are_these(golden: Callable[[str, str], None]) -> None:
    made = objects(world(), 1, 2)
    dashboard = made.pop("ConfigMap")
    golden("seen.yaml", yaml.safe_dump_all(made.values(), sort_keys=False, width=120))
    (text,) = dashboard["data"].values()
    golden("seen.dashboard.json", text)
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_every_query_is_promql(query: str) -> None:
    promql_parser.parse(query)


def test_they_are_made_where_the_cluster_has_their_kinds() -> None:
    made = world()
    made.run(60, until=World.settled)
    assert {kind for kind, _ in made.live} >= {"PodMonitor", "PrometheusRule", "ConfigMap"}
    bare = World()
    bare.run(60, until=World.settled)
    assert not {kind for kind, _ in bare.live} & set(seen.KINDS)


def test_they_come_back_and_go_with_their_kinds() -> None:
    made = world()
    made.run(60, until=World.settled)
    for key in (("PrometheusRule", "digits"), ("PodMonitor", "digits"), ("ConfigMap", "digits-dashboard")):
        del made.live[key]
        made.turn()
        assert key in made.live
        assert made.status.holds("Ready")  # type: ignore[arg-type]


def test_the_dashboard_stays_as_it_is_over_a_promotion_and_the_alerts_know_both_revisions() -> None:
    assert objects(world(), 1)["ConfigMap"] == objects(world(), 1, 2)["ConfigMap"]
    expr = next(rule["expr"] for rule in objects(world(), 1, 2)["PrometheusRule"]["spec"]["groups"][1]["rules"])
    assert 'shiplift_dev_package=~"digits-1|digits-2"' in expr


def test_without_an_autoscaler_there_are_no_recording_rules() -> None:
    made = world()
    made.spec = made.spec.model_copy(update={"scaling": ScalingSpec()})
    (group,) = objects(made, 1)["PrometheusRule"]["spec"]["groups"]
    assert group["name"] == "shiplift-digits-alerts"


def test_the_limit_of_the_latency_is_the_service_s_or_the_one_that_was_measured_within() -> None:
    assert alerts(world())["ShipliftAnswersLate"]["expr"].endswith("/ 1000 > 25")
    assert alerts(world(slo=SloSpec(p99_milliseconds=7.5)))["ShipliftAnswersLate"]["expr"].endswith("> 7.5")
    made = world()
    made.revisions[name_of(1)] = replace(made.revisions[name_of(1)], capacity=None)
    assert "ShipliftAnswersLate" not in alerts(made)


def test_a_heartbeat_that_is_off_has_no_alerts() -> None:
    assert not [name for name in alerts(world(heartbeat=HeartbeatSpec(interval_seconds=0))) if "Heartbeat" in name]


def test_the_objective_sets_how_fast_the_budget_may_burn() -> None:
    assert "> 0.0144 and" in alerts(world())["ShipliftErrorBudgetBurnsFast"]["expr"]
    assert "> 0.006 and" in alerts(world())["ShipliftErrorBudgetBurnsSlow"]["expr"]
    assert "> 0.144 and" in alerts(world(slo=SloSpec(objective=99)))["ShipliftErrorBudgetBurnsFast"]["expr"]


def test_a_canary_is_stuck_some_time_after_its_shares_were_held() -> None:
    assert alerts(world())["ShipliftCanaryStuck"]["for"] == "620s"
    assert alerts(world(), patience=0.01)["ShipliftCanaryStuck"]["for"] == "6s"


@pytest.mark.parametrize("name", alerts(world()))
def test_every_alert_says_what_is_wrong_and_what_to_do(name: str) -> None:
    rule = alerts(world())[name]
    assert rule["labels"] | {"severity": ""} == {"severity": "", "namespace": "models", "tritonservice": "digits"}
    assert all(rule["annotations"][text].endswith(".") for text in ("summary", "description"))


def test_legends_name_labels_that_are_kept() -> None:
    for panel in board(world())["panels"]:
        for target in panel["targets"]:
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")}
            assert legend <= (grouped or {"revision", "condition"})
