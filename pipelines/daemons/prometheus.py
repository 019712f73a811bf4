"""Prometheus metrics of releases: how they ended, how long stages took, cache hits, and time in the queue."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from shiplift.pipelines.engines.argo.workflows import Run
from shiplift.runtime.host.bounded_threads import BoundedThreads, Received
from shiplift.runtime.records.release import ReleaseReport

_STAGE_S = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200)
_QUEUE_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)


class ReleaseMetrics:
    """The metrics of a reconciler. Counters start at 0 with its process, as Prometheus expects."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.releases = Counter(
            "shiplift_releases", "Releases that ended.", ("verdict", "trigger"), registry=self.registry
        )
        self.stage_seconds = Histogram(
            "shiplift_stage_seconds",
            "How long a stage took. Cache hits are not included.",
            ("stage", "outcome"),
            buckets=_STAGE_S,
            registry=self.registry,
        )
        self.stage_cache = Counter(
            "shiplift_stage_cache",
            "Stages that ran, and cache hits.",
            ("stage", "cached"),
            registry=self.registry,
        )
        self.queue_seconds = Histogram(
            "shiplift_release_queue_seconds",
            "Time from accepting a release to its first pod.",
            buckets=_QUEUE_S,
            registry=self.registry,
        )
        self.active = Gauge("shiplift_releases_active", "Releases that have not ended.", registry=self.registry)
        self.last_turn = Gauge(
            "shiplift_reconciler_last_turn_timestamp_seconds",
            "When the reconciler last finished a turn.",
            registry=self.registry,
        )
        self.swept_pushes = Counter(
            "shiplift_swept_pushes", "Git pushes whose webhook was lost, started by the sweep.", registry=self.registry
        )
        self.failures = Counter(
            "shiplift_reconciler_failures",
            "Failures of the reconciler, by part of its work.",
            ("part",),
            registry=self.registry,
        )

    def ended(self, run: Run, report: ReleaseReport | None) -> None:
        """Counts an ended release; one without a report counts as inconclusive."""
        trigger = run.trigger.kind if run.trigger else "manual"
        self.releases.labels(str(report.verdict) if report else "inconclusive", trigger).inc()
        if run.first_pod_at:
            self.queue_seconds.observe(max(0.0, run.first_pod_at - run.created_at))
        for stage in report.stages if report else ():
            if stage.outcome == "skipped":
                continue
            self.stage_cache.labels(stage.name, str(stage.cached).lower()).inc()
            if not stage.cached:
                self.stage_seconds.labels(stage.name, stage.outcome).observe(stage.seconds)


def web(registry: CollectorRegistry, answers: Mapping[str, Callable[[], bool]]) -> Callable[..., Iterable[bytes]]:
    """A WSGI application with `/metrics`, and a path for each probe in `answers`."""
    metrics = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            body: Iterable[bytes] = metrics(environ, start)
            return body
        ok = path in answers and answers[path]()
        start("200 OK" if ok else "503 Service Unavailable" if path in answers else "404 Not Found", [])
        return [b"ok\n" if ok else b"no\n"]

    return answer


def listen(application: Callable[..., Iterable[bytes]], port: int) -> WSGIServer:
    """A server for the application that listens on every address. The caller runs it."""
    return make_server("", port, application, _Server, handler_class=_Quiet)


class _Server(BoundedThreads, WSGIServer):
    """A thread per connection."""


class _Quiet(Received, WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Logs nothing: a line per scrape would fill the log."""
