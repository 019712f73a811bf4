"""The load generator of `make bench`: a closed loop over HTTP/1.1 with little overhead, since it shares the cores.

It is the same for every side: one thread, one epoll, keep-alive sockets, pre-encoded requests, no HTTP library.
It runs as its own process (`python -S load.py PLAN`), so that it never shares an interpreter with anything measured,
and imports only the standard library.
"""

import json
import os
import re
import select
import socket
import sys
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_RECEIVE = 1 << 20
_SILENCE_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_ERRORS = 100  # then connections are not reopened: a server may hang up every time


@dataclass(frozen=True)
class Plan:
    """What to send, where and for how long, and what every answer must look like.

    An answer has the right shape if its body has `length` bytes or, for numbers written as text, `commas` commas; -1
    skips the check. The warm-up lasts at least until every connection has had an answer, the window at least until
    `least` answers came, but neither lasts longer than `most_s`.
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
    pids: tuple[int, ...] = ()  # of the server's processes, whose CPU time in the window is reported


@dataclass
class Counted:
    """Latencies (us) of the requests sent in the window, the number of answers in it, and all errors."""

    latencies_us: "array[float]" = field(default_factory=lambda: array("d"))
    answers: int = 0
    errors: int = 0
    first_error: str = ""
    seconds: float = 0.0
    client_cpu_s: float = 0.0
    server_cpu_s: float = 0.0


class _Connection:
    __slots__ = ("missing", "received", "sent_at", "socket", "turn", "unsent")

    def __init__(self, plan: Plan, turn: int) -> None:
        self.socket = socket.create_connection((plan.host, plan.port), timeout=_SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.turn = turn  # the index of its next request
        self.sent_at = 0
        self.unsent: memoryview | None = None
        self.received: list[bytes] = []  # of an incomplete answer, which misses `missing` bytes
        self.missing = 0


class Generator:
    """Keeps `concurrency` requests in flight: a connection sends the next when the previous is answered."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counted = Counted()
        self.poll = select.epoll()
        self.connections: dict[int, _Connection] = {}
        self.in_flight = 0
        self.window_start = self.window_end = 0

    def run(self) -> Counted:
        """Warms up, measures, and waits for requests in flight, so that slow ones count like fast ones."""
        for turn in range(self.plan.concurrency):
            self._open(turn)
        answered: set[int] = set()
        start = time.perf_counter_ns()
        warm, most = int(self.plan.warm_s * 1e9), int(self.plan.most_s * 1e9)
        self._loop(lambda now: now - start >= (warm if len(answered) == self.plan.concurrency else most), answered)
        servers = cpu_seconds(self.plan.pids)
        cpu, self.window_start = time.process_time(), time.perf_counter_ns()
        start_of_window, window = self.window_start, int(self.plan.window_s * 1e9)
        counted, least = self.counted, self.plan.least
        counted.answers = 0
        self._loop(lambda now: now - start_of_window >= (window if counted.answers >= least else most), answered)
        self.window_end = time.perf_counter_ns()
        counted.seconds = (self.window_end - start_of_window) / 1e9
        counted.client_cpu_s = time.process_time() - cpu
        counted.server_cpu_s = used_between(servers, cpu_seconds(self.plan.pids))
        answers = counted.answers
        deadline = self.window_end + int(_SILENCE_S * 1e9)
        self._loop(lambda now: self.in_flight == 0 or now > deadline, answered, again=False)
        counted.answers = answers
        if self.in_flight:
            self._failed(f"{self.in_flight} requests were never answered")
        return counted

    def _loop(self, over: Any, answered: set[int], *, again: bool = True) -> None:
        now = time.perf_counter_ns
        last_event, wait = now(), self.poll.poll
        while self.connections and not over(now()):
            ready = wait(0.05)
            if not ready:
                if now() - last_event > _SILENCE_S * 1e9:
                    self._failed(f"no answer for {_SILENCE_S:.0f} s")
                    return
                continue
            last_event = now()
            for number, event in ready:
                connection = self.connections[number]
                if connection.unsent is not None:
                    self._send_rest(connection)
                if event & ~select.EPOLLOUT:
                    self._receive(connection, answered, again)

    def _open(self, turn: int) -> None:
        connection = _Connection(self.plan, turn)
        self.connections[connection.socket.fileno()] = connection
        self.poll.register(connection.socket.fileno(), select.EPOLLIN)
        self._send(connection)

    def _send(self, connection: _Connection) -> None:
        body = self.plan.requests[connection.turn % len(self.plan.requests)]
        connection.turn += 1
        self.in_flight += 1
        connection.sent_at = time.perf_counter_ns()
        try:
            sent = connection.socket.send(body)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._reopen(connection, f"the connection broke: {error}")
            return
        if sent < len(body):
            connection.unsent = memoryview(body)[sent:]
            self.poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _send_rest(self, connection: _Connection) -> None:
        assert connection.unsent is not None
        try:
            connection.unsent = connection.unsent[connection.socket.send(connection.unsent) :] or None
        except BlockingIOError:
            return
        except OSError:  # what the server sent before it closed is read next
            connection.unsent = None
        if connection.unsent is None:
            self.poll.modify(connection.socket.fileno(), select.EPOLLIN)

    def _receive(self, connection: _Connection, answered: set[int], again: bool) -> None:
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
        if connection.received:
            connection.received.append(data)
            connection.missing -= len(data)
            if connection.missing > 0:
                return
            data = b"".join(connection.received)
            connection.received = []
        if self._complete(connection, data):
            answered.add(connection.socket.fileno())
            if again:
                self._send(connection)

    def _complete(self, connection: _Connection, data: bytes) -> bool:
        """Whether `data` is a complete answer, which is then counted; an incomplete one waits for the rest."""
        head = data.find(b"\r\n\r\n")
        if head < 0:
            connection.received, connection.missing = [data], 1
            return False
        header = _LENGTH.search(data, 0, head + 2)
        if header is None:
            self._reopen(connection, f"no content-length in {data[:80]!r}")
            return False
        length = int(header.group(1))
        missing = head + 4 + length - len(data)
        if missing > 0:
            connection.received, connection.missing = [data], missing
            return False
        self._count(connection, data, head + 4, length)
        return True

    def _count(self, connection: _Connection, data: bytes, body_at: int, length: int) -> None:
        latency_ns = time.perf_counter_ns() - connection.sent_at
        counted, plan = self.counted, self.plan
        self.in_flight -= 1
        counted.answers += 1
        if connection.sent_at >= self.window_start > 0 and (
            not self.window_end or connection.sent_at <= self.window_end
        ):
            counted.latencies_us.append(latency_ns / 1000)
        if data[9:12] != b"200":
            self._failed(f"HTTP {data[9:12]!r}: {data[body_at : body_at + 200]!r}")
        elif (plan.length >= 0 and length != plan.length) or (
            plan.commas >= 0 and data.count(b",", body_at) != plan.commas
        ):
            self._failed(f"an answer of the wrong shape: {data[body_at : body_at + 200]!r}")

    def _reopen(self, connection: _Connection, why: str) -> None:
        self._failed(why)
        self.in_flight -= 1
        number = connection.socket.fileno()
        self.poll.unregister(number)
        del self.connections[number]
        connection.socket.close()
        if self.counted.errors < _MAX_ERRORS:
            self._open(connection.turn)

    def _failed(self, why: str) -> None:
        self.counted.errors += 1
        self.counted.first_error = self.counted.first_error or why


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """The CPU seconds, of user and system, that each process has used so far; those that are gone are left out."""
    seconds = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as below
                content = file.read()
        except OSError:
            continue
        seconds[pid] = cpu_ticks(content) / _TICKS_PER_S
    return seconds


