"""Tuning: the best serving configuration within the budgets, measured on a private server.

`runtime.search` says what to measure; here it is measured, first in short windows, finalists in long ones. Every trial
is kept as it is made, so a killed search goes on where it was, and the best ones are where the next version begins: on
a cluster too, where a pod's home is empty.
"""

import hashlib
import json
import os
import time
from pathlib import Path

from shiplift.runtime.base.errors import MissingTool
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.host.processor import cpu_flags
from shiplift.runtime.records.measurement import Trial, Tuned
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Package, ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.bench import Workbench, measure_point, short, workbench
from shiplift.runtime.search.goal import goal_of
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import Point, space_of
from shiplift.runtime.serving.triton.repository import reconfigure
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore, json_lines
from shiplift.runtime.store.journal import Journal
from shiplift.runtime.store.lessons import lessons

_COARSE = 3  # a search's windows are this many times shorter than a finalist's
_LEAST_MS = 200  # in shorter ones small models err by a quarter, and seem slow: a window begins with a ramp
_REPORTED = 32  # trials in the record; `raw` has all of them
_FINAL_SHARE = 0.3  # of the time, at most, is the finalists'


def tune(
    site: Site, target: Target, packages: Packages, search_space: SearchSpace, latency_target: LatencyTarget,
    load: Load, serving: Serving,
) -> Tuned:  # fmt: skip
    """Searches the space within its time budget and packages the best configuration.

    For NVIDIA's image, which is started by the cluster alone, nothing is searched: the fastest package keeps the
    configuration that Triton's documentation suggests, and the load test measures that.

    Raises:
        MissingTool: perf_analyzer, or the target's server, is not on this machine.
        MeasurementFailed: not one configuration could be measured.
    """
    if target.server != "bundled":
        return _suggested(site, target, packages)
    journal = Journal(
        Path(site.home) / "journal" / f"{_digest(packages, load, search_space, latency_target)}.jsonl", Trial
    )
    learned = Path(site.home) / "journal" / _machine(packages, target)
    with lessons(site, f"best configurations of {learned.name}", learned):
        history = Journal(learned / "best.jsonl", Trial)
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
        target=target.name, package=chosen, best=best[1], trials=search.best_trials(_REPORTED), exhausted=exhausted,
        configurations=len({(trial.precision, trial.config) for trial in search.trials}),
        raw=store.put_bytes(json_lines(trial.model_dump(mode="json") for trial in search.trials)),
    )  # fmt: skip


def _suggested(site: Site, target: Target, packages: Packages) -> Tuned:
    if target.server not in site.place.servers:
        raise MissingTool(
            f"target {target.name} is for NVIDIA's Triton image, this machine has the bundled server",
            do="Release it on a cluster, or use `server: bundled`.",
        )
    first = packages.packages[0]
    unmeasured = Trial(
        precision=first.precision, config=first.config, concurrency=0, throughput_per_s=0, p50_ms=0, p99_ms=0,
        memory_mb=0, within_slo=False, error="not searched: NVIDIA's image runs in pods of its own",
    )  # fmt: skip
    return Tuned(target=target.name, package=first, best=unmeasured)


def _coarse(bench: Workbench, search: Search, journal: Journal[Trial]) -> bool:
    """Short measurements until the search or its time ends; whether it ended by itself. What is kept costs no time."""
    started = time.monotonic()
    budget_s = bench.space.time_budget_s * (1 - _FINAL_SHARE)
    window_ms = min(bench.space.window_ms, max(_LEAST_MS, bench.space.window_ms // _COARSE))
    while (point := search.ask()) is not None:
        spent = time.monotonic() - started
        if search.trials and spent > budget_s:
            return False
        said = f"trial {len(search.trials) + 1}: {point.package.precision} {short(point.config)}"
        progress(said, min(spent / budget_s, 1.0))
        search.tell(point, _kept(bench, search, journal, point, window_ms))
    return True


def _final(bench: Workbench, search: Search, journal: Journal[Trial]) -> None:
    """The finalists in long windows, round by round until the time is up; at least the best of the first round."""
    deadline = time.monotonic() + bench.space.time_budget_s * _FINAL_SHARE
    window_ms = bench.space.window_ms
    round_ = 0
    while finalists := search.finalists():
        round_ += 1
        for at, point in enumerate(finalists, 1):
            if (round_, at) > (1, 1) and time.monotonic() > deadline:
                return
            said = f"{point.package.precision} {short(point.config)}"
            progress(f"finals, round {round_}, {at} of {len(finalists)}: {said}")
            search.tell_final(point, _kept(bench, search, journal, point, window_ms, round_))


def _kept(
    bench: Workbench, search: Search, journal: Journal[Trial], point: Point, window_ms: int, round_: int = 0
) -> Trial:  # fmt: skip
    key = f"{_trial_key(point.package, point.config)}, {window_ms} ms, {round_}"
    trial = journal.get(key)
    if trial is None:
        trial = measure_point(bench, search, point, window_ms)
        journal.add(key, trial)
    return trial


def _remembered(history: Journal[Trial]) -> list[tuple[Precision, ServingConfig]]:
    """The best configurations of versions before, newest first."""
    return [(trial.precision, trial.config) for trial in reversed(list(history.records().values()))]


def _packaged(store: ArtifactStore, bench: Workbench, best: tuple[Package, Trial]) -> Package:
    package, trial = best
    tree = bench.trees[package.precision]
    reconfigure(tree, serving_name(package.model), trial.config)
    return package.model_copy(update={"config": trial.config, "repository": store.put_tree(tree)})


def _trial_key(package: Package, config: ServingConfig) -> str:
    return f"{package.repository.sha256[:16]} {short(config)}"


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
