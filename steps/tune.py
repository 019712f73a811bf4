"""Tuning: the best serving configuration within the budgets, measured on a server of the search's own.

`runtime.search` says what to measure and on what; here it is measured, first in short windows, finalists in long ones.
Every trial is kept as it is made, so a killed search goes on where it was, and the best ones are where the next version
begins: on a cluster too, where a pod's home is empty.
"""

import hashlib
import json
import time
from pathlib import Path

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.records.measurement import Trial, Tuned
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Package, ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.bench import Bench
from shiplift.runtime.search.goal import goal_of
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import Point, space_of
from shiplift.runtime.search.workbench import Workbench, measure_point, short, workbench
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

    Raises:
        MissingTool: the load generator, or the target's server, is not here.
        ServerFailed: the server to measure on did not come up.
        ClusterRefused: the cluster does not let this step start that server.
        MeasurementFailed: not one configuration could be measured.
    """
    store = ArtifactStore(site.artifacts_uri)
    with workbench(site, packages, serving, search_space, load) as at:
        bench = at.bench
        key = _digest(packages, load, search_space, latency_target, bench.hardware)
        journal = Journal(Path(site.home) / "journal" / f"{key}.jsonl", Trial)
        learned = Path(site.home) / "journal" / _machine(packages, target, bench.hardware)
        with lessons(site, f"best configurations of {learned.name}", learned):
            history = Journal(learned / "best.jsonl", Trial)
            space = space_of(packages.packages, search_space, serving, bench.cores)
            goal = goal_of(search_space, latency_target, 1 if target.gpu else bench.cores)
            search = Search(space, goal, remembered=_remembered(history))
            exhausted = _coarse(at, search, journal)
            _final(at, search, journal)
            best = search.best()
            chosen = _packaged(store, bench, best)
            history.add(chosen.repository.sha256, best[1])
    return Tuned(
        target=target.name, package=chosen, best=best[1], trials=search.best_trials(_REPORTED), exhausted=exhausted,
        configurations=len({(trial.precision, trial.config) for trial in search.trials}),
        raw=store.put_bytes(json_lines(trial.model_dump(mode="json") for trial in search.trials)),
    )  # fmt: skip


def _coarse(at: Workbench, search: Search, journal: Journal[Trial]) -> bool:
    """Short measurements until the search or its time ends; whether it ended by itself. What is kept costs no time."""
    started = time.monotonic()
    budget_s = at.space.time_budget_s * (1 - _FINAL_SHARE)
    window_ms = min(at.space.window_ms, max(_LEAST_MS, at.space.window_ms // _COARSE))
    while (point := search.ask()) is not None:
        spent = time.monotonic() - started
        if search.trials and spent > budget_s:
            return False
        said = f"trial {len(search.trials) + 1}: {point.package.precision} {short(point.config)}"
        progress(said, min(spent / budget_s, 1.0))
        search.tell(point, _kept(at, search, journal, point, window_ms))
    return True


def _final(at: Workbench, search: Search, journal: Journal[Trial]) -> None:
    """The finalists in long windows, round by round until the time is up; at least the best of the first round."""
    deadline = time.monotonic() + at.space.time_budget_s * _FINAL_SHARE
    window_ms = at.space.window_ms
    round_ = 0
    while finalists := search.finalists():
        round_ += 1
        for turn, point in enumerate(finalists, 1):
            if (round_, turn) > (1, 1) and time.monotonic() > deadline:
                return
            said = f"{point.package.precision} {short(point.config)}"
            progress(f"finals, round {round_}, {turn} of {len(finalists)}: {said}")
            search.tell_final(point, _kept(at, search, journal, point, window_ms, round_))


def _kept(
    at: Workbench, search: Search, journal: Journal[Trial], point: Point, window_ms: int, round_: int = 0
) -> Trial:  # fmt: skip
    key = f"{_trial_key(point.package, point.config)}, {window_ms} ms, {round_}"
    trial = journal.get(key)
    if trial is None:
        trial = measure_point(at, search, point, window_ms)
        journal.add(key, trial)
    return trial


def _remembered(history: Journal[Trial]) -> list[tuple[Precision, ServingConfig]]:
    """The best configurations of versions before, newest first."""
    return [(trial.precision, trial.config) for trial in reversed(list(history.records().values()))]


def _packaged(store: ArtifactStore, bench: Bench, best: tuple[Package, Trial]) -> Package:
    package, trial = best
    tree = bench.tree(package)
    reconfigure(tree, serving_name(package.model), trial.config)
    return package.model_copy(update={"config": trial.config, "repository": store.put_tree(tree)})


def _trial_key(package: Package, config: ServingConfig) -> str:
    return f"{package.repository.sha256[:16]} {short(config)}"


def _digest(
    packages: Packages, load: Load, space: SearchSpace, latency_target: LatencyTarget, hardware: list[object]
) -> str:
    """What makes a measurement comparable: the packages, how they are measured, and on what."""
    how = [load.protocol, load.seed, space.window_ms, space.max_concurrency, latency_target.p99_ms, space.memory_mb]
    parts = [[p.repository.sha256 for p in packages.packages], how, hardware]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _machine(packages: Packages, target: Target, hardware: list[object]) -> str:
    """What best configurations are remembered by: the model, the target and what they were measured on."""
    parts = [packages.packages[0].model, target.name, *hardware]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
