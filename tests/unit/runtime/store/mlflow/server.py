"""Just enough of an MLflow server for faults that a real one can't produce on demand: odd TLS, failing, hanging up."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


class MlflowServer(ThreadingHTTPServer):
    """`files` by path; `faults` are statuses to answer the next requests with (0: hang up).

    `asked` are the requests' methods and paths, `proofs` their Authorization headers.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[int] = []
        self.asked: list[tuple[str, str]] = []
        self.proofs: list[str | None] = []

    def handle_error(self, *_: Any) -> None:
        """A client that refuses the certificate is what a test wants."""


class _Handler(BaseHTTPRequestHandler):
    server: MlflowServer

    def do_GET(self) -> None:
        self._respond(b"")

    def do_PUT(self) -> None:
        self._respond(self.rfile.read(int(self.headers["Content-Length"])))

    def do_DELETE(self) -> None:
        self._respond(b"")

    def _respond(self, sent: bytes) -> None:
        self.server.asked.append((self.command, self.path))
        self.server.proofs.append(self.headers.get("Authorization"))
        fault = self.server.faults.pop(0) if self.server.faults else 200
        if not fault:
            return
        status, body = (fault, b"{}") if fault != 200 else self._answer(sent)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, sent: bytes) -> tuple[int, bytes]:
        parts = urlsplit(self.path)
        if not parts.path.startswith(_ARTIFACTS):
            return 404, b"{}"
        name = unquote(parts.path.removeprefix(_ARTIFACTS)).strip("/")
        if not name:
            return 200, self._list(parse_qs(parts.query)["path"][0])
        if self.command == "PUT":
            self.server.files[name] = sent
        there = self.server.files.get(name)
        if self.command == "DELETE":
            self.server.files.pop(name, None)
        return (404, b"{}") if there is None else (200, there)

    def _list(self, folder: str) -> bytes:
        inside = {name: body for name, body in self.server.files.items() if name.rpartition("/")[0] == folder}
        files = [
            {"path": name.rpartition("/")[2], "is_dir": False, "file_size": len(body)} for name, body in inside.items()
        ]
        return json.dumps({"files": files}).encode()

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def running(context: ssl.SSLContext | None = None) -> Iterator[MlflowServer]:
    """A server that runs, with TLS if there is a context."""
    server = MlflowServer()
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(timeout=120)
        server.server_close()
