"""Limits on connections, so that slow, silent or idle clients can't lock out others (the slowloris attack).

Every listener has them. A connection waits until its request's headers are complete, for a few seconds at most. If too
many wait, from one source or in total, the one that has waited longest is closed: a real client sends its headers at
once. So at least half of the connections are kept for requests whose headers are there, and that were not refused: an
answer that is given before the body was read, such as to a wrong key, ends the connection. The number of requests in
progress per source is limited too. Uvicorn only limits the number of connections, which slow clients would use up, and
has no time-out for headers. The same is true of its alternatives (hypercorn, granian).
"""

import asyncio
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_BYTES = 16 << 10
_LINGER_S, _LINGER_BYTES = 1.0, 256 << 10  # so that a refused client that still sends its body can read why


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """The connections of one listener: all, those of one source, and the seconds until headers must be complete."""

    connections: int = 1024
    connections_per_source: int = 256
    header_timeout_s: float = 5


class Crowd:
    """The connections of one listener: those without a request in progress, oldest first, and requests by source."""

    def __init__(self, limits: ConnectionLimits, *, exempt: Callable[[str], bool] = lambda _: False) -> None:
        self._limits = limits
        self._exempt = exempt  # a proxy's address stands for many sources
        self._waiting: dict[GuardedProtocol, None] = {}
        self._in_progress: Counter[str] = Counter()

    def wait(self, connection: "GuardedProtocol") -> None:
        """Adds a connection that waits for headers; if that makes too many, closes the one that has waited longest."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None
        same = [each for each in self._waiting if each.source == connection.source]
        if len(same) > self._limits.connections_per_source and not self._exempt(connection.source):
            same[0].drop()
        if len(self._waiting) > self._limits.connections // 2:
            next(iter(self._waiting)).drop()

    def stop_waiting(self, connection: "GuardedProtocol") -> None:
        """Removes a connection that has complete headers or is closed."""
        self._waiting.pop(connection, None)

    def begin(self, source: str) -> bool:
        """Counts a request in progress; returns whether its source is still within its limit."""
        self._in_progress[source] += 1
        return self._exempt(source) or self._in_progress[source] <= self._limits.connections_per_source

    def end(self, source: str) -> None:
        """Counts a request as done."""
        self._in_progress[source] -= 1
        if self._in_progress[source] <= 0:
            del self._in_progress[source]


class GuardedProtocol(H11Protocol):
    """Uvicorn's HTTP protocol with a limit on the time until headers are complete, and on connections per source."""

    crowd: Crowd
    header_timeout_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for headers."""
        super().connection_made(transport)
        self.source = self.client[0] if self.client else ""
        self._counted = False
        self._timer: asyncio.TimerHandle | None = None
        self._discarded: int | None = None
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Waits for headers again if these are the first bytes of another request."""
        if self._discarded is not None:
            self._discarded += len(data)
            if self._discarded > _LINGER_BYTES:
                self.drop()
            return
        if not self._counted:
            self._await_headers()
        super().data_received(data)

    def handle_events(self) -> None:
        """Stops waiting once the headers are complete; refuses the request if its source has too many."""
        super().handle_events()
        if self._counted or self.conn.their_state is h11.IDLE:
            return
        self._stop_waiting()
        self._counted = True
        if not self.crowd.begin(self.source):
            self.drop()

    def on_response_complete(self) -> None:
        """Counts the request as done, and waits for the next. If the body was not read, ends the connection."""
        self._end()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._refuse_the_rest()
            return
        super().on_response_complete()
        if not self._counted and self._timer is None and not self.transport.is_closing():
            self.crowd.wait(self)  # idle: uvicorn's keep-alive timer closes it, unless others need its place

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._stop_waiting()
        self._end()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Closes the connection at once."""
        self._stop_waiting()
        self.transport.abort()

    def _refuse_the_rest(self) -> None:
        self._discarded = 0
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(_LINGER_S, self.drop)
        self.crowd.wait(self)  # uvicorn counts it until it is closed: it must not take the place of a request
        self.flow.resume_reading()

    def _await_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_timeout_s, self.drop)
            self.crowd.wait(self)

    def _stop_waiting(self) -> None:
        self.crowd.stop_waiting(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        if self._counted:
            self._counted = False
            self.crowd.end(self.source)


def guarded(limits: ConnectionLimits, *, exempt: Callable[[str], bool] = lambda _: False) -> type[Any]:
    """A protocol class for one listener of uvicorn. The limits per source don't apply to `exempt` sources."""
    shared = {"crowd": Crowd(limits, exempt=exempt), "header_timeout_s": limits.header_timeout_s}
    return type("Guarded", (GuardedProtocol,), shared)


def listener(
    app: Any,
    host: str,
    port: int,
    limits: ConnectionLimits,
    *,
    exempt: Callable[[str], bool] = lambda _: False,
    grace_s: float = 20,
    keep_alive_s: int = 5,
    **more: Any,
) -> uvicorn.Config:
    """How uvicorn listens under these limits; `more` are other settings of it."""
    settings: dict[str, Any] = {
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "h11_max_incomplete_event_size": HEADER_BYTES,
        "limit_concurrency": limits.connections,
        "timeout_keep_alive": keep_alive_s,
        "timeout_graceful_shutdown": int(grace_s),
        **more,
    }
    return uvicorn.Config(app, host=host, port=port, http=guarded(limits, exempt=exempt), **settings)


def serve_until_stopped(server: uvicorn.Server) -> None:
    """Serves until SIGTERM or Ctrl-C; what a person stops in a terminal has not failed.

    Uvicorn raises the signal again once it has ended, which would make it an interrupted command.
    """
    with contextlib.suppress(KeyboardInterrupt):
        server.run()


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone; of names, only `localhost` counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
