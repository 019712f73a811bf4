"""The metrics that Shiplift's own processes and backends publish for Prometheus."""

import ast
import re

from docs.generator.markdown import table
from docs.generator.sources import ROOT, called, calls, keyword, text

_BACKENDS = ROOT / "runtime/serving/triton/backends/common/metrics.h"
_PREFIX = "shiplift_"
_KINDS = {
    "Counter": "counter",
    "CounterMetricFamily": "counter",
    "Gauge": "gauge",
    "GaugeMetricFamily": "gauge",
    "_gauge": "gauge",
    "Histogram": "histogram",
}
_PARTS = (
    ("pipelines/triggers", "receiver"),
    ("pipelines/daemons/prometheus", "reconciler"),
    ("pipelines/daemons/operator", "operator"),
    ("pipelines/daemons/activator", "activator"),
)


def metrics() -> str:
    """A table of all of them."""
    return table(["Metric", "Kind", "Labels", "Meaning", "Published by"], sorted(_every()))


def names() -> set[str]:
    """The names of all of them, as Prometheus knows them."""
    return {row[0].strip("`") for row in _every()}


def _every() -> list[list[str]]:
    rows = [
        _row(path, call)
        for path, call in calls(_PREFIX)
        if text(call.args[0] if call.args else None).startswith(_PREFIX)
    ]
    native = re.findall(r'METRIC_(\w+), "(shiplift_\w+)", "([^"]+)"', _BACKENDS.read_text())
    rows += [[f"`{name}`", kind.lower(), "`model`", meaning, "Triton"] for kind, name, meaning in native]
    return list({row[0]: row for row in rows if row}.values())


def _row(path: str, call: ast.Call) -> list[str]:
    kind = _KINDS.get(called(call))
    if kind is None:
        return []
    name, meaning = text(call.args[0]), text(call.args[1])
    suffix = "_total" if kind == "counter" and not name.endswith("_total") else ""
    part = next((part for start, part in _PARTS if path.startswith(start)), path)
    return [f"`{name}{suffix}`", kind, ", ".join(f"`{label}`" for label in _labels(call)), meaning, part]


def _labels(call: ast.Call) -> list[str]:
    if called(call) == "_gauge":
        return ["service", *(text(each) for each in call.args[3:])]
    listed = keyword(call, "labels") or next((each for each in call.args[2:] if isinstance(each, ast.Tuple)), None)
    return [text(each) for each in getattr(listed, "elts", ())]
