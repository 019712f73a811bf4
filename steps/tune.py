"""Tuning: finds the best serving configuration within the budgets, measured on a server that nothing else uses.

`runtime.search` decides what to measure and where. This step measures it: first in short windows, then finalists in
long ones. Every trial is stored at once, so a killed search resumes where it stopped. The next version's search starts
from the best configurations, even on a cluster, where a pod's home is empty.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from shiplift.runtime.base.errors import GoldenMismatch
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.families import table
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Differing, Trial, Tuned
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.proof import ServedProof
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.bench import Bench
from shiplift.runtime.search.buckets import lengths_sent
from shiplift.runtime.search.goal import goal_of
from shiplift.runtime.search.keys import digest_of, history_key
from shiplift.runtime.search.lateness import late_after_ms
from shiplift.runtime.search.limits import tuned_limits
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.served_proof import served_proof
from shiplift.runtime.search.space import Point, space_of
from shiplift.runtime.search.workbench import Workbench, describe, measure_point, open_workbench
from shiplift.runtime.serving.triton.repository import reconfigure
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore, json_lines
from shiplift.runtime.store.journal import Journal
from shiplift.runtime.store.tuning_cache import tuning_cache

_COARSE = 3  # the search's windows are this many times shorter than a finalist's
_MIN_WINDOW_MS = 200  # in shorter windows the ramp-up makes small models seem up to a quarter slower
_REPORTED = 32  # trials in the record; `raw` has all of them
_FINAL_SHARE = 0.3  # of the time budget goes to the finals


def tune(
    site: Site,
    target: Target,
    packages: Packages,
    search_space: SearchSpace,
    latency_target: LatencyTarget,
    load: Load,
    serving: Serving,
    recorded_requests: RecordedRequests,
) -> Tuned:
    """Searches the space within its time budget and packages the best configuration.

    It sends recorded requests if there are any, because the fastest configuration depends on their lengths. The best
    package is asked the rows of the export's proof; if it answers one differently, the next best takes its place.

    Raises:
        DataInvalid: the recorded requests do not fit the model.
        MissingTool: the load generator or the target's server is not installed.
        ServerFailed: the measurement server did not start.
        ClusterRefused: the cluster does not allow this step to start that server.
        MeasurementFailed: no configuration could be measured.
        GoldenMismatch: no package is left whose server answers what the original does.
    """
    store = ArtifactStore(site.artifacts_uri)
    with open_workbench(site, packages, serving, search_space, load, table.requests, recorded_requests) as workbench:
        bench = workbench.bench
        key = digest_of(packages, load, recorded_requests, search_space, latency_target, bench.hardware)
        journal = Journal(Path(site.home) / "journal" / f"{key}.jsonl", Trial)
        learned = Path(site.home) / "journal" / history_key(packages, target, bench.hardware)
        with tuning_cache(site, f"best configurations of {learned.name}", learned):
            history = Journal(learned / "best.jsonl", Trial)
            space = space_of(packages.packages, search_space, serving, bench.cores, workbench.lengths)
            goal = goal_of(search_space, latency_target, 1 if target.gpu else bench.cores)
            search = Search(space, goal, warm_start=_best_configurations(history))
            exhausted = _explore(workbench, search, journal)
            _hold_finals(workbench, search, journal)
            package, best, differing = _proved(workbench, search, journal, store)
            late_after = late_after_ms(package, best, serving, goal)
            limits = tuned_limits(package, serving.limits, search.peak_mb(package, best.config))
            package = package.model_copy(update={"limits": limits})
            tuned_package = _packaged(store, bench, package, best, late_after)
            history.add(tuned_package.repository.sha256, best)
    return Tuned(
        target=target.name,
        package=tuned_package,
        best=best,
        late_after_ms=late_after,
        trials=search.best_trials(_REPORTED),
        exhausted=exhausted,
        lengths=lengths_sent(workbench.lengths, best.config.buckets),
        configurations=len({(trial.variant, trial.config) for trial in search.trials}),
        raw=store.put_bytes(json_lines(trial.model_dump(mode="json") for trial in search.trials)),
        differing=differing,
    )


def _proved(
    workbench: Workbench, search: Search, journal: Journal[Trial], store: ArtifactStore
) -> tuple[Package, Trial, tuple[Differing, ...]]:
    """The best package whose server answers what the original does, with its proof; and those that were dropped."""
    differing: list[Differing] = []
    while True:
        package, best = search.best()
        if package.questions is None:
            return package, best, tuple(differing)
        progress(f"asking the server what the original was asked: {package.described}")
        proof = served_proof(workbench.bench, package, best.config, store)
        if isinstance(proof, ServedProof):
            told = proof.model_copy(update={"dropped": tuple(map(str, differing))})
            return package.model_copy(update={"proof": told}), best, tuple(differing)
        differing.append(proof)
        search.drop(package)
        _require_another(workbench, search, journal, differing)


def _require_another(
    workbench: Workbench, search: Search, journal: Journal[Trial], differing: Sequence[Differing]
) -> None:
    """Measures a package that the search's time did not suffice for, if no other is left."""
    while not search.measured:
        if (point := search.unmeasured()) is None:
            raise GoldenMismatch(
                f"no package answers what the model answers: {'; '.join(each.told for each in differing)}",
                do="Log what was meant, or set another `engine`.",
            )
        search.tell(point, _trial(workbench, search, journal, point, workbench.space.window_ms))