def cpu_ticks(stat: bytes) -> int:
    """The ticks in a `/proc/PID/stat`: fields 14 and 15; field 2, the name, may contain spaces and parentheses."""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return int(fields[11]) + int(fields[12])


def used_between(before: dict[int, float], after: dict[int, float]) -> float:
    """The CPU seconds that the processes in both used; what one used that ended in between is not known."""
    return sum(after[pid] - before[pid] for pid in before.keys() & after.keys())


def read_plan(file: str) -> Plan:
    """Reads a plan from JSON; `requests` names a file of concatenated requests, `sizes` has their lengths in bytes."""
    with open(file, "rb") as source:  # noqa: PTH123 - pathlib costs as much as the rest of this program's start
        fields = json.load(source)
    with open(fields.pop("requests"), "rb") as source:  # noqa: PTH123
        content = source.read()
    requests, offset = [], 0
    for size in fields.pop("sizes"):
        requests.append(content[offset : offset + size])
        offset += size
    return Plan(requests=requests, **fields)


def main() -> None:
    """Runs the plan named on the command line; prints the counts and all latencies as JSON."""
    counted = Generator(read_plan(sys.argv[1])).run()
    print(json.dumps(vars(counted) | {"latencies_us": [round(value, 1) for value in counted.latencies_us]}))


if __name__ == "__main__":
    main()
