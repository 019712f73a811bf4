"""The load test: puts the staging server under load with requests like those that users send.

A sweep over concurrencies shows how the challenger behaves when clients wait for answers (closed loop), arrivals at
fixed rates how it behaves when they don't (open loop). Only the second shows what a queue costs: the first suffers from
coordinated omission. Then champion and challenger are measured in alternation on the same server until their difference
is decided. Every window is kept.
"""

import csv
import io
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiplift.runtime.base.errors import ArtifactCorrupt, DataInvalid, MeasurementFailed, ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.families import table
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.measure import comparing, requests, sweep
from shiplift.runtime.measure.cancellations import cancelled
from shiplift.runtime.measure.generator import Demand, LoadGenerator, LoadTarget, Window, load_generator
from shiplift.runtime.measure.logged import write_recorded
from shiplift.runtime.measure.members import member_loads, timings_of
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.measurement import LoadPoint, LoadReport
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.serving import Champion, Deployment, Package, Staged
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.staging import Staging, staging
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget, Load
from shiplift.runtime.store.artifacts import ArtifactStore, json_lines

_MIN_WINDOW_MS = 100
_MIN_REQUESTS = 30  # per window, for a percentile to mean something
_MAX_RATE = 1.0  # times the closed loop's throughput: beyond it a queue grows without end, even in the client's memory


@dataclass(frozen=True, kw_only=True)
class _Side:
    """A staged model and the file with its requests; `name` is "challenger" or "champion"."""

    name: str
    staged: Staged
    requests: Path
    sequences: bool


@dataclass(frozen=True, kw_only=True)
class _LoadTest:
    """The load generator, configured by the spec, and every window measured so far."""

    site: Site
    generator: LoadGenerator
    load: Load
    work: Path
    raw: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, side: _Side, demand: Demand, phase: str, *, attempts: int = 1, window_ms: int = 0) -> LoadPoint:
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


def load_test(
    site: Site, deployment: Deployment, champion: Champion, load: Load, recorded_requests: RecordedRequests,
    latency_target: LatencyTarget, comparison_target: ComparisonTarget,
) -> LoadReport:  # fmt: skip
    """Sweeps the challenger, finds its highest rate, then compares it with the champion at its best throughput.

    Each target that serves is measured by itself, one after the other; the first is compared with the champion.

    Raises:
        MissingTool: the load generator is not installed.
        MeasurementFailed: it died, or a request failed.
        DataInvalid: the recorded requests, or requests of `load.batch` samples, do not fit the model.
    """
    store = ArtifactStore(site.artifacts_uri)
    package = deployment.package
    for serving in (package, *(other.package for other in deployment.others)):
        if problem := requests.batch_problem(serving, load):
            raise DataInvalid(problem, do="Set `load: {batch: 1}`, or a size that the model takes.")
    place = staging(site, package.model, package.version)
    with scratch_folder(Path(site.home)) as folder:
        generator = load_generator(site, load.protocol, streamed=package.signature.streamed)
        drawn = _with_lengths(store, package, load, recorded_requests)
        test = _LoadTest(site=site, generator=generator, load=drawn, work=folder)

        def side(name: str, package: Package, staged: Staged) -> _Side:
            file = _write_requests(test, store, package, recorded_requests, name)
            return _Side(name=name, staged=staged, requests=file, sequences=package.stateful)

        staged = Staged(model=serving_name(package.model), endpoint=deployment.endpoint)
        challenger = side("challenger", package, staged)
        report = _challenger_report(test, challenger, place, deployment, latency_target)
        beside_first = []
        for other in deployment.others:
            staged = Staged(model=serving_name(other.package.model), endpoint=other.endpoint)
            group = side(f"challenger on {other.package.target}", other.package, staged)
            beside_first.append(_challenger_report(test, group, place, other, latency_target))
        report = report.model_copy(update={"others": tuple(beside_first)})
        with ExitStack() as beside:
            champion_side, uncompared = None, _incomparable(champion, package, load)
            if champion.package is not None and not uncompared:
                try:
                    staged = beside.enter_context(place.beside(deployment, champion.package))
                    champion_side = side("champion", champion.package, staged)
                except (ArtifactCorrupt, ServerFailed) as error:
                    uncompared = f"champion {champion.version} can't be measured beside the challenger: {error.what}"
            if champion_side is not None:
                report = _compared(test, challenger, champion_side, champion.version, report, comparison_target)
    raw = store.put_bytes(json_lines(test.raw))
    note = "" if recorded_requests.file else table.requests(package, _golden(store, package), load).note
    notes = tuple(_notes(report, uncompared, recorded_requests, note))
    rows = store.put_bytes(_table(test.raw))
    return report.model_copy(update={"uncompared": uncompared, "notes": notes, "raw": raw, "table": rows})


