"""Clients of production: one sends requests without pause and counts failures, one compares Ready with the truth."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as triton


@dataclass
class Traffic:
    """Requests with one row for the input named `input`, over both protocols, with a pause after each answer.

    `authority` names the model's host at the gateway.
    """

    model: str
    gateway: str
    authority: str
    row: Any
    pause_s: float = 0.01
    timeout_s: float = 10
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

    def _over_grpc(self) -> None:
        options = [("grpc.default_authority", self.authority)]
        with triton.InferenceServerClient(f"{self.gateway}:8001", channel_args=options) as client:
            tensor = triton.InferInput("input", list(self.row.shape), "FP32")
            tensor.set_data_from_numpy(self.row)
            limit_s = self.timeout_s
            self._repeat(
                lambda: str(client.infer(self.model, [tensor], client_timeout=limit_s).get_response().model_version)
            )

    def _over_http(self) -> None:
        body = {
            "inputs": [
                {"name": "input", "shape": list(self.row.shape), "datatype": "FP32", "data": self.row.ravel().tolist()}
            ]
        }
        with httpx.Client(base_url=f"http://{self.gateway}:8000", trust_env=False, timeout=self.timeout_s) as client:

            def ask() -> str:
                answer = client.post(f"/v2/models/{self.model}/infer", json=body)
                answer.raise_for_status()
                return str(answer.json()["model_version"])

            self._repeat(ask)

    def _repeat(self, ask: Callable[[], str]) -> None:
        while not self._stop.wait(self.pause_s):
            try:
                version, problem = ask(), ""
            except Exception as error:
                version, problem = "", repr(error)[:300]
            with self._lock:
                self.sent += 1
                self.versions |= {version} - {""}
                self.failures += [problem] if problem else []
                self.failed_at += [time.monotonic()] if problem else []

    @property
    def outage_s(self) -> float:
        """The seconds between the first and the last failure."""
        return max(self.failed_at) - min(self.failed_at) if self.failed_at else 0.0


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """For how long production and its status were watched, production was down, and the two disagreed, in seconds."""

    watched_s: float = 0
    down_s: float = 0
    ready_but_down_s: float = 0
    serving_but_not_ready_s: float = 0

    def __add__(self, more: "Disagreement") -> "Disagreement":
        return Disagreement(**{each.name: getattr(self, each.name) + getattr(more, each.name) for each in fields(self)})

    def __sub__(self, less: "Disagreement") -> "Disagreement":
        return Disagreement(**{each.name: getattr(self, each.name) - getattr(less, each.name) for each in fields(self)})

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

    `served` says whether a request is answered now, `ready` whether the status says so. Only what lasts longer than
    `grace_s` counts as a disagreement: both are asked at slightly different moments.
    """

    served: Callable[[], bool]
    ready: Callable[[], bool]
    grace_s: float = 0.2
    seen: Disagreement = Disagreement()
    log: list[str] = field(default_factory=list)
    _now: dict[str, bool] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> "Prober":
        self._now = {"served": self.served(), "ready": self.ready()}
        asks = {"served": self.served, "ready": self.ready}
        self._threads = [
            threading.Thread(target=self._ask, args=(name, ask), daemon=True) for name, ask in asks.items()
        ]
        self._threads.append(threading.Thread(target=self._compare, daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=30)

    def _ask(self, name: str, ask: Callable[[], bool]) -> None:
        while not self._stop.wait(0.1):
            try:
                answer = ask()
            except Exception:
                answer = False
            if answer != self._now[name]:
                self.log.append(f"{self.seen.watched_s:7.1f} s: {name} {answer}")
            self._now[name] = answer

    def _compare(self) -> None:
        last, since = time.monotonic(), 0.0
        while not self._stop.wait(0.1):
            now = time.monotonic()
            took, last = now - last, now
            served, ready = self._now["served"], self._now["ready"]
            since = since + took if served != ready else 0.0
            lies = took if since > self.grace_s else 0.0
            self.seen += Disagreement(
                watched_s=took, down_s=0 if served else took, ready_but_down_s=lies if ready else 0,
                serving_but_not_ready_s=lies if served else 0,
            )  # fmt: skip


def row(images: Any) -> Any:
    """The first image, as a batch of one row."""
    return np.ascontiguousarray(images[:1], dtype=np.float32)
