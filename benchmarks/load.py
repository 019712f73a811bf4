"""The one load generator of `make bench`: a closed loop over HTTP/1.1 that costs little, since it shares the cores.

Every side gets this program, with request bytes built beforehand: one thread, one epoll, kept-alive sockets, no HTTP
library. It runs as a process of its own (`python -S load.py PLAN`), so that no side pays for another's Python, and
imports the standard library alone.
"""

import json
import re
import select
import socket
import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECEIVE = 1 << 20
_SILENCE_S = 60.0
_GIVE_UP = 100  # errors; a server that hangs up each time is not asked for ever


@dataclass(frozen=True)
class Plan:
    """What to send, to whom, for how long, and what every answer must look like.

    An answer is right in shape when its body has `length` bytes or, where numbers are written as text, `commas` commas;
    -1 checks nothing. The warm-up lasts at least until every connection has had an answer, the window at least until
    `least` answers came, both no longer than `most_s`.
    """

    host: str
    port: int
    requests: list[bytes]
    concurrency: int
    warm_s: float
    window_s: float
    most_s: float
    least: int
    length: int = -1
    commas: int = -1


@dataclass
class Counted:
    """Latencies in microseconds of the requests that began in the window, answers in it, and every error there was."""

    latencies_us: "array[float]" = field(default_factory=lambda: array("d"))
    answers: int = 0
    errors: int = 0
    first_error: str = ""
    seconds: float = 0.0
    client_cpu_s: float = 0.0


