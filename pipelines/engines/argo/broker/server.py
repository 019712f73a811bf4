"""Does what needs a secret, and nothing else, for stages that handle an author's files.

    python -m shiplift.pipelines.engines.argo.broker.server admit+export --out DIR --site '{...}' --request '{...}' ...

It runs in its own container in the stages' pod, with the registry's credentials, the ledger's key, and the same
arguments as the stages. `permissions` decides what the current stage may ask for. The client is `runtime.store.broker`.
Artifacts are served with the protocol of `runtime.store.mlflow.artifact_proxy`.
"""

import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.server import HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from shiplift.pipelines.engines.argo.broker.permissions import Denied, StagePermissions
from shiplift.pipelines.engines.argo.broker.pod_permissions import PodPermissions
from shiplift.pipelines.engines.argo.pod.call import link_mounts, parse
from shiplift.pipelines.engines.attempt import failure_of
from shiplift.runtime.base.errors import NotFound, VersionReplaced
from shiplift.runtime.host.bounded_threads import BoundedThreads, Received
from shiplift.runtime.records.site import Site
from shiplift.runtime.store.broker import END, FAILED, GO_ON, HOST, PORT
from shiplift.runtime.store.mlflow.artifact_proxy import API

_CHUNK = 1 << 20
_PAUSE_S = 600.0
_MAX_RECORD_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Reply:
    """The body of a response, in memory or in a file. A `fetched` file is removed after it is sent."""

    body: bytes = b""
    file: Path | None = None
    fetched: bool = False


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """A stage's request: the groups of its path, its query, and a file with its body."""

    permissions: StagePermissions
    at: tuple[str, ...]
    query: Mapping[str, str]
    sent: Path


_DIGEST = "([0-9a-f]{64})"
_BLOB = f"{API}/shiplift/sha256/[0-9a-f]{{2}}/{_DIGEST}"


def _json(value: Any) -> Reply:
    return Reply(json.dumps(value).encode())


def _list(asked: StageRequest) -> Reply:
    path = asked.query.get("path", "")
    match = re.fullmatch(r"shiplift/sha256/([0-9a-f]{2})", path)
    if match is None:
        raise Denied(f"this stage may not list {path!r}")
    return _json({"files": asked.permissions.listing(match.group(1))})


def _go_on(asked: StageRequest) -> Reply:
    records = asked.permissions.go_on()
    if records is None:
        raise FileNotFoundError("the stages that follow can't run in this pod")
    return _json({name: record.model_dump(mode="json") for name, record in records.items()})


def _put_blob(asked: StageRequest) -> Reply:
    (sha256,) = asked.at
    asked.permissions.store(sha256, asked.sent)
    return Reply()


def _put_record(asked: StageRequest) -> Reply:
    stage, name = asked.at
    asked.permissions.put_record(stage, name, _small(asked.sent))
    return Reply()


def _put_tuned(asked: StageRequest) -> Reply:
    asked.permissions.put_tuned(asked.query["name"], _small(asked.sent))
    return Reply()


# Every request that is allowed, and the function that answers it.
_ROUTES: tuple[tuple[str, str, Callable[[StageRequest], Reply]], ...] = (
    ("GET", "/ready", lambda _: Reply()),
    ("PUT", END, lambda _: Reply()),
    ("PUT", GO_ON, _go_on),
    ("GET", "/version", lambda asked: _json(asdict(asked.permissions.version.info))),
    ("GET", "/run", lambda asked: Reply(asked.permissions.version.run_id.encode())),
    ("GET", "/run/file", lambda asked: Reply(file=asked.permissions.run_file(asked.query["run"], asked.query["path"]))),
    ("GET", "/model", lambda asked: _json(asked.permissions.version.files())),
    ("GET", "/model/file", lambda asked: Reply(file=asked.permissions.model_file(asked.query["name"]))),
    ("GET", "/captured/([^/]+)/files", lambda asked: Reply(asked.permissions.captured_files(*asked.at))),
    ("GET", "/captured/([^/]+)/files/([^/]+)", lambda asked: Reply(asked.permissions.captured_file(*asked.at))),
    ("GET", f"/records/([a-z_]+)/{_DIGEST}", lambda asked: Reply(asked.permissions.record(*asked.at))),
    ("PUT", f"/records/([a-z_]+)/{_DIGEST}", _put_record),
    ("GET", "/explanation", lambda asked: _json(asked.permissions.explanation(asked.query["what"], asked.query["do"]))),
    ("GET", "/tuning-cache", lambda asked: Reply(asked.permissions.tuned(asked.query["name"]))),
    ("PUT", "/tuning-cache", _put_tuned),
    ("GET", API, _list),
    ("GET", _BLOB, lambda asked: Reply(file=asked.permissions.artifact(*asked.at), fetched=True)),
    ("PUT", _BLOB, _put_blob),
)


