"""Where points are measured: a private server, the packages' trees, and the requests to send."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from runtime import perf, requests
from runtime.artifacts import ArtifactStore
from runtime.errors import MeasurementFailed, ServerFailed
from runtime.names import serving_name
from runtime.processes import memory_mb
from runtime.records import Packages, Precision, ServingConfig, Site, Trial
from runtime.search.search import Search
from runtime.search.space import Point
from runtime.search.worth import Goal
from runtime.spec import Load, SearchSpace, Serving
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient
from runtime.triton.environment import ServerEnvironment
from runtime.triton.repository import GOLDEN, install, reconfigure
from runtime.triton.server import Features, Server, private_server

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
    target = perf.Target(
        model=serving_name(point.package.model),
        address=bench.server.grpc if bench.load.protocol == "grpc" else bench.server.http,
        requests=bench.requests,
        sequences=point.package.sequences,
    )
    window = perf.Window(
        window_ms=window_ms,
        stability_percent=bench.load.stability_percent,
        attempts=_ATTEMPTS,
        protocol=bench.load.protocol,
    )
    found = perf.measure(bench.environment, target, concurrency, window, bench.work)
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
