"""A client that sends requests to production through the gateway without pause, and counts failures."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import tritonclient.grpc as triton


@dataclass
class Traffic:
    """Requests with one row for the input named `input`; `authority` names the model's host at the gateway."""

    model: str
    gateway: str
    authority: str
    row: Any
    sent: int = 0
    failures: list[str] = field(default_factory=list)
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
            self._repeat(
                lambda: str(client.infer(self.model, [tensor], client_timeout=10).get_response().model_version)
            )

    def _over_http(self) -> None:
        body = {
            "inputs": [
                {"name": "input", "shape": list(self.row.shape), "datatype": "FP32", "data": self.row.ravel().tolist()}
            ]
        }
        with httpx.Client(base_url=f"http://{self.gateway}:8000", trust_env=False, timeout=10) as client:

            def ask() -> str:
                answer = client.post(f"/v2/models/{self.model}/infer", json=body)
                answer.raise_for_status()
                return str(answer.json()["model_version"])

            self._repeat(ask)

    def _repeat(self, ask: Callable[[], str]) -> None:
        while not self._stop.wait(0.01):
            try:
                version, problem = ask(), ""
            except Exception as error:
                version, problem = "", repr(error)[:300]
            with self._lock:
                self.sent += 1
                self.versions |= {version} - {""}
                self.failures += [problem] if problem else []


def row(images: Any) -> Any:
    """The first image, as a batch of one row."""
    return np.ascontiguousarray(images[:1], dtype=np.float32)