def _small(sent: Path) -> bytes:
    if sent.stat().st_size > _MAX_RECORD_BYTES:
        raise Denied(f"a record of {sent.stat().st_size} bytes; the limit is {_MAX_RECORD_BYTES}")
    return sent.read_bytes()


def answer(permissions: StagePermissions, method: str, target: str, sent: Path) -> tuple[int, Reply]:
    """The status and body of the response to a request."""
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        for verb, pattern, act in _ROUTES:
            match = re.fullmatch(pattern, unquote(parts.path))
            if verb == method and match:
                return 200, act(StageRequest(permissions=permissions, at=match.groups(), query=query, sent=sent))
        raise Denied(f"a broker does not answer {method} {parts.path}")
    except VersionReplaced as error:
        return FAILED, Reply(failure_of(error).model_dump_json().encode())
    except (FileNotFoundError, NotFound, KeyError) as error:
        return 404, Reply(str(error).encode())
    except Denied as error:
        print(f"denied: {error}", file=sys.stderr, flush=True)
        return 403, Reply(str(error).encode())
    except Exception as error:
        return FAILED, Reply(failure_of(error).model_dump_json().encode())


class _Handler(Received):
    """Answers the requests that the server's permissions allow."""

    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        self._respond()

    def do_PUT(self) -> None:  # noqa: N802 - as above
        self._respond()

    def _respond(self) -> None:
        self.connection.settimeout(_PAUSE_S)  # a stage may compute between two requests, or two parts of a file
        permissions = self.server.permissions.now
        with tempfile.TemporaryDirectory(dir=permissions.version.folder) as folder:
            sent = Path(folder) / "sent"
            _receive(self.rfile, int(self.headers.get("Content-Length") or 0), sent)
            self._send(*answer(permissions, self.command, self.path, sent))
        if self.path == END:
            self.server.shutdown()  # can't deadlock: each request has a thread of its own

    def log_message(self, *_: Any) -> None:
        """Logs nothing: a stage makes hundreds of requests."""

    def _send(self, status: int, reply: Reply) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(reply.file.stat().st_size if reply.file else len(reply.body)))
        self.end_headers()
        if reply.file is None:
            self.wfile.write(reply.body)
            return
        with reply.file.open("rb") as file:
            shutil.copyfileobj(file, self.wfile, _CHUNK)
        if reply.fetched:
            reply.file.unlink()


class _Server(BoundedThreads, HTTPServer):
    def __init__(self, permissions: PodPermissions, port: int) -> None:
        self.permissions = permissions
        super().__init__((HOST, port), _Handler)


def server(permissions: PodPermissions, port: int = PORT) -> HTTPServer:
    """A server on loopback, which answers what the current stage may ask."""
    return _Server(permissions, port)


def _receive(source: Any, size: int, to: Path) -> None:
    with to.open("wb") as file:
        while size > 0 and (chunk := source.read(min(size, _CHUNK))):
            file.write(chunk)
            size -= len(chunk)


def main() -> int:
    """Serves the stages that the command line names, until they end."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # sent after the stages have ended: nothing left to finish
    try:
        call = parse(sys.argv[1:])
        link_mounts(call.arguments[Site.parameter()])
        with tempfile.TemporaryDirectory(prefix="broker-") as folder:
            server(PodPermissions(call, Path(folder))).serve_forever(poll_interval=0.05)
        os._exit(0)  # at once: Argo's SIGTERM during Python's shutdown would mark the pod as failed
    except Exception as error:
        failure = failure_of(error)
        print(failure.message, file=sys.stderr, flush=True)
        return failure.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