def _table(runs: list[dict[str, Any]]) -> bytes:
    """Every run as CSV: its phase, side and demand, then the columns that the load generator wrote."""
    rows = [{"phase": run["phase"], "side": run["side"], **run["demand"], **run["row"]} for run in runs]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _challenger_report(
    test: _LoadTest, challenger: _Side, place: Staging, deployment: Deployment, latency_target: LatencyTarget
) -> LoadReport:
    """Measures the challenger by itself."""
    _warm_up(test, challenger)
    package = deployment.package
    with TritonClient(deployment.endpoint.grpc) as client:
        before = timings_of(client, package)
        points = _sweep(test, challenger)
        members = member_loads(package, before, timings_of(client, package))
    rates, highest = _open_loop(test, challenger, points, latency_target)
    with TritonClient(deployment.endpoint.grpc) as client:
        failed = client.failures(challenger.staged.model)
    failures = failed - cancelled(deployment.metrics, challenger.staged.model) if failed else 0
    return LoadReport(
        points=points,
        open_points=rates,
        max_rate_per_s=highest,
        knee=sweep.knee(points),
        failures=failures,
        memory_mb=place.memory_mb(deployment),
        protocol=test.load.protocol,
        target=package.target,
        members=members,
    )


def _warm_up(test: _LoadTest, side: _Side) -> None:
    """Measures once and drops the result: cold connections, caches and CPU clocks would distort it."""
    progress(f"warming up the {side.name}")
    test.measure(side, Demand(concurrency=max(test.load.concurrency)), "warm-up", window_ms=_MIN_WINDOW_MS)


def _sweep(test: _LoadTest, side: _Side) -> tuple[LoadPoint, ...]:
    points = []
    levels = sorted(set(test.load.concurrency))
    for index, concurrency in enumerate(levels):
        progress(f"measuring at concurrency {concurrency}", index / len(levels))
        demand = Demand(concurrency=concurrency)
        points.append(test.measure(side, demand, "sweep", attempts=test.load.attempts))
    return tuple(points)


