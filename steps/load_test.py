"""The load test: perf_analyzer against staging, with requests as users send them.

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

from runtime import comparing, perf, requests, sweep
from runtime.artifacts import ArtifactStore
from runtime.errors import ArtifactCorrupt, MeasurementFailed, ServerFailed
from runtime.names import serving_name
from runtime.perf import Demand
from runtime.processes import memory_mb
from runtime.progress import progress
from runtime.records import Champion, Comparison, Deployment, LoadPoint, LoadReport, Package, RecordedRequests, Site
from runtime.spec import ComparisonTarget, LatencyTarget, Load
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient
from runtime.triton.environment import ServerEnvironment
from runtime.triton.repository import GOLDEN, install

_CHAMPION = "--champion"
_SHORT_MS = 100
_ENOUGH = 30  # requests a window, for a percentile to mean something
_NEVER_ABOVE = 1.0  # of the closed loop's throughput: beyond it a queue grows without end, in the client's memory too


@dataclass(frozen=True, kw_only=True)
class _Stage:
    """The staging server as a target of load, and every window measured so far."""

    environment: ServerEnvironment
    client: TritonClient
    deployment: Deployment
    load: Load
    work: Path
    raw: list[dict[str, Any]] = field(default_factory=list)

    def measure(
        self, model: str, file: Path, demand: Demand, phase: str, *, attempts: int = 1, window_ms: int = 0
    ) -> LoadPoint:
        """One model under one demand."""
        http = self.deployment.endpoint.http.removeprefix("http://").split("/", 1)[0]
        address = self.deployment.endpoint.grpc if self.load.protocol == "grpc" else http
        window = perf.Window(
            window_ms=window_ms or self.load.window_ms,
            stability_percent=self.load.stability_percent,
            attempts=attempts,
            protocol=self.load.protocol,
        )
        target = perf.Target(model=model, address=address, requests=file)
        point, runs = perf.measured(self.environment, target, demand, window, self.work)
        side = "champion" if model.endswith(_CHAMPION) else "challenger"
        self.raw.extend(
            {"phase": phase, "side": side, "demand": vars(demand), "window_ms": window.window_ms, **vars(run)}
            for run in runs
        )
        return point


def load_test(
    site: Site, deployment: Deployment, champion: Champion, load: Load, recorded_requests: RecordedRequests,
    latency_target: LatencyTarget, comparison_target: ComparisonTarget,
) -> LoadReport:  # fmt: skip
    """Sweeps the challenger, searches its highest rate, then compares it with the champion at its best throughput.

    Raises:
        MissingTool: perf_analyzer is not there.
        MeasurementFailed: it died, or a request failed.
        DataInvalid: the recorded requests do not fit the model.
    """
    store = ArtifactStore(site.artifacts_uri)
    package = deployment.package
    name = serving_name(package.model)
    environment = ServerEnvironment(Path(site.server_environment))
    with TemporaryDirectory(prefix="shiplift-load-", dir=site.home) as folder:
        work = Path(folder)
        with TritonClient(deployment.endpoint.grpc) as client:
            stage = _Stage(environment=environment, client=client, deployment=deployment, load=load, work=work)
            file = _requests(store, package, load, recorded_requests, work / "challenger")
            _warm_up(stage, name, file)
            points = _sweep(stage, name, file)
            rates, highest = _open_loop(stage, name, file, points, latency_target)
            report = LoadReport(
                points=points,
                open_points=rates,
                max_rate_per_s=highest,
                knee=sweep.knee(points),
                failures=client.failures(name),
                memory_mb=memory_mb(deployment.process.pid),
                protocol=load.protocol,
            )
            found = _compare(stage, store, champion, file, report, recorded_requests, comparison_target)
    comparison, champion_points, notes = found
    return report.model_copy(
        update={
            "comparison": comparison,
            "champion_points": champion_points,
            "notes": (*notes, *_notes(report, recorded_requests)),
            "raw": store.put_bytes(sweep.compressed(stage.raw)),
        }
    )


def _warm_up(stage: _Stage, name: str, file: Path) -> None:
    """Thrown away: connections, caches and the processor's clock are not the model's."""
    progress("warming up")
    stage.measure(name, file, Demand(concurrency=max(stage.load.concurrency)), "warm-up", window_ms=_SHORT_MS)


def _sweep(stage: _Stage, name: str, file: Path) -> tuple[LoadPoint, ...]:
    points = []
    levels = sorted(set(stage.load.concurrency))
    for at, concurrency in enumerate(levels):
        progress(f"measuring at concurrency {concurrency}", at / len(levels))
        demand = Demand(concurrency=concurrency)
        points.append(stage.measure(name, file, demand, "sweep", attempts=stage.load.attempts))
    return tuple(points)


def _open_loop(
    stage: _Stage, name: str, file: Path, points: tuple[LoadPoint, ...], latency_target: LatencyTarget
) -> tuple[tuple[LoadPoint, ...], float | None]:
    """Points at rates, and the highest one within the p99 limit, by binary search within the time allowed."""
    deadline = time.monotonic() + stage.load.open_loop_s
    best = max(point.throughput_per_s for point in points)
    limit = latency_target.p99_ms
    found: list[LoadPoint] = []
    for rate in sweep.rates_to_try(best * _NEVER_ABOVE, limit, found):
        window_ms = max(_SHORT_MS, stage.load.window_ms // 2, int(_ENOUGH / rate * 1000))
        if time.monotonic() + window_ms * 3 / 1000 > deadline:
            break
        progress(f"measuring at {rate:.0f} requests/s")
        try:
            found.append(stage.measure(name, file, Demand(rate_per_s=rate), "open loop", window_ms=window_ms))
        except MeasurementFailed:  # a rate it can't take is an answer of the search, not an end of the release
            break
    within = [point.rate_per_s for point in found if limit is not None and sweep.holds(point, limit)]
    return tuple(sorted(found, key=lambda point: point.rate_per_s)), max(within, default=None)


def _compare(
    stage: _Stage, store: ArtifactStore, champion: Champion, file: Path, report: LoadReport,
    recorded_requests: RecordedRequests, comparison_target: ComparisonTarget,
) -> tuple[Comparison | None, tuple[LoadPoint, ...], tuple[str, ...]]:  # fmt: skip
    package = champion.package
    if package is None:
        return None, (), ("there is no champion to compare with",) if not champion.version else (
            f"version {champion.version} was not promoted by Shiplift: there is nothing to compare with",
        )  # fmt: skip
    mine, theirs = serving_name(package.model), serving_name(package.model) + _CHAMPION
    try:
        other = _requests(store, package, stage.load, recorded_requests, stage.work / "champion")
        install(stage.work / "champion", Path(stage.deployment.repository), source=mine, name=theirs)
        stage.client.load(theirs)
    except (ArtifactCorrupt, ServerFailed) as error:
        return None, (), (f"champion {champion.version} can't be measured beside the challenger: {error.what}",)
    best = max(report.points, key=lambda point: point.throughput_per_s)
    window_ms = max(_SHORT_MS, stage.load.window_ms // 2, int(_ENOUGH / best.throughput_per_s * 1000))
    demand = Demand(concurrency=best.concurrency)
    _warm_up(stage, theirs, other)
    plan = comparing.Plan(
        rounds=stage.load.comparison_rounds, budget_s=stage.load.comparison_budget_s, target=comparison_target
    )
    comparison = comparing.compare(
        lambda: stage.measure(theirs, other, demand, "comparison", window_ms=window_ms),
        lambda: stage.measure(mine, file, demand, "comparison", window_ms=window_ms),
        champion.version,
        best.concurrency,
        plan,
    )
    points = tuple(
        stage.measure(theirs, other, Demand(concurrency=point.concurrency), "champion's sweep", window_ms=window_ms)
        for point in report.points
    )
    return comparison, points, ()


def _notes(report: LoadReport, recorded_requests: RecordedRequests) -> Iterator[str]:
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
    store: ArtifactStore, package: Package, load: Load, recorded_requests: RecordedRequests, to: Path
) -> Path:
    """The package, fetched into `to`, and its requests: recorded ones, or ones shaped like its golden ones."""
    tree = store.fetch(package.repository, to)
    if recorded_requests.file:
        sent = requests.recorded(store.read(recorded_requests.file), recorded_requests.name, package.signature)
    else:
        golden = load_npz(tree / GOLDEN)
        example = {spec.name: golden[f"input/{spec.name}"] for spec in package.signature.inputs}
        sent = requests.synthetic(example, package.signature, load)
    return perf.write_each(to.with_suffix(".json"), package.signature, sent)
