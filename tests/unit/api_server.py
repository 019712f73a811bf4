"""Just enough of an API server for what a real one can't be made to do on demand: fail, throttle, forbid, and be late.

It keeps objects by kind and name, answers 409 to a second creation and to the replacement of an object that has
changed since, merges patches, pages lists, writes logs and passes requests on to what is behind a Service, as the real
one does; the client that talks to it is the real one. Everything else is tested on a real cluster.
"""

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import urllib3
import yaml

from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.transport import Transport

Object = dict[str, Any]
_WHERE = re.compile(r"^/(api/v1|apis/[^/]+/[^/]+)(/namespaces/[^/]+(?=/.)|)/?")


class ApiServer(ThreadingHTTPServer):
    """`objects` by plural and name; `faults` are statuses to answer the next requests with (0: hang up).

    `kinds` are what it knows, by the path of their group and version: what discovery tells. `logs` are lines by pod;
    one that is followed goes on with `more` until that says None. A watch of a plural tells what `happened` to it,
    until that says None; `watched` are the plurals and the resource versions from which they were watched. `services`
    are the addresses of what is behind `NAME:PORT`. What is `forbidden`, by name, answers 403. `created` does to a new
    object what a controller would. `proofs` are the Authorization headers that arrived.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, dict[str, Object]] = defaultdict(dict)
        self.kinds: dict[str, list[Object]] = {}
        self.logs: dict[str, list[str]] = {}
        self.more: dict[str, Queue[str | None]] = defaultdict(Queue)
        self.services: dict[str, str] = {}
        self.forbidden: set[str] = set()
        self.happened: dict[str, Queue[Object | None]] = defaultdict(Queue)
        self.watched: list[tuple[str, str]] = []
        self.faults: list[int | None] = []
        self.created: Callable[[Object], None] = lambda _: None
        self.asked: list[tuple[str, str]] = []
        self.proofs: set[str] = set()
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
        transport = Transport(host=f"http://127.0.0.1:{self.server_port}", pool=urllib3.PoolManager(retries=False))
        return KubernetesClient(namespace, connect=lambda: transport)

    def kubeconfig(self, folder: Path) -> Path:
        """The same for who reads KUBECONFIG."""
        there = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "users": [{"name": "x", "user": {}}],
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(there))
        return folder / "kubeconfig"


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
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        at = urlsplit(self.path)
        plural, _, name = _WHERE.sub("", at.path).partition("/")
        name = name.removesuffix("/status")
        with self.server.lock:
            self.server.asked.append((self.command, at.path))
            self.server.proofs |= {self.headers["Authorization"]} - {None}
            fault = self.server.faults.pop(0) if self.server.faults else None
        if fault == 0:
            self.close_connection = True
        elif fault is not None or name in self.server.forbidden:
            self._refuse(fault or 403, "as the test wants")
        elif plural == "services" and "/proxy/" in name:
            service, _, path = name.partition("/proxy")
            self._pass_on(service, f"{path}?{at.query}" if at.query else path, sent)
        elif "watch" in parse_qs(at.query):
            self._watch(plural, parse_qs(at.query))
        elif plural == "pods" and name.endswith("/log"):
            self._log(name.removesuffix("/log"), parse_qs(at.query))
        else:
            body = json.loads(sent or "{}")
            with self.server.lock:
                self._answer(*(self._done(plural, name, body, parse_qs(at.query)) if plural else self._known(at.path)))

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message})

    def _pass_on(self, service: str, path: str, sent: bytes) -> None:
        """To what is behind a Service, and back."""
        if service not in self.server.services:
            self._refuse(404, f'services "{service}" not found')
            return
        url = f"{self.server.services[service]}{path}"
        headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
        answer = httpx.request(self.command, url, content=sent, headers=headers, trust_env=False, timeout=120)
        self.send_response(answer.status_code)
        for key, value in answer.headers.items():
            if key.lower() not in ("content-length", "transfer-encoding", "content-encoding", "connection"):
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def _log(self, pod: str, query: dict[str, list[str]]) -> None:
        if pod not in self.server.logs:
            self._refuse(404, f'pods "{pod}" not found')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in self.server.logs[pod][-int(query["tailLines"][0]) :]:
            self._chunk(f"{line}\n")
        while "follow" in query and (more := self.server.more[pod].get()) is not None:
            self._chunk(f"{more}\n")
        self._chunk("")

    def _watch(self, plural: str, query: dict[str, list[str]]) -> None:
        self.server.watched.append((plural, query.get("resourceVersion", [""])[0]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        while (event := self.server.happened[plural].get()) is not None:
            self._chunk(f"{json.dumps(event)}\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        sent = text.encode()
        self.wfile.write(f"{len(sent):x}\r\n".encode() + sent + b"\r\n")
        self.wfile.flush()

    def _known(self, path: str) -> tuple[int, Object]:
        if path in ("/api", "/apis"):
            return 200, self._groups(path)
        known = self.server.kinds.get(path)
        return (404, {"message": "404 page not found"}) if known is None else (200, {"resources": known})

    def _groups(self, path: str) -> Object:
        versions = [known.removeprefix(f"{path}/") for known in self.server.kinds if known.startswith(f"{path}/")]
        groups = [
            {
                "name": version.partition("/")[0],
                "versions": [{"version": version.partition("/")[2]}],
                "preferredVersion": {"version": version.partition("/")[2]},
            }
            for version in versions
        ]
        return {"versions": versions, "groups": groups}

    def _done(self, plural: str, name: str, body: Object, query: dict[str, list[str]]) -> tuple[int, Object]:
        there = self.server.objects[plural]
        if self.command == "POST":
            return self._created(there, body)
        if self.command == "PATCH" and "apply-patch" in self.headers["Content-Type"]:
            there.setdefault(name, body)
        if name and name not in there:
            return 404, {"message": "not found"}
        if self.command == "DELETE":
            expected = body.get("preconditions", {}).get("uid", there[name]["metadata"].get("uid"))
            same = expected == there[name]["metadata"].get("uid")
            return (200, there.pop(name)) if same else (409, {"message": "another uid"})
        if self.command == "PATCH":
            _merge(there[name], body)
        if self.command == "PUT" and not _replace(there, name, body):
            return 409, {"message": "another version"}
        return 200, there[name] if name else _page(list(there.values()), query)

    def _created(self, there: dict[str, Object], body: Object) -> tuple[int, Object]:
        name = body["metadata"].setdefault("name", "unnamed")
        if name in there:
            return 409, {"message": "already exists"}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body["metadata"] |= {"uid": f"uid-of-{name}", "creationTimestamp": now}
        there[name] = body
        self.server.created(body)
        return 201, body

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _replace(there: dict[str, Object], name: str, body: Object) -> bool:
    """Whether nobody had changed the object since it was read."""
    same = bool(body["metadata"].get("resourceVersion") == there[name]["metadata"].get("resourceVersion"))
    there[name] = body if same else there[name]
    return same


def _page(all_of_them: list[Object], query: dict[str, list[str]]) -> Object:
    for term in filter(None, query.get("labelSelector", [""])[0].split(",")):
        all_of_them = [body for body in all_of_them if _matches(body["metadata"].get("labels", {}), term)]
    first = int(query.get("continue", ["0"])[0])
    last = first + int(query.get("limit", ["1000000"])[0])
    more = {"continue": str(last)} if last < len(all_of_them) else {}
    return {"items": all_of_them[first:last], "metadata": more}


def _matches(labels: Object, term: str) -> bool:
    """Whether labels fulfil one term of a selector: `key=value`, `key` or `!key`."""
    key, equals, value = term.partition("=")
    if equals:
        return labels.get(key, None) == value
    return key.removeprefix("!") not in labels if key.startswith("!") else key in labels


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
        thread.join(timeout=120)
        server.server_close()
