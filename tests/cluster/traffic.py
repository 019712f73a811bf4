"""Clients of production: one sends requests without pause and counts failures, one compares Ready with the truth."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray


@dataclass
class Traffic:
    """Requests with one row for the input named `input`, over both protocols, with a pause after each answer.

    `authority` names the model's host at the gateway, `http_host` the one for HTTP, if it has another.
    """

    model: str
    gateway: str
    authority: str
    row: Any
    pause_s: float = 0.01
    timeout_s: float = 10
    http_port: int = 8000
    grpc_port: int = 8001
    http_host: str = ""
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    failed_at: list[float] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Traffic":
        self._threads = [threading.Thread(target=send, daemon=True) for send in (self._over_grpc, self._over_http)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    @property
    def body(self) -> dict[str, Any]:
        """The request as JSON."""
        values = self.row.ravel().tolist()
        return {"inputs": [{"name": "input", "shape": list(self.row.shape), "datatype": "FP32", "data": values}]}

    @contextmanager
    def grpc(self, timeout_s: float) -> Iterator[Callable[[], str]]:
        """A function that sends a request over gRPC and returns the version that answered."""
        again_ms = 100  # gRPC's second would show as an outage
        options: list[tuple[str, str | int]] = [
            ("grpc.default_authority", self.authority),
            ("grpc.initial_reconnect_backoff_ms", again_ms),
            ("grpc.min_reconnect_backoff_ms", again_ms),
            ("grpc.max_reconnect_backoff_ms", again_ms),
        ]
        with triton.InferenceServerClient(f"{self.gateway}:{self.grpc_port}", channel_args=options) as client:
            tensor = triton.InferInput("input", list(self.row.shape), "FP32")
            tensor.set_data_from_numpy(self.row)
            yield lambda: str(client.infer(self.model, [tensor], client_timeout=timeout_s).get_response().model_version)

    def _over_grpc(self) -> None:
        with self.grpc(self.timeout_s) as ask:
            self._repeat(ask)

    @contextmanager
    def http(self, timeout_s: float) -> Iterator[Callable[[], str]]:
        """A function that sends a request over HTTP and returns the version that answered."""
        url = f"http://{self.gateway}:{self.http_port}"
        host = {"Host": self.http_host} if self.http_host else {}
        with httpx.Client(base_url=url, trust_env=False, timeout=timeout_s, headers=host) as client:

            def ask() -> str:
                answer = client.post(f"/v2/models/{self.model}/infer", json=self.body)
                answer.raise_for_status()
                return str(answer.json()["model_version"])

            yield ask

    def _over_http(self) -> None:
        with self.http(self.timeout_s) as ask:
            self._repeat(ask)

    def _repeat(self, ask: Callable[[], str]) -> None:
        while not self._stop.wait(self.pause_s):
            try:
                version, problem = ask(), ""
            except Exception as error:
                version, problem = "", f"{type(error).__name__}: {error}"[:300]  # Triton's has no words in its repr
            with self._lock:
                self.sent += 1
                self.versions |= {version} - {""}
                self.failures += [problem] if problem else []
                self.failed_at += [time.monotonic()] if problem else []

    @property
    def outage_s(self) -> float:
        """The seconds between the first and the last failure."""
        return max(self.failed_at) - min(self.failed_at) if self.failed_at else 0.0


@contextmanager
def every_route(client: Traffic) -> Iterator[list[Callable[[], bool]]]:
    """Functions that say whether a model's routes answer a request: HTTP by path and by host, and gRPC."""
    url = f"http://{client.gateway}:8000/v2/models/{client.model}/infer"
    with client.grpc(1) as over_grpc, httpx.Client(timeout=1, trust_env=False) as http:

        def over_http(**headers: str) -> bool:
            return http.post(url, json=client.body, headers=headers).status_code == 200

        yield [over_http, lambda: over_http(Host=client.authority), lambda: bool(over_grpc())]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """For how long production and its status were watched, production was down, and the two disagreed, in seconds."""

    watched_s: float
    down_s: float
    ready_but_down_s: float
    serving_but_not_ready_s: float

    @property
    def percent(self) -> tuple[float, float]:
        """The shares of the time in which it was Ready while not serving, and not Ready while serving."""
        total = max(self.watched_s, 1e-9)
        return 100 * self.ready_but_down_s / total, 100 * self.serving_but_not_ready_s / total

    def __str__(self) -> str:
        ready, serving = self.percent
        return (
            f"watched for {self.watched_s:.0f} s, down for {self.down_s:.1f} s; Ready while not serving "
            f"{self.ready_but_down_s:.1f} s ({ready:.2f} %), not Ready while serving "
            f"{self.serving_but_not_ready_s:.1f} s ({serving:.2f} %)"
        )


