"""The sides of a load test, champion and challenger, and the test that measures them. Every window is kept."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiplift.runtime.measure.generator import Demand, LoadGenerator, LoadTarget, Window
from shiplift.runtime.records.deployment import Staged
from shiplift.runtime.records.measurement import LoadPoint
from shiplift.runtime.records.site import Site
from shiplift.runtime.spec.measurement import Load


@dataclass(frozen=True, kw_only=True)
class Side:
    """A staged model and the file with its requests; `name` is "challenger" or "champion"."""

    name: str
    staged: Staged
    requests: Path
    sequences: bool


@dataclass(frozen=True, kw_only=True)
class LoadTest:
    """The load generator, configured by the spec, and every window measured so far."""

    site: Site
    generator: LoadGenerator
    load: Load
    work: Path
    raw: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, side: Side, demand: Demand, phase: str, *, attempts: int = 1, window_ms: int = 0) -> LoadPoint:
        """Measures one side under one demand."""
        staged = side.staged
        http = staged.endpoint.http.removeprefix("http://").split("/", 1)[0]
        address = staged.endpoint.grpc if self.load.protocol == "grpc" else http
        window = Window(
            window_ms=window_ms or self.load.window_ms,
            stability_percent=self.load.stability_percent,
            attempts=attempts,
            protocol=self.load.protocol,
            percentile=self.load.percentile or 99,
            steady_latency=self.load.percentile is not None,
        )
        target = LoadTarget(
            model=staged.model, address=address, requests=side.requests, sequences=side.sequences, batch=self.load.batch
        )
        measured = self.generator.measure(target, demand, window, self.work)
        self.raw.extend(
            {"phase": phase, "side": side.name, "demand": vars(demand), "window_ms": window.window_ms, **run}
            for run in measured.runs
        )
        return measured.point
