"""The last observation of each service, as metrics with labels `service` and `revision`.

Only the leading operator looks at services, so other replicas export none.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import ServiceStatus

_VALUES = {"True": 1, "False": 0, "Unknown": -1}


@dataclass(frozen=True, kw_only=True)
class SeenService:
    """A service at the last look; `failing` counts the pods of each revision that failed their last golden request."""

    status: ServiceStatus
    most: int | None
    failing: dict[str, int]


class ServiceMetrics(Collector):
    """The metrics of services."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seen: dict[str, SeenService] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def look(self, observed: Observed, evidence: Evidence, status: ServiceStatus) -> None:
        """Call after a look at a service."""
        failing = {
            name: sum(evidence.beats[pod.name].misses > 0 for pod in pods if pod.name in evidence.beats)
            for name, pods in observed.pods.items()
            if any(pod.name in evidence.beats for pod in pods)
        }
        if status.activation:  # scaled to zero: the operator checks the routes instead of pods
            failing.setdefault(status.revision, 0)
        with self._lock:
            self._seen[observed.name] = SeenService(status=status, most=_most(observed), failing=failing)

    def forget(self, name: str) -> None:
        """Call when a service was deleted."""
        with self._lock:
            self._seen.pop(name, None)

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        with self._lock:
            seen = dict(self._seen)
        yield _gauge(
            "shiplift_service_replicas",
            "Ready pods of the revision with most of the traffic.",
            {(name,): each.status.ready_replicas for name, each in seen.items()},
        )
        yield _gauge(
            "shiplift_service_max_replicas",
            "The most pods that the autoscaler may choose.",
            {(name,): each.most for name, each in seen.items() if each.most is not None},
        )
        yield _gauge(
            "shiplift_service_version",
            "The model version with most of the traffic; 0: none.",
            {(name,): each.status.version for name, each in seen.items()},
        )
        yield _gauge(
            "shiplift_service_condition",
            "1: true, 0: false, -1: unknown.",
            {
                (name, str(condition.type)): _VALUES[condition.status]
                for name, each in seen.items()
                for condition in each.status.conditions
            },
            "condition",
        )
        yield _gauge(
            "shiplift_revision_weight_percent",
            "A revision's share of the traffic.",
            {(name, weight.revision): weight.percent for name, each in seen.items() for weight in each.status.weights},
            "revision",
        )
        yield _gauge(
            "shiplift_group_replicas",
            "Ready pods of a target, if several targets serve.",
            {
                (name, group.target): group.ready_replicas
                for name, each in seen.items()
                for group in (() if each.status.activation else each.status.groups)
            },
            "target",
        )
        yield _gauge(
            "shiplift_group_weight_percent",
            "A target's share of the traffic, if several targets serve.",
            {(name, group.target): group.percent for name, each in seen.items() for group in each.status.groups},
            "target",
        )
        yield _gauge(
            "shiplift_heartbeat_failing_pods",
            "Pods that failed their last golden request.",
            {(name, revision): pods for name, each in seen.items() for revision, pods in each.failing.items()},
            "revision",
        )


def _most(observed: Observed) -> int | None:
    """The most pods that an autoscaler may choose; None if the number of pods is fixed."""
    spec = observed.spec
    most = spec.scaling.max_replicas if spec else None
    groups = max(1, len(observed.names(observed.status.revision)))
    return most * groups if spec and most and most > spec.least_replicas else None


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["service", *labels])
    for key, value in values.items():
        family.add_metric(key, value)
    return family