def _explore(workbench: Workbench, search: Search, journal: Journal[Trial]) -> bool:
    """Measures in short windows until the search ends or its time is up; returns whether the search ended by itself."""
    started = time.monotonic()
    space = workbench.space
    budget_s = space.time_budget_s * (1 - _FINAL_SHARE)
    window_ms = min(space.window_ms, max(_MIN_WINDOW_MS, space.window_ms // _COARSE))
    while (point := search.ask()) is not None:
        spent = time.monotonic() - started
        if search.trials and spent > budget_s:
            return False
        message = f"trial {len(search.trials) + 1}: {point.package.described}, {describe(point.config)}"
        progress(message, min(spent / budget_s, 1.0))
        search.tell(point, _trial(workbench, search, journal, point, window_ms))
    return True


def _hold_finals(workbench: Workbench, search: Search, journal: Journal[Trial]) -> None:
    """Measures finalists in long windows, in rounds, until time is up; at least the best of the first round."""
    deadline = time.monotonic() + workbench.space.time_budget_s * _FINAL_SHARE
    window_ms = workbench.space.window_ms
    round_ = 0
    while finalists := search.finalists():
        round_ += 1
        for turn, point in enumerate(finalists, 1):
            if (round_, turn) > (1, 1) and time.monotonic() > deadline:
                return
            configuration = f"{point.package.described}, {describe(point.config)}"
            progress(f"finals, round {round_}, {turn} of {len(finalists)}: {configuration}")
            search.tell_final(point, _trial(workbench, search, journal, point, window_ms, round_))


def _trial(
    workbench: Workbench, search: Search, journal: Journal[Trial], point: Point, window_ms: int, round_: int = 0
) -> Trial:
    """The point's trial from the journal, or else measured now and added to the journal."""
    key = f"{_trial_key(point.package, point.config)}, {window_ms} ms, {round_}"
    trial = journal.get(key)
    if trial is None:
        trial = measure_point(workbench, search, point, window_ms)
        journal.add(key, trial)
    return trial


def _best_configurations(history: Journal[Trial]) -> list[tuple[str, ServingConfig]]:
    """The best configurations of earlier versions, newest first."""
    return [(trial.variant, trial.config) for trial in reversed(list(history.records().values()))]


def _packaged(store: ArtifactStore, bench: Bench, package: Package, best: Trial, late_after: float) -> Package:
    tree = bench.tree(package)
    name, memory_mb = serving_name(package.model), package.limits.memory_mb
    reconfigure(tree, name, best.config, late_after, package.called_endings, memory_mb)
    return package.model_copy(update={"config": best.config, "repository": store.put_tree(tree)})


def _trial_key(package: Package, config: ServingConfig) -> str:
    return f"{package.repository.sha256[:16]} {describe(config)}"
