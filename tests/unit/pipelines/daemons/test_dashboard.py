"""The dashboard shows metrics that exist, by labels that they have."""

import json
import re
from importlib.resources import files
from typing import Any

import pytest
from prometheus_client import Counter, Histogram

from shiplift.pipelines.daemons.prometheus import ReleaseMetrics
from shiplift.pipelines.triggers.drift_metrics import DriftMetrics
from shiplift.pipelines.triggers.request_limits import DeliveryMetrics
from shiplift.runtime.records.drift import ColumnDrift, DriftReport

BOARD: dict[str, Any] = json.loads(files("shiplift.templates").joinpath("grafana/shiplift.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
DRIFTED = ColumnDrift(column="input/age", state="drifted", psi=1.0)
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]


def exported() -> dict[str, set[str]]:
    """Every series' name, and its labels."""
    labels: dict[str, set[str]] = {}
    for metric in (*vars(ReleaseMetrics()).values(), *vars(DeliveryMetrics()).values()):
        if not hasattr(metric, "_name"):
            continue
        endings: tuple[str, ...] = ("_total",) if isinstance(metric, Counter) else ("",)
        if isinstance(metric, Histogram):
            endings = ("_bucket", "_sum", "_count")
        for ending in endings:
            extra = {"le"} if ending == "_bucket" else set()
            labels[metric._name + ending] = set(metric._labelnames) | extra
    for family in DriftMetrics(lambda: [DriftReport(model="digits", version=1, at=1.0, columns=(DRIFTED,))]).collect():
        labels[family.name] = {label for sample in family.samples for label in sample.labels}
    return labels


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_metric_shown_is_exported_with_the_labels_used(expression: str) -> None:
    series = exported()
    names = set(re.findall(r"\bshiplift_[a-z_]+", expression))
    assert names
    assert names <= set(series)
    used = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
    used |= set(re.findall(r"\{([a-z_]+)!?=", expression))
    assert all(used <= series[name] for name in names)


def test_every_metric_exported_is_shown() -> None:
    shown = " ".join(EXPRESSIONS)
    bare = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in exported()}
    assert {name for name in bare if name not in shown} == set()


def test_legends_name_labels_that_are_kept() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            grouped = {label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped


def test_panels_do_not_overlap_and_have_a_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)


def test_brackets_of_every_expression_match() -> None:
    for expression in EXPRESSIONS:
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing)
