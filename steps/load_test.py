"""The load test: load on staging, of requests as users send them.

A sweep over concurrencies finds how the challenger behaves when clients wait for answers, arrivals at rates how it
behaves when they don't (only the second shows what a queue costs: coordinated omission). Then champion and challenger
are measured in turn on the same server, until their difference is decided. Every window is kept.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shiplift.runtime.base.errors import ArtifactCorrupt, MeasurementFailed, ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.measure import comparing, requests, sweep
from shiplift.runtime.measure.generator import Demand, LoadGenerator, LoadTarget, Window, load_generator
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.measurement import LoadPoint, LoadReport
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.serving import Champion, Deployment, Package, Staged
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.staging import Staging, staging
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget, Load
from shiplift.runtime.store.artifacts import ArtifactStore, json_lines

_SHORT_MS = 100
_ENOUGH = 30  # requests a window, for a percentile to mean something
_NEVER_ABOVE = 1.0  # of the closed loop's throughput: beyond it a queue grows without end, in the client's memory too


@dataclass(frozen=True, kw_only=True)
class _Side:
    """A staged model and the file with its requests; `name` is challenger or champion."""

    name: str
    staged: Staged
    requests: Path
    sequences: bool


@dataclass(frozen=True, kw_only=True)
class _LoadTest:
    """The load generator, used as the spec asks for, and every window measured so far."""

    generator: LoadGenerator
    load: Load
    work: Path
    raw: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, side: _Side, demand: Demand, phase: str, *, attempts: int = 1, window_ms: int = 0) -> LoadPoint:
        """One model under one demand."""
        staged = side.staged
        http = staged.endpoint.http.removeprefix("http://").split("/", 1)[0]
        address = staged.endpoint.grpc if self.load.protocol == "grpc" else http
        window = Window(
            window_ms=window_ms or self.load.window_ms,
            stability_percent=self.load.stability_percent,
            attempts=attempts,
            protocol=self.load.protocol,
        )
        target = LoadTarget(model=staged.model, address=address, requests=side.requests, sequences=side.sequences)
        measured = self.generator.measure(target, demand, window, self.work)
        self.raw.extend(
            {"phase": phase, "side": side.name, "demand": vars(demand), "window_ms": window.window_ms, **run}
            for run in measured.runs
        )
        return measured.point


def load_test(
    site: Site, deployment: Deployment, champion: Champion, load: Load, recorded_requests: RecordedRequests,
    latency_target: LatencyTarget, comparison_target: ComparisonTarget,
) -> LoadReport:  # fmt: skip
    """Sweeps the challenger, searches its highest rate, then compares it with the champion at its best throughput.

    Raises:
        MissingTool: the load generator is not there.
        MeasurementFailed: it died, or a request failed.
        DataInvalid: the recorded requests do not fit the model.
    """
    store = ArtifactStore(site.artifacts_uri)
    package = deployment.package
    place = staging(site, package.model, package.version)
    with TemporaryDirectory(prefix="shiplift-load-", dir=site.home) as folder:
        test = _LoadTest(generator=load_generator(site, load.protocol), load=load, work=Path(folder))

        def side(name: str, of: Package, staged: Staged) -> _Side:
            file = _requests(test, store, of, recorded_requests, name)
            return _Side(name=name, staged=staged, requests=file, sequences=of.sequences)

        staged = Staged(model=serving_name(package.model), endpoint=deployment.endpoint)
        challenger = side("challenger", package, staged)
        report = _alone(test, challenger, place, deployment, latency_target)
        rival, uncompared = None, _incomparable(champion)
        if champion.package is not None:
            try:
                rival = side("champion", champion.package, place.beside(deployment, champion.package))
            except (ArtifactCorrupt, ServerFailed) as error:
                uncompared = f"champion {champion.version} can't be measured beside the challenger: {error.what}"
        if rival is not None:
            report = _compared(test, challenger, rival, champion.version, report, comparison_target)
    raw = store.put_bytes(json_lines(test.raw))
    notes = tuple(_notes(report, uncompared, recorded_requests))
    return report.model_copy(update={"uncompared": uncompared, "notes": notes, "raw": raw})


def _alone(
    test: _LoadTest, challenger: _Side, place: Staging, deployment: Deployment, latency_target: LatencyTarget
) -> LoadReport:
    """The challenger by itself."""
    _warm_up(test, challenger)
    points = _sweep(test, challenger)
    rates, highest = _open_loop(test, challenger, points, latency_target)
    with TritonClient(deployment.endpoint.grpc) as client:
        failures = client.failures(challenger.staged.model)
    return LoadReport(
        points=points,
        open_points=rates,
        max_rate_per_s=highest,
        knee=sweep.knee(points),
        failures=failures,
        memory_mb=place.memory_mb(deployment),
        protocol=test.load.protocol,
    )


def _warm_up(test: _LoadTest, side: _Side) -> None:
    """Thrown away: connections, caches and the processor's clock are not the model's."""
    progress(f"warming up the {side.name}")
    test.measure(side, Demand(concurrency=max(test.load.concurrency)), "warm-up", window_ms=_SHORT_MS)


def _sweep(test: _LoadTest, side: _Side) -> tuple[LoadPoint, ...]:
    points = []
    levels = sorted(set(test.load.concurrency))
    for at, concurrency in enumerate(levels):
        progress(f"measuring at concurrency {concurrency}", at / len(levels))
        demand = Demand(concurrency=concurrency)
        points.append(test.measure(side, demand, "sweep", attempts=test.load.attempts))
    return tuple(points)


def _open_loop(
    test: _LoadTest, side: _Side, points: tuple[LoadPoint, ...], latency_target: LatencyTarget
) -> tuple[tuple[LoadPoint, ...], float | None]:
    """Points at rates, and the highest one within the p99 limit, by binary search within the time allowed."""
    deadline = time.monotonic() + test.load.open_loop_s
    best = max(point.throughput_per_s for point in points)
    limit = latency_target.p99_ms
    found: list[LoadPoint] = []
    for rate in sweep.rates_to_try(best * _NEVER_ABOVE, limit, found):
        window_ms = max(_SHORT_MS, test.load.window_ms // 2, int(_ENOUGH / rate * 1000))
        if time.monotonic() + window_ms * 3 / 1000 > deadline:
            break
        progress(f"measuring at {rate:.0f} requests/s")
        try:
            found.append(test.measure(side, Demand(rate_per_s=rate), "open loop", window_ms=window_ms))
        except MeasurementFailed:  # a rate it can't take is an answer of the search, not an end of the release
            break
    within = [point.rate_per_s for point in found if limit is not None and sweep.sustained(point, limit)]
    return tuple(sorted(found, key=lambda point: point.rate_per_s)), max(within, default=None)


def _incomparable(champion: Champion) -> str:
    if champion.package is not None:
        return ""
    if not champion.version:
        return "there is no champion to compare with"
    return f"version {champion.version} was not promoted by Shiplift: there is nothing to compare with"


def _compared(
    test: _LoadTest, challenger: _Side, rival: _Side, version: int, report: LoadReport, target: ComparisonTarget
) -> LoadReport:
    """The report, with both in turn at the challenger's best throughput, and the champion's own sweep."""
    load = test.load
    best = max(report.points, key=lambda point: point.throughput_per_s)
    window_ms = max(_SHORT_MS, load.window_ms // 2, int(_ENOUGH / best.throughput_per_s * 1000))
    demand = Demand(concurrency=best.concurrency)
    _warm_up(test, rival)
    comparison = comparing.compare(
        lambda: test.measure(rival, demand, "comparison", window_ms=window_ms),
        lambda: test.measure(challenger, demand, "comparison", window_ms=window_ms),
        version,
        best.concurrency,
        comparing.Plan(rounds=load.comparison_rounds, budget_s=load.comparison_budget_s, target=target),
    )
    points = tuple(
        test.measure(rival, Demand(concurrency=point.concurrency), "champion's sweep", window_ms=window_ms)
        for point in report.points
    )
    return report.model_copy(update={"comparison": comparison, "champion_points": points})


def _notes(report: LoadReport, uncompared: str, recorded_requests: RecordedRequests) -> Iterator[str]:
    if uncompared:
        yield uncompared
    if recorded_requests.file:
        yield f"requests were those logged at {recorded_requests.name}"
    if any(point.client_saturated for point in (*report.points, *report.open_points)):
        yield "the client was the limit at the points marked so: the server can do more than they say"
    for point in report.open_points:
        near = [one for one in report.points if one.throughput_per_s >= point.throughput_per_s]
        closed = min(near, key=lambda one: one.throughput_per_s, default=None)
        if closed and point.p99_ms > 2 * closed.p99_ms:
            yield (
                f"at {point.rate_per_s:.0f} requests/s the p99 is {point.p99_ms:.1f} ms when arrivals don't wait for "
                f"answers; clients that wait saw {closed.p99_ms:.1f} ms (coordinated omission)"
            )


def _requests(
    test: _LoadTest, store: ArtifactStore, package: Package, recorded_requests: RecordedRequests, side: str
) -> Path:
    """The package of a side, fetched, and its requests: recorded ones, or ones shaped like its golden ones."""
    to = test.work / side
    golden = load_npz(store.fetch(package.repository, to) / GOLDEN)
    file = recorded_requests.file
    logged = (store.read(file), recorded_requests.name) if file else None
    return requests.write(test.generator, to.with_suffix(".json"), package, golden, test.load, logged)
