"""The monitors, rules and dashboard of a service, if the cluster has the Prometheus operator's kinds."""

import re
from collections.abc import Collection, Iterator

from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.serving.kubernetes.objects.autoscalers import PACKAGE, recorded_for, requests_of
from shiplift.runtime.serving.kubernetes.objects.monitoring import dashboard_config, pod_monitor, prometheus_rule
from shiplift.runtime.serving.kubernetes.objects.names import Object
from shiplift.runtime.serving.monitoring.alerts import Watched, alerts
from shiplift.runtime.serving.monitoring.dashboard import dashboard
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import ServiceSpec
from shiplift.runtime.serving.scaling import queries
from shiplift.runtime.serving.scaling.signal import Scaling

_SERVER = "shiplift_dev_server"  # as Prometheus writes the label
KINDS = ("PodMonitor", "PrometheusRule", "ConfigMap")


def objects(
    observed: Observed, spec: ServiceSpec, revisions: Collection[str], *, patience: float = 1.0
) -> list[Object]:
    """The objects for a service whose traffic these revisions share; `patience` scales how long alerts wait."""
    return list(_objects(observed, spec, tuple(sorted(revisions)), patience)) if revisions else []


def _objects(observed: Observed, spec: ServiceSpec, revisions: tuple[str, ...], patience: float) -> Iterator[Object]:
    extra = observed.cluster.monitoring_labels
    if "PodMonitor" in observed.optional:
        yield pod_monitor(spec.model, extra=extra)
    if "PrometheusRule" not in observed.optional:
        return
    labels = recorded_for(observed.namespace, observed.name)
    recorded, step_s = _recorded(observed, spec, revisions)
    rules = [alert.rule(labels, patience) for alert in alerts(watched(observed, spec, revisions))]
    yield prometheus_rule(spec.model, scaling=recorded, step_s=step_s, alerts=rules, extra=extra)
    board = dashboard(
        model=serving_name(spec.model),
        label=dns_name(spec.model),
        namespace=observed.namespace,
        service=observed.name,
        operator_namespace=observed.cluster.namespace,
        several=observed.several(spec.revision),
    )
    yield dashboard_config(spec.model, board)


def watched(observed: Observed, spec: ServiceSpec, revisions: tuple[str, ...]) -> Watched:
    """The service with its objectives, as the alerts need it."""
    capacity = observed.revisions[spec.revision].capacity if spec.revision in observed.revisions else None
    hosts = tuple(sorted({host for name in revisions if (host := observed.host(name))}))
    return Watched(
        requests=requests_of(observed.namespace, spec.model, revisions),
        pods={"namespace": observed.namespace, **_where(revisions, hosts)},
        service={"namespace": observed.cluster.namespace, "service": observed.name},
        pod_names="|".join(f"{re.sub('[.]', '[.]', name)}-.*" for name in (*revisions, *hosts)),
        objective=spec.slo.objective,
        p99_ms=spec.slo.p99_milliseconds or (capacity.p99_ms if capacity else None),
        rollout_s=spec.rollout.hold_seconds * len(spec.rollout.canary_percent),
        heartbeat=spec.heartbeat.interval_seconds > 0,
        several=observed.several(spec.revision),
    )


def _where(revisions: tuple[str, ...], hosts: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The labels of scrape targets: pods of a shared server have its name instead of a revision's."""
    return {_SERVER: hosts} if hosts else {PACKAGE: revisions}


def _recorded(observed: Observed, spec: ServiceSpec, revisions: tuple[str, ...]) -> tuple[list[dict[str, object]], int]:
    """The recording rules of the autoscaler's signal, and how often they are evaluated; none without an autoscaler."""
    capacities = (seen.capacity for name in revisions if (seen := observed.revisions.get(name)))
    capacity = next((each for each in capacities if each), None)
    if capacity is None or spec.scaling.max_replicas is None:
        return [], 0
    scaling = Scaling(capacity=capacity)  # the rules use only its times, which are the defaults
    requests = requests_of(observed.namespace, spec.model, revisions)
    return queries.recording_rules(requests, recorded_for(observed.namespace, observed.name), scaling), scaling.step_s
