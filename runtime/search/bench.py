"""Where points are measured: a private server, the packages' trees, and the requests to send."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from shiplift.runtime.base.errors import MeasurementFailed, ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.host.processes import memory_mb
from shiplift.runtime.measure import perf_analyzer, requests
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.environment import ServerEnvironment
from shiplift.runtime.serving.triton.repository import GOLDEN, install, reconfigure
from shiplift.runtime.serving.triton.server import Features, Server, private_server
from shiplift.runtime.spec.measurement import Load, SearchSpace
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_ATTEMPTS = 1  # coarse: a trial that is off is one of many


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """A private server with everything a trial needs."""

    environment: ServerEnvironment
    server: Server
    client: TritonClient
    repository: Path
    trees: dict[Precision, Path]
    requests: Path
    work: Path
    space: SearchSpace
    load: Load


@contextmanager
def workbench(site: Site, packages: Packages, serving: Serving, space: SearchSpace, load: Load) -> Iterator[Workbench]:
    """A private server, the packages' trees and the requests, for as long as the context lasts.

    Raises:
        ServerFailed: the server did not come up.
    """
    environment = ServerEnvironment(Path(site.server_environment))
    store = ArtifactStore(site.artifacts_uri)
    with TemporaryDirectory(prefix="shiplift-tune-", dir=site.home) as folder:
        at = Path(folder)
        trees = {p.precision: store.fetch(p.repository, at / p.precision) for p in packages.packages}
        first = packages.packages[0]
        file = requests.write(at / "requests.json", first, load_npz(trees[first.precision] / GOLDEN), load)
        features = Features(rate_limiter=serving.rate_limiter is not None)
        with (
            private_server(environment, at / "models", features, log=at / "triton.log") as server,
            TritonClient(server.grpc) as client,
        ):
            yield Workbench(
                environment=environment, server=server, client=client, repository=at / "models", trees=trees,
                requests=file, work=at, space=space, load=load,
            )  # fmt: skip


def measure_point(bench: Workbench, search: Search, point: Point, window_ms: int) -> Trial:
    """One configuration at the concurrency that fills it, then at lower ones while p99 is over the limit."""
    package, config = point.package, point.config
    name = serving_name(package.model)
    concurrency = min(bench.space.max_concurrency, max(4, 2 * config.max_batch * config.instances))
    try:
        reconfigure(bench.trees[package.precision], name, config)
        install(bench.trees[package.precision], bench.repository, source=name, name=name)
        bench.client.load(name)
        while True:
            trial = _at(bench, search.goal, point, concurrency, window_ms)
            if trial.within_slo or concurrency == 1:
                return trial
            if search.hopeless(trial):
                return trial.model_copy(update={"pruned": True})
            concurrency //= 2
    except (ServerFailed, MeasurementFailed) as error:
        return Trial(
            precision=package.precision, config=config, concurrency=concurrency, throughput_per_s=0, p50_ms=0,
            p99_ms=0, memory_mb=0, within_slo=False, error=error.what, window_ms=window_ms,
        )  # fmt: skip


def _at(bench: Workbench, goal: Goal, point: Point, concurrency: int, window_ms: int) -> Trial:
    target = perf_analyzer.Target(
        model=serving_name(point.package.model),
        address=bench.server.grpc if bench.load.protocol == "grpc" else bench.server.http,
        requests=bench.requests,
        sequences=point.package.sequences,
    )
    window = perf_analyzer.Window(
        window_ms=window_ms,
        stability_percent=bench.load.stability_percent,
        attempts=_ATTEMPTS,
        protocol=bench.load.protocol,
    )
    found = perf_analyzer.measure(bench.environment, target, concurrency, window, bench.work)
    memory = memory_mb(bench.server.process.pid)
    trial = Trial(
        precision=point.package.precision,
        config=point.config,
        concurrency=concurrency,
        throughput_per_s=found.throughput_per_s,
        p50_ms=found.p50_ms,
        p99_ms=found.p99_ms,
        memory_mb=memory,
        within_slo=goal.keeps(found.p99_ms, memory),
        queue_ms=found.queue_ms,
        compute_ms=found.compute_ms,
        window_ms=window_ms,
    )
    return trial.model_copy(update={"cost_per_million": goal.per_million(trial)})


def short(config: ServingConfig) -> str:
    """A configuration in a few words."""
    return (
        f"batch {config.max_batch}, delay {config.queue_delay_us} us, "
        f"{config.instances} x {config.threads} thread{'s' if config.threads > 1 else ''}"
    )
