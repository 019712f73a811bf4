"""Tuning: the serving configuration with the highest throughput within the p99 limit, measured on a private server.

From the configuration that Triton's documentation suggests, one axis is varied at a time, and the best point found is
the next one to start from (coordinate descent) until no neighbour is better or the time budget is spent. Every trial
is kept as it is made, so a killed search goes on where it was.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from runtime import perf
from runtime.artifacts import ArtifactStore
from runtime.errors import MeasurementFailed, MissingTool, ServerFailed
from runtime.journal import Journal
from runtime.names import serving_name
from runtime.onnx_models import cpu_flags
from runtime.processes import memory_mb
from runtime.progress import progress
from runtime.records import Package, Packages, Precision, ServingConfig, Site, Trial, Tuned
from runtime.samples import random_like
from runtime.spec import LatencyTarget, Load, SearchSpace, Serving, Target
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient
from runtime.triton.config import least_instances
from runtime.triton.environment import ServerEnvironment
from runtime.triton.repository import GOLDEN, install, reconfigure
from runtime.triton.server import Features, Server, private_server

_AXES = ("max_batch", "instances", "threads", "queue_delay_us")
_ATTEMPTS = 1  # coarse: a trial that is off is one of many
_REQUESTS = 32
_BETTER = 1.02  # less than this is noise: prefer the simpler configuration


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """A private server with everything a trial needs."""

    environment: ServerEnvironment
    server: Server
    client: TritonClient
    repository: Path
    trees: dict[Precision, Path]
    requests: Path
    work: Path
    space: SearchSpace
    latency_target: LatencyTarget
    load: Load


def tune(
    site: Site, target: Target, packages: Packages, search_space: SearchSpace, latency_target: LatencyTarget,
    load: Load, serving: Serving,
) -> Tuned:  # fmt: skip
    """Searches the space within its time budget and packages the best configuration.

    Raises:
        MissingTool: perf_analyzer, or the target's server, is not on this machine.
        MeasurementFailed: not one configuration could be measured.
    """
    if target.server != "bundled":
        raise MissingTool(
            f"target {target.name} is for NVIDIA's Triton image, this machine has the bundled server",
            do="Release it on a cluster, or use `server: bundled`.",
        )
    journal = Journal(
        Path(site.home) / "journal" / f"{_digest(packages, load, search_space, latency_target)}.jsonl", Trial
    )
    search = _Search(packages.packages, search_space, serving)
    deadline = time.monotonic() + search_space.time_budget_s
    with _bench(site, packages, serving, search_space, latency_target, load) as bench:
        for package, config in search.proposals():
            if search.trials and time.monotonic() > deadline:
                search.exhausted = False
                break
            key = _trial_key(package, config)
            trial = journal.get(key)
            if trial is None:
                done = 1 - max(0.0, deadline - time.monotonic()) / search_space.time_budget_s
                progress(f"trial {len(search.trials) + 1}: {package.precision} {_short(config)}", min(done, 1.0))
                trial = _measure(bench, package, config)
                journal.add(key, trial)
            search.note(package, trial)
        best = search.best()
        chosen = _packaged(ArtifactStore(site.artifacts_uri), bench, best)
    return Tuned(
        target=target.name, package=chosen, best=best[1], trials=tuple(search.trials), exhausted=search.exhausted
    )


class _Search:
    """Coordinate descent over packages and configurations; knows nothing of servers."""

    def __init__(self, packages: tuple[Package, ...], space: SearchSpace, serving: Serving) -> None:
        self.packages = packages
        self.space = space
        self.serving = serving
        self.trials: list[Trial] = []
        self.exhausted = True
        self._seen: set[tuple[str, ServingConfig]] = set()
        self._best: tuple[Package, Trial] | None = None

    def proposals(self) -> Iterator[tuple[Package, ServingConfig]]:
        """What to measure next, given what was noted so far; ends at a point no neighbour of which is better."""
        for package in self.packages:
            yield from self._fresh(package, package.config)
        while self._best:
            start = self._best
            for config in self._neighbours(start[1].config, start[0]):
                yield from self._fresh(start[0], config)
            if self._best is start:
                return

    def note(self, package: Package, trial: Trial) -> None:
        """Takes a measured trial in."""
        self.trials.append(trial)
        if not trial.error and (self._best is None or self._worth(trial) > self._worth(self._best[1])):
            self._best = (package, trial)

    def best(self) -> tuple[Package, Trial]:
        """The best package and trial.

        Raises:
            MeasurementFailed: every trial failed.
        """
        if self._best is None:
            last = self.trials[-1].error if self.trials else "nothing was tried"
            raise MeasurementFailed(f"no serving configuration could be measured: {last}", do="See the release's log.")
        return self._best

    def _worth(self, trial: Trial) -> tuple[bool, float]:
        """Within the limit first, then throughput; outside it, the lowest p99. Noise does not win."""
        lead = 1.0 if self._best is None or trial is self._best[1] else _BETTER
        return trial.within_slo, trial.throughput_per_s / lead if trial.within_slo else -trial.p99_ms * lead

    def _fresh(self, package: Package, config: ServingConfig) -> Iterator[tuple[Package, ServingConfig]]:
        if (package.precision, config) not in self._seen:
            self._seen.add((package.precision, config))
            yield package, config

    def _neighbours(self, config: ServingConfig, package: Package) -> Iterator[ServingConfig]:
        least = least_instances(self.serving, package.server)
        cores = len(os.sched_getaffinity(0))
        for axis in _AXES:
            for value in sorted(getattr(self.space, axis)):
                near = config.model_copy(update={axis: max(value, least) if axis == "instances" else value})
                if near.instances * near.threads <= max(2 * cores, least):
                    yield near


@contextmanager
def _bench(
    site: Site, packages: Packages, serving: Serving, space: SearchSpace, latency_target: LatencyTarget, load: Load
) -> Iterator[_Bench]:
    environment = ServerEnvironment(Path(site.server_environment))
    store = ArtifactStore(site.artifacts_uri)
    with TemporaryDirectory(prefix="shiplift-tune-", dir=site.home) as folder:
        at = Path(folder)
        trees = {p.precision: store.fetch(p.repository, at / p.precision) for p in packages.packages}
        first = packages.packages[0]
        golden = load_npz(trees[first.precision] / GOLDEN)
        example = {spec.name: golden[f"input/{spec.name}"] for spec in first.signature.inputs}
        samples = random_like(example, first.signature.inputs, _REQUESTS, seed=load.seed)
        requests = perf.write_requests(at / "requests.json", first.signature, samples)
        features = Features(rate_limiter=serving.rate_limiter is not None)
        with (
            private_server(environment, at / "models", features, log=at / "triton.log") as server,
            TritonClient(server.grpc) as client,
        ):
            yield _Bench(
                environment=environment, server=server, client=client, repository=at / "models", trees=trees,
                requests=requests, work=at, space=space, latency_target=latency_target, load=load,
            )  # fmt: skip


def _measure(bench: _Bench, package: Package, config: ServingConfig) -> Trial:
    """One configuration at the concurrency that fills it, then at lower ones while p99 is over the limit."""
    name = serving_name(package.model)
    concurrency = min(bench.space.max_concurrency, max(4, 2 * config.max_batch * config.instances))
    try:
        reconfigure(bench.trees[package.precision], name, config, package.server)
        install(bench.trees[package.precision], bench.repository, source=name, name=name)
        bench.client.load(name)
        while True:
            trial = _at(bench, package, config, concurrency)
            if trial.within_slo or concurrency == 1:
                return trial
            concurrency //= 2
    except (ServerFailed, MeasurementFailed) as error:
        return Trial(
            precision=package.precision, config=config, concurrency=concurrency, throughput_per_s=0, p50_ms=0,
            p99_ms=0, memory_mb=0, within_slo=False, error=error.what,
        )  # fmt: skip


def _at(bench: _Bench, package: Package, config: ServingConfig, concurrency: int) -> Trial:
    limit = bench.latency_target.p99_ms
    target = perf.Target(
        model=serving_name(package.model),
        address=bench.server.grpc if bench.load.protocol == "grpc" else bench.server.http,
        requests=bench.requests,
    )
    window = perf.Window(
        window_ms=bench.space.window_ms,
        stability_percent=bench.load.stability_percent,
        attempts=_ATTEMPTS,
        protocol=bench.load.protocol,
    )
    point = perf.measure(bench.environment, target, concurrency, window, bench.work)
    return Trial(
        precision=package.precision,
        config=config,
        concurrency=concurrency,
        throughput_per_s=point.throughput_per_s,
        p50_ms=point.p50_ms,
        p99_ms=point.p99_ms,
        memory_mb=memory_mb(bench.server.process.pid),
        within_slo=limit is None or point.p99_ms <= limit,
    )


def _packaged(store: ArtifactStore, bench: _Bench, best: tuple[Package, Trial]) -> Package:
    package, trial = best
    tree = bench.trees[package.precision]
    reconfigure(tree, serving_name(package.model), trial.config, package.server)
    return package.model_copy(update={"config": trial.config, "repository": store.put_tree(tree)})


def _trial_key(package: Package, config: ServingConfig) -> str:
    return f"{package.repository.sha256[:16]} {_short(config)}"


def _short(config: ServingConfig) -> str:
    return (
        f"batch {config.max_batch}, delay {config.queue_delay_us} us, "
        f"{config.instances} x {config.threads} thread{'s' if config.threads > 1 else ''}"
    )


def _digest(packages: Packages, load: Load, space: SearchSpace, latency_target: LatencyTarget) -> str:
    """What makes a measurement comparable: the packages, how they are measured, and this processor."""
    machine = [sorted(cpu_flags()), os.cpu_count()]
    how = [load.protocol, load.seed, space.window_ms, space.max_concurrency, latency_target.p99_ms]
    parts = [[p.repository.sha256 for p in packages.packages], how, machine]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
