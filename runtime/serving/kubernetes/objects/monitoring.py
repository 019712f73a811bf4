"""The objects for monitoring a model: what Prometheus scrapes and evaluates, and what Grafana shows."""

from collections.abc import Mapping, Sequence

from shiplift.runtime.base.names import dns_name
from shiplift.runtime.serving.kubernetes.objects.names import LABEL, PACKAGE, Object

_SCRAPE = "5s"  # the autoscaler's rates are over 10 s
Rules = Sequence[Mapping[str, object]]


def pod_monitor(model: str, *, extra: Mapping[str, str]) -> Object:
    """Makes the Prometheus operator scrape a model's servers; it selects monitors by the `extra` labels."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": _metadata(model, extra),
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": "triton", f"{LABEL}model": dns_name(model)}},
            "podTargetLabels": [f"{LABEL}model", PACKAGE, f"{LABEL}version"],
            "podMetricsEndpoints": [{"port": "metrics", "interval": _SCRAPE}],
        },
    }


def prometheus_rule(model: str, *, scaling: Rules, step_s: int, alerts: Rules, extra: Mapping[str, str]) -> Object:
    """The recording rules of the autoscaler's signal, evaluated every `step_s`, and the alerts."""
    group = {"name": f"shiplift-{dns_name(model)}-scaling", "interval": f"{step_s}s", "rules": list(scaling)}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(model, extra),
        "spec": {
            "groups": [
                *([group] if scaling else []),
                {"name": f"shiplift-{dns_name(model)}-alerts", "rules": list(alerts)},
            ]
        },
    }


def dashboard_config(model: str, dashboard: str) -> Object:
    """A dashboard in a ConfigMap with the label that Grafana's sidecar looks for."""
    meta = _metadata(model, {"grafana_dashboard": "1"})
    meta["name"] = f"{meta['name']}-dashboard"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {f"{meta['name']}.json": dashboard}}


def _metadata(model: str, extra: Mapping[str, str]) -> Object:
    own = {"app.kubernetes.io/managed-by": "shiplift", f"{LABEL}model": dns_name(model)}
    return {"name": dns_name(model), "labels": {**extra, **own}}
