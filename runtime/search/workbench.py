"""Measures points: with a bench, a load generator, and the requests that it sends."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shiplift.runtime.base.errors import MeasurementFailed, ServerFailed
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.measure import requests
from shiplift.runtime.measure.generator import Demand, LoadGenerator, LoadTarget, Window
from shiplift.runtime.measure.generators import load_generator
from shiplift.runtime.measure.logged import write_recorded
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.measurement import Trial
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.serving import ServingConfig
from shiplift.runtime.records.site import Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search.bench import Bench, start_bench
from shiplift.runtime.search.goal import Goal
from shiplift.runtime.search.planner import Search
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.store.artifacts import ArtifactStore

_ATTEMPTS = 1  # one unstable trial among many does no harm


@dataclass(frozen=True, kw_only=True)
class Workbench:
    """Everything that a trial needs. `lengths` are those of the requests, if the spec asks for buckets of lengths."""

    bench: Bench
    generator: LoadGenerator
    requests: Path
    work: Path
    space: SearchSpace
    load: Load
    lengths: tuple[int, ...] = ()


@contextmanager
def open_workbench(
    site: Site,
    packages: Packages,
    serving: Serving,
    space: SearchSpace,
    load: Load,
    make: requests.Make,
    recorded_requests: RecordedRequests = RecordedRequests(),  # noqa: B008 - frozen
) -> Iterator[Workbench]:
    """Starts a bench for the packages and writes the requests to send; both last as long as the context.

    `make` makes the requests, unless there are recorded ones.

    Raises:
        DataInvalid: the recorded requests do not fit the model.
        MissingTool, ServerFailed, ClusterRefused: the bench can't start; the message says why.
    """
    store, first = ArtifactStore(site.artifacts_uri), packages.packages[0]
    generator = load_generator(site, load.protocol, streamed=first.signature.streamed)
    with (
        scratch_folder(Path(site.home)) as work,
        start_bench(site, packages.packages, serving, work) as bench,
    ):
        file = work / "requests.json"
        if recorded_requests.file is not None:
            recorded = write_recorded(site, store, first, recorded_requests, load, file)
            lengths = recorded or (first.padding.lengths if first.padding else ())
        else:
            golden = load_npz(store.read_from_tree(first.repository, GOLDEN))
            load = requests.with_lengths(load, first, golden)
            make(first, golden, load).write(generator, file, first.signature)
            lengths = requests.lengths(first, golden, load)
        yield Workbench(
            bench=bench, generator=generator, requests=file, work=work, space=space, load=load, lengths=lengths
        )


def measure_point(workbench: Workbench, search: Search, point: Point, window_ms: int) -> Trial:
    """Measures a point at the concurrency that saturates it, then at lower ones while it is over its limits.

    A failure is a trial with its error.
    """
    config = point.config
    # Triton's guide names about 2 x batch x instances requests in flight for the highest throughput.
    concurrency = min(
        workbench.space.max_concurrency, max(4, 2 * config.max_batch * config.instances // workbench.load.batch)
    )
    try:
        model = workbench.bench.serve(point)
        while True:
            trial = _trial(workbench, search.goal, point, model, concurrency, window_ms)
            if trial.within_slo or concurrency == 1:
                return trial
            if search.should_prune(trial):
                return trial.model_copy(update={"pruned": True})
            concurrency //= 2
    except (ServerFailed, MeasurementFailed) as error:
        return Trial(
            engine=point.package.engine,
            precision=point.package.precision,
            config=config,
            concurrency=concurrency,
            throughput_per_s=0,
            p50_ms=0,
            p99_ms=0,
            memory_mb=0,
            within_slo=False,
            error=error.what,
            window_ms=window_ms,
        )


def _trial(workbench: Workbench, goal: Goal, point: Point, model: str, concurrency: int, window_ms: int) -> Trial:
    load = workbench.load
    target = LoadTarget(
        model=model,
        address=workbench.bench.address(load.protocol),
        requests=workbench.requests,
        sequences=point.package.stateful,
        batch=load.batch,
    )
    window = Window(
        window_ms=window_ms, stability_percent=load.stability_percent, attempts=_ATTEMPTS, protocol=load.protocol
    )
    measured = workbench.generator.measure(target, Demand(concurrency=concurrency), window, workbench.work).point
    memory = workbench.bench.memory_mb()
    trial = Trial(
        engine=point.package.engine,
        precision=point.package.precision,
        config=point.config,
        concurrency=concurrency,
        throughput_per_s=measured.throughput_per_s,
        p50_ms=measured.p50_ms,
        p99_ms=measured.p99_ms,
        memory_mb=memory,
        within_slo=goal.within_budgets(measured.p99_ms, memory),
        queue_ms=measured.queue_ms,
        compute_ms=measured.compute_ms,
        window_ms=window_ms,
        spread_percent=measured.spread_percent,
    )
    return trial.model_copy(update={"cost_per_million": goal.cost_per_million(trial)})


def describe(config: ServingConfig) -> str:
    """Describes a configuration in a few words. Journals find their trials by this text."""
    text = (
        f"batch {config.max_batch}, delay {config.queue_delay_us} us, "
        f"{config.instances} x {config.threads} thread{'s' if config.threads > 1 else ''}"
    )
    return f"{text}, lengths to {' '.join(map(str, config.buckets))}" if config.buckets else text