def _open_loop(
    test: _LoadTest, side: _Side, points: tuple[LoadPoint, ...], latency_target: LatencyTarget
) -> tuple[tuple[LoadPoint, ...], float | None]:
    """Points in open loop, and the highest rate within the p99 limit; the search ends after `load.open_loop_s`."""
    deadline = time.monotonic() + test.load.open_loop_s
    best = max(point.throughput_per_s for point in points)
    limit = latency_target.p99_ms
    measured: list[LoadPoint] = []
    for rate in sweep.rates_to_try(best * _MAX_RATE, limit, measured):
        window_ms = max(_MIN_WINDOW_MS, test.load.window_ms // 2, int(_MIN_REQUESTS / rate * 1000))
        if time.monotonic() + window_ms * 3 / 1000 > deadline:
            break
        progress(f"measuring at {rate:.0f} requests/s")
        try:
            measured.append(test.measure(side, Demand(rate_per_s=rate), "open loop", window_ms=window_ms))
        except MeasurementFailed:  # the rate is too high: that ends the search, not the release
            break
    sustained = [point.rate_per_s for point in measured if limit is not None and sweep.sustained(point, limit)]
    return tuple(sorted(measured, key=lambda point: point.rate_per_s)), max(sustained, default=None)


def _incomparable(champion: Champion, challenger: Package, load: Load) -> str:
    if champion.package is not None and champion.package.signature.streamed != challenger.signature.streamed:
        return f"one of version {champion.version} and this one streams its answers: their requests differ"
    if champion.package is not None:
        return requests.batch_problem(champion.package, load)
    if not champion.version:
        return "there is no champion to compare with"
    return f"version {champion.version} was not promoted by Shiplift, so there is nothing to compare with"


def _compared(
    test: _LoadTest, challenger: _Side, champion: _Side, version: int, report: LoadReport, target: ComparisonTarget
) -> LoadReport:
    """Adds the comparison at the challenger's best throughput, and the champion's own sweep, to the report."""
    load = test.load
    best = max(report.points, key=lambda point: point.throughput_per_s)
    window_ms = max(_MIN_WINDOW_MS, load.window_ms // 2, int(_MIN_REQUESTS / best.throughput_per_s * 1000))
    demand = Demand(concurrency=best.concurrency)
    _warm_up(test, champion)
    comparison = comparing.compare(
        lambda: test.measure(champion, demand, "comparison", window_ms=window_ms),
        lambda: test.measure(challenger, demand, "comparison", window_ms=window_ms),
        version,
        best.concurrency,
        comparing.Plan(rounds=load.comparison_rounds, budget_s=load.comparison_budget_s, target=target),
    )
    points = tuple(
        test.measure(champion, Demand(concurrency=point.concurrency), "champion's sweep", window_ms=window_ms)
        for point in report.points
    )
    return report.model_copy(update={"comparison": comparison, "champion_points": points})


def _notes(report: LoadReport, uncompared: str, recorded_requests: RecordedRequests, shortened: str) -> Iterator[str]:
    if uncompared:
        yield uncompared
    if recorded_requests.file:
        yield f"the requests were those logged at {recorded_requests.name}"
    elif shortened:
        yield shortened
    if any(point.client_saturated for point in (*report.points, *report.open_points)):
        yield "the client was the limit at the points so marked: the server can do more than they show"
    for point in report.open_points:
        faster = [closed for closed in report.points if closed.throughput_per_s >= point.throughput_per_s]
        closed = min(faster, key=lambda closed: closed.throughput_per_s, default=None)
        if closed and point.p99_ms > 2 * closed.p99_ms:
            yield (
                f"at {point.rate_per_s:.0f} requests/s the p99 is {point.p99_ms:.1f} ms when arrivals don't wait for "
                f"answers; clients that wait saw {closed.p99_ms:.1f} ms (coordinated omission)"
            )


def _with_lengths(store: ArtifactStore, package: Package, load: Load, recorded_requests: RecordedRequests) -> Load:
    """The load with lengths to draw for a package that pads requests, unless they are recorded."""
    if package.padding is None or recorded_requests.file is not None:
        return load
    return requests.with_lengths(load, package, _golden(store, package))


def _write_requests(
    test: _LoadTest, store: ArtifactStore, package: Package, recorded_requests: RecordedRequests, side: str
) -> Path:
    """Writes a side's requests: recorded ones, or ones generated from its package's golden inputs."""
    path = test.work / f"{side}.json"
    if recorded_requests.file is not None:
        write_recorded(test.site, store, package, recorded_requests, test.load, path)
        return path
    load = requests.fitting(test.load, package.signature) if side == "champion" else test.load
    return table.requests(package, _golden(store, package), load).write(test.generator, path, package.signature)


def _golden(store: ArtifactStore, package: Package) -> Arrays:
    return load_npz(store.read_from_tree(package.repository, GOLDEN))
