"""What a load generator is: it sends requests to a model, waiting for answers or not, and measures how they come.

Whichever program does it: how a request looks on disk is its own business, and nobody else names it. The one that
speaks a protocol is chosen in `load_generator`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.tensor import Signature

WireProtocol = Literal["grpc", "http"]


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a demand is measured: windows of `window_ms`, again until they agree, `attempts` times at most.

    Agreeing means that every window's throughput is within `stability_percent` of their mean. `percentile` is the
    latency that each window is kept with.
    """

    window_ms: int
    stability_percent: float = 20
    attempts: int = 3
    protocol: WireProtocol = "grpc"
    percentile: int = 99


@dataclass(frozen=True, kw_only=True)
class LoadTarget:
    """What is measured: a model at an address (`host:port`), with the file of requests to send.

    `sequences`: the model remembers, so its requests belong to sequences.
    """

    model: str
    address: str
    requests: Path
    sequences: bool = False


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What the client does: keeps `concurrency` requests under way, or sends at `rate_per_s` whatever comes back.

    Of a model that remembers, `concurrency` are sequences under way, each with one request at a time.
    """

    concurrency: int = 0
    rate_per_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.rate_per_s:.0f} requests/s" if self.rate_per_s else f"concurrency {self.concurrency}"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A model under a demand: the point, and every run that it took, as JSON-ready fields with their raw windows."""

    point: LoadPoint
    runs: tuple[Mapping[str, Any], ...]


class LoadGenerator(Protocol):
    """A program that makes load and measures it."""

    def write_requests(self, path: Path, signature: Signature, samples: Iterable[Arrays]) -> Path:
        """Writes requests of one sample each (arrays by input name, without a batch dimension), sent in turn."""

    def write_sequences(self, path: Path, signature: Signature, sequences: Iterable[Iterable[Arrays]]) -> Path:
        """Writes sequences of such requests; each sequence is sent in its order, under an id of its own."""

    def measure(self, target: LoadTarget, demand: Demand, window: Window, work: Path) -> Measurement:
        """The model's throughput (inferences per second) and latency percentiles; `work` is for the program's files.

        Raises:
            MissingTool: the program is not there.
            MeasurementFailed: it died, hung, or a request failed.
        """


def load_generator(site: Site, protocol: WireProtocol) -> LoadGenerator:
    """The load generator that speaks a protocol."""
    from shiplift.runtime.measure.perf_analyzer import PerfAnalyzer  # noqa: PLC0415 - it imports this module

    speaking: dict[WireProtocol, Callable[[Site], LoadGenerator]] = {"grpc": PerfAnalyzer.of, "http": PerfAnalyzer.of}
    return speaking[protocol](site)