@dataclass
class Prober:
    """Asks production and its status ten times a second, each on its own, and adds up how long they disagreed.

    Each of `served` sends a request on a route and says whether it was answered; the next one is sent on time even if
    it hangs. A route is down from the first to the last of at least three requests in a row that were not answered, and
    production if one of its routes is.
    `ready` gives what the status says against that, empty if it says that they are answered. Only what lasts longer
    than `grace_s` counts as a disagreement: both are asked at slightly different moments.
    """

    served: Sequence[Callable[[], bool]]
    ready: Callable[[], str]
    grace_s: float = 0.2
    began: float = field(default_factory=time.monotonic)
    _requests: dict[tuple[int, float], bool] = field(default_factory=dict)  # of a route, sent when: was it answered
    _statuses: list[tuple[float, str]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Prober":
        self.began = time.monotonic()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._look)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def seen(self, since: float = 0.0) -> Disagreement:
        """What was seen from a moment on (of `time.monotonic`), without requests that may still be answered."""
        times = np.arange(max(since, self.began), time.monotonic() - _PATIENCE_S, _TICK_S)
        down, ready = _within(times, self._outages()), ~_within(times, self._unready())
        return Disagreement(
            watched_s=len(times) * _TICK_S,
            down_s=float(down.sum()) * _TICK_S,
            ready_but_down_s=_longer_than(down & ready, self.grace_s),
            serving_but_not_ready_s=_longer_than(~down & ~ready, self.grace_s),
        )

    def log(self, since: float = 0.0) -> str:
        """When production was down, and when the status said that it is not ready, from a moment on."""
        why = dict(self._statuses.copy())
        spans = [("down", *span) for span in self._outages()]
        spans += [(f"not ready: {why[first]}", first, last) for first, last in self._unready()]
        return "\n".join(
            f"  {first - self.began:7.1f} to {last - self.began:7.1f} s: {what}"
            for what, first, last in sorted(spans, key=lambda span: span[1])
            if last >= since
        )

    def _send(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while not self._stop.wait(_EVERY_S):
                for route in range(len(self.served)):
                    pool.submit(self._ask, route, time.monotonic())

    def _ask(self, route: int, sent_at: float) -> None:
        self._requests[route, sent_at] = False
        with suppress(Exception):
            self._requests[route, sent_at] = self.served[route]()

    def _look(self) -> None:
        while not self._stop.wait(_EVERY_S):
            with suppress(Exception):  # what nobody could read was not wrong
                self._statuses.append((time.monotonic(), self.ready()))

    def _outages(self) -> list[tuple[float, float]]:
        """The spans in which at least three requests in a row were not answered on a route."""
        requests = sorted(self._requests.copy().items())
        return [
            span
            for route in range(len(self.served))
            for span in _spans([(at, not answered) for (of, at), answered in requests if of == route], least=3)
        ]

    def _unready(self) -> list[tuple[float, float]]:
        return _spans([(at, bool(problem)) for at, problem in list(self._statuses)], least=1)


_EVERY_S = 0.1
_TICK_S = 0.02
_PATIENCE_S = 1.5  # longer than a request may take
_AT_ONCE = 64  # requests that hang


def _spans(seen: list[tuple[float, bool]], *, least: int) -> list[tuple[float, float]]:
    """The spans of time in which something was seen at least so often in a row, each until it was not seen again."""
    spans: list[tuple[float, float]] = []
    run: list[float] = []
    for at, holds in [*seen, (seen[-1][0] if seen else 0.0, False)]:
        if holds:
            run.append(at)
            continue
        if len(run) >= least:
            spans.append((run[0], at))
        run = []
    return spans


def _within(times: NDArray[np.float64], spans: list[tuple[float, float]]) -> NDArray[np.bool_]:
    inside = np.zeros(len(times), dtype=bool)
    for first, last in spans:
        inside |= (times >= first) & (times < last)
    return inside


def _longer_than(holds: NDArray[np.bool_], grace_s: float) -> float:
    """The seconds for which something holds, without the first `grace_s` of each time."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(int)))
    lengths = (edges[1::2] - edges[::2]) * _TICK_S
    return float(np.maximum(lengths - grace_s, 0.0).sum())


def row(images: Any) -> Any:
    """The first image, as a batch of one row."""
    return np.ascontiguousarray(images[:1], dtype=np.float32)
