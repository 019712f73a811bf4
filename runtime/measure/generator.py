"""The protocol of a load generator: it sends requests to a model, in closed or open loop, and measures the answers.

Each program has its own file format for requests. `generators.load_generator` chooses the program for a wire protocol.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.tensor import Signature

WireProtocol = Literal["grpc", "http"]


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a demand is measured: in windows of `window_ms`, repeated until they agree, at most `attempts` times.

    Windows agree if each one's throughput is within `stability_percent` of their mean. With `steady_latency`, this also
    holds for each one's latency at `percentile`. That latency is recorded in any case.
    """

    window_ms: int
    stability_percent: float = 20
    attempts: int = 3
    protocol: WireProtocol = "grpc"
    percentile: int = 99
    steady_latency: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadTarget:
    """What is measured: a model at an address (`host:port`), with the file of requests to send.

    `sequences`: the model is stateful, so its requests belong to sequences. A request has `batch` samples.
    """

    model: str
    address: str
    requests: Path
    sequences: bool = False
    batch: int = 1


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the client does: keeps `concurrency` requests in flight, or sends `rate_per_s` samples without waiting.

    For a stateful model, `concurrency` counts sequences in flight, each with one request at a time.
    """

    concurrency: int = 0
    rate_per_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.rate_per_s:.0f} requests/s" if self.rate_per_s else f"concurrency {self.concurrency}"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measurement of a model under a demand: the point, and every run behind it as JSON-ready fields."""

    point: LoadPoint
    runs: tuple[Mapping[str, Any], ...]


class LoadGenerator(Protocol):
    """A program that generates load and measures the answers."""

    def write_requests(self, path: Path, signature: Signature, samples: Iterable[Arrays]) -> Path:
        """Writes requests of one sample each (arrays by input name, no batch dimension), to be sent in turn."""

    def write_sequences(self, path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:
        """Writes sequences of such requests; each sequence is sent in order, under its own id."""

    def measure(self, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Measurement:
        """Measures throughput (inferences per second) and latency percentiles; `work` is for the program's files.

        Raises:
            MissingTool: the program is not installed.
            MeasurementFailed: the program died or hung, or a request failed.
        """
