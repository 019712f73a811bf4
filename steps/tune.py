"""Tuning: the best serving configuration within the budgets, measured on a private server.

`runtime.search` says what to measure; here it is measured, first in short windows, finalists in long ones. Every trial
is kept as it is made, so a killed search goes on where it was, and the best ones are where the next version begins.
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

from runtime import perf, requests
from runtime.artifacts import ArtifactStore, json_lines
from runtime.errors import MeasurementFailed, MissingTool, ServerFailed
from runtime.journal import Journal
from runtime.names import serving_name
from runtime.onnx_models import cpu_flags
from runtime.processes import memory_mb
from runtime.progress import progress
from runtime.records import Package, Packages, Precision, ServingConfig, Site, Trial, Tuned
from runtime.search.search import Search
from runtime.search.space import Point, space_of
from runtime.search.worth import Goal, goal_of
from runtime.spec import LatencyTarget, Load, SearchSpace, Serving, Target
from runtime.tensors import load_npz
from runtime.triton.client import TritonClient
from runtime.triton.environment import ServerEnvironment
from runtime.triton.repository import GOLDEN, install, reconfigure
from runtime.triton.server import Features, Server, private_server

_ATTEMPTS = 1  # coarse: a trial that is off is one of many
_COARSE = 3  # a search's windows are this many times shorter than a finalist's
_LEAST_MS = 100
_REPORTED = 64
_FINAL_SHARE = 0.3  # of the time, at most, is the finalists'


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
    history = Journal(Path(site.home) / "journal" / f"{_machine(packages, target)}.best.jsonl", Trial)
    space = space_of(packages.packages, search_space, serving)
    search = Search(space, goal_of(search_space, latency_target), remembered=_remembered(history))
    with workbench(site, packages, serving, search_space, load) as bench:
        exhausted = _coarse(bench, search, journal)
        _final(bench, search, journal)
        best = search.best()
        store = ArtifactStore(site.artifacts_uri)
        chosen = _packaged(store, bench, best)
    history.add(chosen.repository.sha256, best[1])
    return Tuned(
        target=target.name, package=chosen, best=best[1], trials=reported(search), exhausted=exhausted,
        configurations=len({(trial.precision, trial.config) for trial in search.trials}),
        raw=store.put_bytes(json_lines(trial.model_dump(mode="json") for trial in search.trials)),
    )  # fmt: skip


def reported(search: Search) -> tuple[Trial, ...]:
    """The trials in the order they were made; of very many only the best, since a record has to stay small."""
    best = sorted(search.trials, key=lambda trial: -search.goal.worth(trial))[:_REPORTED]
    kept = {id(trial) for trial in best}
    return tuple(trial for trial in search.trials if id(trial) in kept)


def _coarse(bench: Workbench, search: Search, journal: Journal[Trial]) -> bool:
    """Short measurements until the search or its time ends; whether it ended by itself. What is kept costs no time."""
    started = time.monotonic()
    budget_s = bench.space.time_budget_s * (1 - _FINAL_SHARE)
    window_ms = max(_LEAST_MS, bench.space.window_ms // _COARSE)
    while (point := search.ask()) is not None:
        spent = time.monotonic() - started
        if search.trials and spent > budget_s:
            return False
        said = f"trial {len(search.trials) + 1}: {point.package.precision} {_short(point.config)}"
        progress(said, min(spent / budget_s, 1.0))
        search.tell(point, _kept(bench, search, journal, point, window_ms))
    return True


def _final(bench: Workbench, search: Search, journal: Journal[Trial]) -> None:
    """The finalists in long windows, best first; at least the first of them."""
    deadline = time.monotonic() + bench.space.time_budget_s * _FINAL_SHARE
    for at, point in enumerate(list(search.finalists())):
        if at and time.monotonic() > deadline:
            return
        progress(f"finalist {at + 1}: {point.package.precision} {_short(point.config)}")
        search.tell_final(point, _kept(bench, search, journal, point, bench.space.window_ms))


def _kept(bench: Workbench, search: Search, journal: Journal[Trial], point: Point, window_ms: int) -> Trial:
    key = f"{_trial_key(point.package, point.config)}, {window_ms} ms"
    trial = journal.get(key)
    if trial is None:
        trial = measure_point(bench, search, point, window_ms)
        journal.add(key, trial)
    return trial


def _remembered(history: Journal[Trial]) -> list[tuple[Precision, ServingConfig]]:
    """The best configurations of versions before, newest first."""
    return [(trial.precision, trial.config) for trial in reversed(list(history.records().values()))]


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
        golden = load_npz(trees[first.precision] / GOLDEN)
        example = {spec.name: golden[f"input/{spec.name}"] for spec in first.signature.inputs}
        sent = requests.synthetic(example, first.signature, load)
        file = perf.write_each(at / "requests.json", first.signature, sent)
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
        reconfigure(bench.trees[package.precision], name, config, package.server)
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


def _packaged(store: ArtifactStore, bench: Workbench, best: tuple[Package, Trial]) -> Package:
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
    how = [load.protocol, load.seed, space.window_ms, space.max_concurrency, latency_target.p99_ms, space.memory_mb]
    parts = [[p.repository.sha256 for p in packages.packages], how, machine]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _machine(packages: Packages, target: Target) -> str:
    """What best configurations are remembered by: the model, the target and this processor."""
    parts = [packages.packages[0].model, target.name, sorted(cpu_flags()), os.cpu_count()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
