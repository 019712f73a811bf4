"""Tuning: finds the best serving configuration within the budgets, measured on a server that nothing else uses.

`runtime.search` decides what to measure and where, and measures it. A killed search resumes where it stopped. The next
version's search starts from the best configurations, even on a cluster, where a pod's home is empty. On a machine that
was calibrated, every search starts from what the machine is fast at.
"""

from pathlib import Path

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.families import table
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import Trial, Tuned
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search import knee
from shiplift.runtime.search.bench import Bench
from shiplift.runtime.search.buckets import lengths_sent
from shiplift.runtime.search.calibration.keeping import known
from shiplift.runtime.search.disturbance import Others
from shiplift.runtime.search.expectations import expectations_of
from shiplift.runtime.search.goal import goal_of
from shiplift.runtime.search.idle_cores import why_idle
from shiplift.runtime.search.keys import digest_of, history_key
from shiplift.runtime.search.lateness import late_after_ms
from shiplift.runtime.search.limits import tuned_limits
from shiplift.runtime.search.measuring import SearchMeasuring
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import space_of
from shiplift.runtime.search.workbench import open_workbench
from shiplift.runtime.serving.triton.repository import reconfigure
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore, json_lines
from shiplift.runtime.store.journal import Journal
from shiplift.runtime.store.tuning_cache import tuning_cache

_BESIDE_A_GPU = 2  # cores: two instances copy and compute in turn (Triton's optimization guide); the GPU does the rest
_REPORTED = 32  # trials in the record; `raw` has all of them


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
            cores = _BESIDE_A_GPU if target.gpu else bench.cores
            steady = 0 if target.gpu else bench.steady_cores
            space = space_of(packages.packages, search_space, serving, cores, workbench.lengths, steady=steady)
            goal = goal_of(search_space, latency_target, 1 if target.gpu else cores)
            expectations = None if target.gpu else expectations_of(known(site, bench.hardware))
            search = Search(space, goal, warm_start=_best_configurations(history), expectations=expectations)
            others = Others(bench.others_s, bench.cores)
            measuring = SearchMeasuring(workbench=workbench, search=search, journal=journal, others=others)
            exhausted = measuring.explore()
            measuring.hold_finals()
            package, best, differing = measuring.proved(store)
            late_after = late_after_ms(package, best, serving, goal)
            limits = tuned_limits(package, serving.limits, search.peak_mb(package, best.config))
            idle = "" if target.gpu or package.member_models else why_idle(space, goal, search.trials, best)
            package = package.model_copy(update={"limits": limits, "idle": idle})
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
        idle=idle,
        knee=knee.told(search.trials, best, goal),
        untried=search.untried(),
        disturbed=sum(trial.disturbed_cores > 0 for trial in search.trials),
    )


def _best_configurations(history: Journal[Trial]) -> list[tuple[str, ServingConfig]]:
    """The best configurations of earlier versions, newest first."""
    return [(trial.variant, trial.config) for trial in reversed(list(history.records().values()))]


def _packaged(store: ArtifactStore, bench: Bench, package: Package, best: Trial, late_after: float) -> Package:
    tree = bench.tree(package)
    name, memory_mb = serving_name(package.model), package.limits.memory_mb
    if package.tunable:
        reconfigure(tree, name, best.config, late_after, package.called_endings, memory_mb)
    return package.model_copy(update={"config": best.config, "repository": store.put_tree(tree)})
