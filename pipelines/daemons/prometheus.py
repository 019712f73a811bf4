"""What Prometheus is told of releases: how they ended, how long their stages took, what the cache saved, who waits."""

from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from shiplift.pipelines.engines.argo.workflows import Run
from shiplift.runtime.records.release import ReleaseReport

_STAGE_S = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_QUEUE_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)


class ReleaseMetrics:
    """The metrics of one reconciler. Counters begin at 0 with it, as Prometheus expects."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.releases = Counter(
            "shiplift_releases", "Releases that ended.", ("verdict", "trigger"), registry=self.registry
        )
        self.stage_seconds = Histogram(
            "shiplift_stage_seconds", "How long a stage took; cached ones are not in it.", ("stage", "outcome"),
            buckets=_STAGE_S, registry=self.registry,
        )  # fmt: skip
        self.stage_cache = Counter(
            "shiplift_stage_cache", "Stages that ran, and those found in the cache.", ("stage", "cached"),
            registry=self.registry,
        )  # fmt: skip
        self.queue_seconds = Histogram(
            "shiplift_release_queue_seconds", "From accepting a release to its first pod.",
            buckets=_QUEUE_S, registry=self.registry,
        )  # fmt: skip
        self.active = Gauge("shiplift_releases_active", "Releases that have not ended.", registry=self.registry)
        self.last_turn = Gauge(
            "shiplift_reconciler_last_turn_timestamp_seconds", "When the reconciler last looked.",
            registry=self.registry,
        )  # fmt: skip
        self.failures = Counter(
            "shiplift_reconciler_failures", "What the reconciler could not do, by part of its work.", ("part",),
            registry=self.registry,
        )  # fmt: skip

    def ended(self, run: Run, report: ReleaseReport | None) -> None:
        """Counts a release; one that told nothing was undecided."""
        asked = run.trigger.kind if run.trigger else "manual"
        self.releases.labels(str(report.verdict) if report else "inconclusive", asked).inc()
        if run.first_pod_at:
            self.queue_seconds.observe(max(0.0, run.first_pod_at - run.created_at))
        for stage in report.stages if report else ():
            if stage.outcome == "skipped":
                continue
            self.stage_cache.labels(stage.name, str(stage.cached).lower()).inc()
            if not stage.cached:
                self.stage_seconds.labels(stage.name, stage.outcome).observe(stage.seconds)


def web(registry: CollectorRegistry, healthy: Callable[[], bool]) -> Callable[..., Iterable[bytes]]:
    """A WSGI application: `/metrics`, and `/healthz`."""
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            served: Iterable[bytes] = metrics(environ, start)
            return served
        good = path == "/healthz" and healthy()
        start("200 OK" if good else "503 Service Unavailable" if path == "/healthz" else "404 Not Found", [])
        return [b"ok\n" if good else b"no\n"]

    return answer


def listen(application: Callable[..., Iterable[bytes]], port: int) -> WSGIServer:
    """A server of the application on every address; the caller runs it."""
    return make_server("", port, application, ThreadingWSGIServer, handler_class=_Quiet)


class _Quiet(WSGIRequestHandler):
    timeout = 10  # of a connection that says nothing

    def log_message(self, *_: Any) -> None:
        """Scrapes are not worth a line each."""
