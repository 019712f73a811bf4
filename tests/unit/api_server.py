"""Just enough of an API server for what a real one can't be made to do on demand: fail, throttle, forbid, and be late.

It keeps objects by kind and name, answers 409 to a second creation, merges patches and pages lists, as the real one
does; the client that talks to it is the real one. Everything else is tested on a real cluster.
"""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from shiplift.runtime.serving.kubernetes.client import KubernetesClient

Object = dict[str, Any]
_WHERE = re.compile(r"^/(api/v1|apis/[^/]+/[^/]+)(/namespaces/[^/]+(?=/.)|)/?")


class ApiServer(ThreadingHTTPServer):
    """`objects` by plural and name; `faults` are statuses to answer the next requests with (0: hang up).

    `kinds` are what it knows, by the path of their group and version: what discovery tells. `created`
    does to a new object what a controller would.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self.kinds: dict[str, list[Object]] = {}
        self.faults: list[int] = []
        self.created: Callable[[Object], None] = lambda _: None
        self.asked: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    @property
    def workflows(self) -> dict[str, Object]:
        return self.objects["workflows"]

    def end(self, name: str, phase: str = "Succeeded", **status: Any) -> None:
        """What the controller does at a Workflow's end."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.workflows[name]["status"] = {"phase": phase, "finishedAt": now, "startedAt": now, **status}

    def api(self, namespace: str = "shiplift") -> KubernetesClient:
        """A client of this server."""
        from kubernetes import client

        settings = client.Configuration(host=f"http://127.0.0.1:{self.server_port}")
        settings.retries = False
        return KubernetesClient(namespace, connect=lambda: client.ApiClient(settings))


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece

    def _answer(self, status: int, body: Object) -> None:
        sent = json.dumps(body).encode()
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", "0")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        at = urlsplit(self.path)
        plural, _, name = _WHERE.sub("", at.path).partition("/")
        with self.server.lock:
            self.server.asked.append((self.command, at.path))
            fault = self.server.faults.pop(0) if self.server.faults else None
            if fault == 0:
                self.close_connection = True
            elif fault is not None:
                self._answer(fault, {"kind": "Status", "message": "as the test wants"})
            else:
                self._answer(*(self._done(plural, name, body, parse_qs(at.query)) if plural else self._known(at.path)))

    def _known(self, path: str) -> tuple[int, Object]:
        known = self.server.kinds.get(path)
        return (404, {"message": "404 page not found"}) if known is None else (200, {"resources": known})

    def _done(self, plural: str, name: str, body: Object, query: dict[str, list[str]]) -> tuple[int, Object]:
        there = self.server.objects[plural]
        if self.command == "POST":
            name = body["metadata"]["name"]
            if name in there:
                return 409, {"message": "already exists"}
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body["metadata"] |= {"uid": f"uid-of-{name}", "creationTimestamp": now}
            there[name] = body
            self.server.created(body)
            return 201, body
        if self.command == "PATCH" and "apply-patch" in self.headers["Content-Type"]:
            there.setdefault(name, body)
        if name and name not in there:
            return 404, {"message": "not found"}
        if self.command == "DELETE":
            wanted = body.get("preconditions", {}).get("uid", there[name]["metadata"].get("uid"))
            same = wanted == there[name]["metadata"].get("uid")
            return (200, there.pop(name)) if same else (409, {"message": "another uid"})
        if self.command == "PATCH":
            _merge(there[name], body)
        return 200, there[name] if name else _page(list(there.values()), query)

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _page(all_of_them: list[Object], query: dict[str, list[str]]) -> Object:
    for term in filter(None, query.get("labelSelector", [""])[0].split(",")):
        key, _, value = term.partition("=")
        all_of_them = [
            one for one in all_of_them if one["metadata"].get("labels", {}).get(key, None if value else "") == value
            or (not value and key in one["metadata"].get("labels", {}))
        ]  # fmt: skip
    first = int(query.get("continue", ["0"])[0])
    last = first + int(query.get("limit", ["1000000"])[0])
    more = {"continue": str(last)} if last < len(all_of_them) else {}
    return {"items": all_of_them[first:last], "metadata": more}


def _merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


@contextmanager
def running() -> Iterator[ApiServer]:
    """An API server for a while."""
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()
