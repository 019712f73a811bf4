"""Limits for servers of `http.server` and `wsgiref`, which have a thread per connection and no limit of their own.

As in `listeners`, a connection that has waited longest for its headers is closed if too many wait.
"""

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn
from typing import Any


class BoundedThreads(ThreadingMixIn):
    """A server with a thread per connection, of which at most `most` wait for their headers; see `Received`."""

    daemon_threads = True
    request_queue_size = 128  # connections that were not accepted yet
    most = 128

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection; closes the one that has waited longest if that makes too many."""
        with self._lock:
            self._waiting[request] = None
            if len(self._waiting) > self.most:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def received(self, request: Any) -> None:
        """Headers of this connection are complete."""
        with self._lock:
            self._waiting.pop(request, None)

    def shutdown_request(self, request: Any) -> None:
        """Forgets a connection that ends."""
        self.received(request)
        super().shutdown_request(request)  # type: ignore[misc] # socketserver's own server has it


class Received(BaseHTTPRequestHandler):
    """A handler that tells its server when a request's headers are complete."""

    timeout = 5

    def handle(self) -> None:
        """Answers; a connection that ends or says nothing is no error."""
        with suppress(TimeoutError, ConnectionError):
            super().handle()

    def parse_request(self) -> bool:
        """Reads the headers."""
        complete = super().parse_request()
        self.server.received(self.connection)  # type: ignore[attr-defined] # of `BoundedThreads`
        return complete
