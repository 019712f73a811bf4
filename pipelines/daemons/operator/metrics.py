"""The operator's metrics for Prometheus: its looks, actions and errors, and the conditions of services."""

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge

from shiplift.pipelines.daemons.operator.services import ServiceMetrics
from shiplift.runtime.serving.operator.cluster.observing import Snapshot
from shiplift.runtime.serving.operator.resources import ConditionType


class OperatorMetrics:
    """The metrics of an operator. Counters start at 0 with its process, as Prometheus expects."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.looks = Counter("shiplift_operator_looks", "Looks at a service.", registry=self.registry)
        self.acts = Counter(
            "shiplift_operator_acts",
            "Actions: apply, patch, delete, status, event, measure.",
            ("kind",),
            registry=self.registry,
        )
        self.errors = Counter("shiplift_operator_errors", "Failed looks and lists.", ("error",), registry=self.registry)
        self.services = Gauge(
            "shiplift_services",
            "TritonServices by condition and its status.",
            ("condition", "status"),
            registry=self.registry,
        )
        self.seen = ServiceMetrics(self.registry)
        self.leads = Gauge("shiplift_operator_leads", "Whether this process leads.", registry=self.registry)

    def listed(self, snapshot: Snapshot) -> None:
        """Counts the services by their conditions."""
        conditions = Tally(
            (condition.get("type"), condition.get("status"))
            for body in snapshot.services.values()
            for condition in (body.get("status") or {}).get("conditions") or []
        )
        for kind in ConditionType:
            for status in ("True", "False", "Unknown"):
                self.services.labels(kind, status).set(conditions[kind, status])
