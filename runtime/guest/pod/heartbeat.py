"""Checks whether a Triton server makes progress with its requests, which its own health endpoints don't show.

    python3 heartbeat.py ADDRESS:PORT [--patience SECONDS]

A server whose instances are all busy for ever stays live and ready. So this module reads its metrics: a model is stuck
if one of its executions did not stop at its time limit (the bundled server's backends count those), or if requests wait
and none was answered for `patience` seconds. On a machine, the watchdog asks this module. In a pod it is a process next
to the server, and the kubelet's liveness probe asks it over HTTP.

Process: one of its own in the server's container, as `heartbeat.py`; Shiplift's watchdog.
Python: the image's
Packages: none
"""

import argparse
import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

MARGIN_S = 15.0  # a request may exceed the model's time limit by this much before the model counts as stuck
PATIENCE_S = 30 + MARGIN_S
HTTP, METRICS = 8000, 8002  # a pod's ports
_SILENCE_S = 15.0  # a server that is alive but silent for this long is stuck
_LOOK_S, _ANSWER_S = 2.0, 5.0
_MOST_BYTES = 16 << 20
_LINE = re.compile(r"^(\w+)\{([^}]*)\} ([0-9.e+-]+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_FIELDS = {
    "nv_inference_pending_request_count": "waiting",
    "nv_inference_request_success": "ended",
    "nv_inference_request_failure": "ended",
    "shiplift_stuck_executions": "stuck",
    "shiplift_stopped_executions_total": "stopped",
}
_fetch = build_opener(ProxyHandler({})).open


@dataclass(kw_only=True)
class Counters:
    """A model's requests: those that wait, those that ended, and its executions that were stopped or did not stop.

    `versions` has the same for each version: one may be stuck while others answer.
    """

    waiting: float = 0
    ended: float = 0
    stuck: float = 0
    stopped: float = 0
    versions: dict[str, "Counters"] = field(default_factory=dict, compare=False)


def counters(metrics: str) -> dict[str, Counters]:
    """The counters of each model in a server's metrics, over all its versions."""
    models: dict[str, Counters] = {}
    for name, text, value in _LINE.findall(metrics):
        labels = dict(_LABEL.findall(text)) if name in _FIELDS else {}
        if "model" in labels:
            model = models.setdefault(labels["model"], Counters())
            for entry in (model, model.versions.setdefault(labels.get("version", ""), Counters())):
                setattr(entry, _FIELDS[name], getattr(entry, _FIELDS[name]) + float(value))
    return models


class Heartbeat:
    """Compares a server's counters over time. Times are in seconds, from any clock that never goes back."""

    def __init__(
        self, patience_s: float = PATIENCE_S, patience_of: Callable[[str], float | None] | None = None
    ) -> None:
        """`patience_of` may give a model a different patience."""
        self._patience_s, self._patience_of = patience_s, patience_of or (lambda _model: None)
        # By model and version: the requests that had ended, and since when.
        self._progress: dict[str, dict[str, tuple[float, float]]] = {}

    def stuck(self, models: dict[str, Counters], now: float) -> dict[str, str]:
        """Why each model that makes no progress is stuck."""
        before = self._progress
        self._progress = {model: _progress(before.get(model, {}), count, now) for model, count in models.items()}
        return {model: why for model, count in models.items() if (why := self._why(model, count, now))}

    def _why(self, model: str, count: Counters, now: float) -> str:
        if count.stuck > 0:
            return "an execution did not stop at its time limit"
        idle_s = now - min(since for _, since in self._progress[model].values())
        if idle_s < (self._patience_of(model) or self._patience_s):
            return ""
        return f"{count.waiting:.0f} requests wait, and none was answered for {idle_s:.0f} s"


def _progress(before: dict[str, tuple[float, float]], count: Counters, now: float) -> dict[str, tuple[float, float]]:
    """The progress of a model's versions: one that has requests and ended none keeps its time."""
    progress = {}
    for version, part in (count.versions or {"": count}).items():
        ended, since = before.get(version, (part.ended, now))
        progress[version] = (ended, since) if part.waiting and part.ended == ended else (part.ended, now)
    return progress


class Probe:
    """Checks one server repeatedly; `problem` is empty while it makes progress."""

    def __init__(self, heartbeat: Heartbeat, host: str = "127.0.0.1") -> None:
        self._heartbeat, self._host = heartbeat, host
        self._answered_at = time.monotonic()
        self.problem = ""

    def look(self) -> None:
        """One look."""
        now = time.monotonic()
        metrics = answer(f"http://{self._host}:{METRICS}/metrics")
        if metrics is not None and answer(f"http://{self._host}:{HTTP}/v2/health/live") is not None:
            self._answered_at = now
            stuck = self._heartbeat.stuck(counters(metrics), now)
            self.problem = "; ".join(f"{model}: {why}" for model, why in stuck.items())
        elif now - self._answered_at > _SILENCE_S:
            self.problem = f"Triton has not answered for {now - self._answered_at:.0f} s"


def answer(url: str) -> str | None:
    """The text at a URL of this machine; None if there is no successful answer in time."""
    with contextlib.suppress(OSError, URLError, ValueError), _fetch(url, timeout=_ANSWER_S) as response:
        return str(response.read(_MOST_BYTES).decode(errors="replace"))
    return None


class _Handler(BaseHTTPRequestHandler):
    timeout = _ANSWER_S
    probe: Probe

    def do_GET(self) -> None:
        body = (self.probe.problem or "ok").encode()
        self.send_response(503 if self.probe.problem else 200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing: the log belongs to the server."""


class Listener(ThreadingHTTPServer):
    """Has a thread per connection, and at most `most`: the oldest, which can't be a probe's, gives way to a new one."""

    daemon_threads = True
    request_queue_size = 128  # connections that were not accepted yet
    most = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection; closes the oldest if that makes too many."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > self.most:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forgets a connection that ends."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of connections that end: the log belongs to the server."""


def main() -> None:
    """Answers the liveness probe as long as its parent, the server, lives; writes new problems to the server's log."""
    parser = argparse.ArgumentParser(description="Says whether the Triton next to it gets on with its requests.")
    parser.add_argument("address", help="ADDRESS:PORT")
    parser.add_argument("--patience", type=float, default=PATIENCE_S)
    options = parser.parse_args()
    parent = os.getppid()
    host, _, port = options.address.rpartition(":")
    probe = _Handler.probe = Probe(Heartbeat(options.patience))
    with Listener((host, int(port)), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while os.getppid() == parent:
            before = probe.problem
            probe.look()
            if probe.problem != before:
                print(f"heartbeat: {probe.problem or 'it gets on again'}", file=sys.stderr, flush=True)
            time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
