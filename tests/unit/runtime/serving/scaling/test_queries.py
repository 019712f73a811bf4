from collections.abc import Callable

import promql_parser
import pytest

from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.serving.scaling import queries
from shiplift.runtime.serving.scaling.signal import Scaling

SCALING = Scaling(capacity=Capacity(peak_per_s=100, within_slo_per_s=85))
LABELS = {"namespace": "shiplift", "service": "digits", "model": "digits"}
SERVICE = {"namespace": "shiplift", "tritonservice": "digits"}


def expressions() -> dict[str, str]:
    rules = queries.recording_rules(LABELS, SERVICE, SCALING)
    return {str(rule["record"]): str(rule["expr"]) for rule in rules} | {
        "wanted": queries.wanted(LABELS, SERVICE, SCALING)
    }


def test_the_queries_are_these(golden: Callable[[str, str], None]) -> None:
    golden("scaling.promql", "".join(f"# {name}\n{query}\n\n" for name, query in expressions().items()))


@pytest.mark.parametrize("name", expressions())
def test_the_queries_are_promql(name: str) -> None:
    promql_parser.parse(expressions()[name])


def test_labels_are_quoted() -> None:
    assert queries.selector({"b": 'a"b\\', "a": "1"}) == '{a="1",b="a\\"b\\\\"}'
    promql_parser.parse("up" + queries.selector({"a": 'a"b\\\n'}))


def test_an_empty_or_nan_answer_never_scales_down() -> None:
    trigger = queries.trigger("http://prometheus:9090", LABELS, SERVICE, SCALING)
    assert trigger["metadata"] == {
        "serverAddress": "http://prometheus:9090",
        "query": queries.wanted(LABELS, SERVICE, SCALING),
        "threshold": "1",
        "ignoreNullValues": "false",
    }
    assert queries.wanted(LABELS, SERVICE, SCALING).endswith(">= 0")
    assert queries.arrivals(LABELS, SCALING).endswith(">= 0)")


def test_without_prometheus_what_runs_stays() -> None:
    assert queries.fallback(SCALING) == {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}


def test_targets_that_answer_no_scrape_count_as_replicas() -> None:
    up = '{namespace="shiplift",service="digits"}'
    assert f"count(up{up}) and on() (min(up{up}) == 0)" in queries.wanted(LABELS, SERVICE, SCALING)


def test_the_controller_adds_no_window_of_its_own() -> None:
    behavior = queries.behavior()
    assert {direction["stabilizationWindowSeconds"] for direction in behavior.values()} == {0}  # type: ignore[index]