class _Connection:
    __slots__ = ("at", "began", "got", "left", "need", "socket", "wants")

    def __init__(self, plan: Plan, at: int) -> None:
        self.socket = socket.create_connection((plan.host, plan.port), timeout=_SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.at = at
        self.began = 0
        self.left: memoryview | None = None
        self.got: list[bytes] = []
        self.need = 0
        self.wants = False  # whether epoll is told that something is left to send


class Generator:
    """Keeps `concurrency` requests in flight, each sent when the one before it on its connection is answered."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counted = Counted()
        self.poll = select.epoll()
        self.connections: dict[int, _Connection] = {}
        self.flying = 0
        self.window_from = self.window_to = 0

    def run(self) -> Counted:
        """Warms up, measures, and waits for what is still in flight: slow requests count like fast ones."""
        for at in range(self.plan.concurrency):
            self._open(at)
        seen: set[int] = set()
        start = time.perf_counter_ns()
        warm, most = int(self.plan.warm_s * 1e9), int(self.plan.most_s * 1e9)
        self._loop(lambda now: now - start >= (warm if len(seen) == self.plan.concurrency else most), seen)
        cpu, self.window_from = time.process_time(), time.perf_counter_ns()
        begun, window = self.window_from, int(self.plan.window_s * 1e9)
        counted, least = self.counted, self.plan.least
        counted.answers = 0
        self._loop(lambda now: now - begun >= (window if counted.answers >= least else most), seen)
        self.window_to = time.perf_counter_ns()
        counted.seconds = (self.window_to - begun) / 1e9
        counted.client_cpu_s = time.process_time() - cpu
        answers = counted.answers
        until = self.window_to + int(_SILENCE_S * 1e9)
        self._loop(lambda now: self.flying == 0 or now > until, seen, again=False)
        counted.answers = answers
        if self.flying:
            self._failed(f"{self.flying} requests were never answered")
        return counted

    def _loop(self, over: Any, seen: set[int], *, again: bool = True) -> None:
        now = time.perf_counter_ns
        heard, wait = now(), self.poll.poll
        while self.connections and not over(now()):
            ready = wait(0.05)
            if not ready:
                if now() - heard > _SILENCE_S * 1e9:
                    self._failed(f"silence for {_SILENCE_S:.0f} s")
                    return
                continue
            heard = now()
            for number, event in ready:
                connection = self.connections[number]
                if connection.left is not None:
                    self._send_rest(connection)
                if event & ~select.EPOLLOUT:
                    self._receive(connection, seen, again)

    def _open(self, at: int) -> None:
        connection = _Connection(self.plan, at)
        self.connections[connection.socket.fileno()] = connection
        self.poll.register(connection.socket.fileno(), select.EPOLLIN)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        body = self.plan.requests[connection.at % len(self.plan.requests)]
        connection.at += 1
        self.flying += 1
        connection.began = time.perf_counter_ns()
        try:
            sent = connection.socket.send(body)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._reopen(connection, f"the connection broke: {error}")
            return
        if sent < len(body):
            connection.left = memoryview(body)[sent:]
            connection.wants = True
            self.poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, connection: _Connection) -> None:
        assert connection.left is not None
        try:
            connection.left = connection.left[connection.socket.send(connection.left) :] or None
        except BlockingIOError:
            return
        except OSError:  # what the server said before it closed is read next
            connection.left = None
        if connection.left is None:
            connection.wants = False
            self.poll.modify(connection.socket.fileno(), select.EPOLLIN)

    def _receive(self, connection: _Connection, seen: set[int], again: bool) -> None:
        try:
            data = connection.socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as error:
            self._reopen(connection, f"the connection broke: {error}")
            return
        if not data:
            self._reopen(connection, "the connection was closed")
            return
        if connection.got:
            connection.got.append(data)
            connection.need -= len(data)
            if connection.need > 0:
                return
            data = b"".join(connection.got)
            connection.got = []
        if self._whole(connection, data):
            seen.add(connection.socket.fileno())
            if again:
                self._send(connection)

    def _whole(self, connection: _Connection, data: bytes) -> bool:
        """Whether `data` is a whole answer, which is then counted; else it is kept for what is missing."""
        head = data.find(b"\r\n\r\n")
        if head < 0:
            connection.got, connection.need = [data], 1
            return False
        said = _LENGTH.search(data, 0, head + 2)
        if said is None:
            self._reopen(connection, f"no content-length in {data[:80]!r}")
            return False
        length = int(said.group(1))
        missing = head + 4 + length - len(data)
        if missing > 0:
            connection.got, connection.need = [data], missing
            return False
        self._answered(connection, data, head + 4, length)
        return True

    def _answered(self, connection: _Connection, data: bytes, at: int, length: int) -> None:
        taken = time.perf_counter_ns() - connection.began
        counted, plan = self.counted, self.plan
        self.flying -= 1
        counted.answers += 1
        if connection.began >= self.window_from > 0 and (not self.window_to or connection.began <= self.window_to):
            counted.latencies_us.append(taken / 1000)
        if data[9:12] != b"200":
            self._failed(f"HTTP {data[9:12]!r}: {data[at : at + 200]!r}")
        elif (plan.length >= 0 and length != plan.length) or (plan.commas >= 0 and data.count(b",", at) != plan.commas):
            self._failed(f"an answer of another shape: {data[at : at + 200]!r}")

    def _reopen(self, connection: _Connection, why: str) -> None:
        self._failed(why)
        self.flying -= 1
        number = connection.socket.fileno()
        self.poll.unregister(number)
        del self.connections[number]
        connection.socket.close()
        if self.counted.errors < _GIVE_UP:
            self._open(connection.at)

    def _failed(self, why: str) -> None:
        self.counted.errors += 1
        self.counted.first_error = self.counted.first_error or why


def read_plan(file: str) -> Plan:
    """A plan from JSON; its `requests` name a file with all requests one after another, and `sizes` cut it."""
    with open(file, "rb") as source:  # noqa: PTH123 - pathlib costs as much as the rest of this program's start
        given = json.load(source)
    with open(given.pop("requests"), "rb") as source:  # noqa: PTH123
        everything = source.read()
    requests, at = [], 0
    for size in given.pop("sizes"):
        requests.append(everything[at : at + size])
        at += size
    return Plan(requests=requests, **given)


def main() -> None:
    """Runs the plan named on the command line; prints what was counted, latencies included, as JSON."""
    counted = Generator(read_plan(sys.argv[1])).run()
    print(json.dumps(vars(counted) | {"latencies_us": [round(value, 1) for value in counted.latencies_us]}))


if __name__ == "__main__":
    main()
