"""Prometheus metrics of the drift of a home's models, read when they are scraped."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from shiplift.runtime.records.drift import DriftReport

_MOST = 1000  # columns of a model: each is a series


class DriftMetrics(Collector):
    """The last report of each model, from `reports`."""

    def __init__(self, reports: Callable[[], Iterable[DriftReport]]) -> None:
        self._reports = reports

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is depends on the models."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        psi = GaugeMetricFamily(
            "shiplift_drift_psi",
            "The population stability index of a captured column against the validation data.",
            labels=("model", "version", "column"),
        )
        drifted = GaugeMetricFamily(
            "shiplift_drift_drifted",
            "Whether a captured column has drifted: 1 or 0.",
            labels=("model", "version", "column"),
        )
        requests = GaugeMetricFamily(
            "shiplift_drift_requests", "Requests in the window that was compared last.", labels=("model", "version")
        )
        measured = GaugeMetricFamily(
            "shiplift_drift_measured_timestamp_seconds",
            "When captured rows could last be compared with the validation data.",
            labels=("model", "version"),
        )
        for report in self._reports():
            labels = [report.model, str(report.version)]
            requests.add_metric(labels, report.requests)
            if not report.problem:
                measured.add_metric(labels, report.at)
            for each in report.columns[:_MOST]:
                if each.state in ("drifted", "steady"):
                    psi.add_metric([*labels, each.column], each.psi)
                    drifted.add_metric([*labels, each.column], float(each.state == "drifted"))
        yield from (psi, drifted, requests, measured)
