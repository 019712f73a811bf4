"""The load test: puts the staging server under load with requests like those of users.

A sweep over concurrencies shows how the challenger behaves when clients wait for answers (closed loop); arrivals at
fixed rates show how it behaves when they don't (open loop). Only the open loop shows the cost of a queue: the closed
loop suffers from coordinated omission. Then champion and challenger are measured in alternation on the same server
until their difference is decided. Every window is kept.
"""

from contextlib import ExitStack
from pathlib import Path

from shiplift.runtime.base.errors import ArtifactCorrupt, DataInvalid, ServerFailed
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.progress import progress
from shiplift.runtime.families import table
from shiplift.runtime.host.folders import scratch_folder
from shiplift.runtime.measure import requests, sweep
from shiplift.runtime.measure.cancellations import cancelled
from shiplift.runtime.measure.comparing import incomparable
from shiplift.runtime.measure.findings import notes_of, table_of
from shiplift.runtime.measure.generators import load_generator
from shiplift.runtime.measure.logged import write_recorded
from shiplift.runtime.measure.loops import closed_loop, compared, open_loop, warm_up
from shiplift.runtime.measure.members import member_loads, timings_of
from shiplift.runtime.measure.sides import LoadTest, Side
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.deployment import Deployment, Staged
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.measurement import LoadReport
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.promotion import Champion
from shiplift.runtime.records.site import Site
from shiplift.runtime.serving.staging import Staging, staging
from shiplift.runtime.serving.triton.client import TritonClient
from shiplift.runtime.serving.triton.repository import GOLDEN
from shiplift.runtime.spec.measurement import ComparisonTarget, LatencyTarget, Load
from shiplift.runtime.store.artifacts import ArtifactStore, json_lines


def load_test(
    site: Site,
    deployment: Deployment,
    champion: Champion,
    load: Load,
    recorded_requests: RecordedRequests,
    latency_target: LatencyTarget,
    comparison_target: ComparisonTarget,
) -> LoadReport:
    """Sweeps the challenger, finds its highest rate, then compares it with the champion at its best throughput.

    Each target that serves is measured separately, one after the other; the first is compared with the champion.

    Raises:
        MissingTool: the load generator is not installed.
        MeasurementFailed: the load generator died, or a request failed.
        DataInvalid: the recorded requests, or requests of `load.batch` samples, do not fit the model.
    """
    store = ArtifactStore(site.artifacts_uri)
    package = deployment.package
    for serving in (package, *(other.package for other in deployment.others)):
        if problem := requests.batch_problem(serving, load):
            raise DataInvalid(problem, do="Set `load: {batch: 1}`, or a size that the model takes.")
    progress("writing the requests")
    place = staging(site, package.model, package.version)
    with scratch_folder(Path(site.home)) as folder:
        generator = load_generator(site, load.protocol, streamed=package.signature.streamed)
        drawn = _with_lengths(store, package, load, recorded_requests)
        test = LoadTest(site=site, generator=generator, load=drawn, work=folder)

        def side(name: str, package: Package, staged: Staged) -> Side:
            file = _write_requests(test, store, package, recorded_requests, name)
            return Side(name=name, staged=staged, requests=file, sequences=package.stateful)

        staged = Staged(model=serving_name(package.model), endpoint=deployment.endpoint)
        challenger = side("challenger", package, staged)
        report = _challenger_report(test, challenger, place, deployment, latency_target)
        beside_first = []
        for other in deployment.others:
            staged = Staged(model=serving_name(other.package.model), endpoint=other.endpoint)
            group = side(f"challenger on {other.package.target}", other.package, staged)
            beside_first.append(_challenger_report(test, group, place, other, latency_target))
        report = report.model_copy(update={"others": tuple(beside_first)})
        with ExitStack() as beside:
            champion_side, uncompared = None, incomparable(champion, package, load)
            if champion.package is not None and not uncompared:
                try:
                    staged = beside.enter_context(place.beside(deployment, champion.package))
                    champion_side = side("champion", champion.package, staged)
                except (ArtifactCorrupt, ServerFailed) as error:
                    uncompared = f"champion {champion.version} can't be measured beside the challenger: {error.what}"
            if champion_side is not None:
                report = compared(test, challenger, champion_side, champion.version, report, comparison_target)
    raw = store.put_bytes(json_lines(test.raw))
    note = "" if recorded_requests.file else table.requests(package, _golden(store, package), load).note
    notes = tuple(notes_of(report, uncompared, recorded_requests, note))
    rows = store.put_bytes(table_of(test.raw))
    return report.model_copy(update={"uncompared": uncompared, "notes": notes, "raw": raw, "table": rows})


def _challenger_report(
    test: LoadTest, challenger: Side, place: Staging, deployment: Deployment, latency_target: LatencyTarget
) -> LoadReport:
    """Measures the challenger alone."""
    warm_up(test, challenger)
    package = deployment.package
    with TritonClient(deployment.endpoint.grpc) as client:
        before = timings_of(client, package)
        points = closed_loop(test, challenger)
        members = member_loads(package, before, timings_of(client, package))
    rates, highest = open_loop(test, challenger, points, latency_target)
    with TritonClient(deployment.endpoint.grpc) as client:
        failed = client.failures(challenger.staged.model)
    failures = failed - cancelled(deployment.metrics, challenger.staged.model) if failed else 0
    return LoadReport(
        points=points,
        open_points=rates,
        max_rate_per_s=highest,
        limit_ms=latency_target.p99_ms,
        knee=sweep.knee(points),
        failures=failures,
        memory_mb=place.memory_mb(deployment),
        protocol=test.load.protocol,
        target=package.target,
        members=members,
    )


def _with_lengths(store: ArtifactStore, package: Package, load: Load, recorded_requests: RecordedRequests) -> Load:
    """The load with lengths to draw for a package that pads requests, unless the requests are recorded."""
    if package.padding is None or recorded_requests.file is not None:
        return load
    return requests.with_lengths(load, package, _golden(store, package))


def _write_requests(
    test: LoadTest, store: ArtifactStore, package: Package, recorded_requests: RecordedRequests, side: str
) -> Path:
    """Writes a side's requests: recorded ones, or ones generated from its package's golden inputs."""
    path = test.work / f"{side}.json"
    if recorded_requests.file is not None:
        write_recorded(test.site, store, package, recorded_requests, test.load, path)
        return path
    load = requests.fitting(test.load, package.signature) if side == "champion" else test.load
    return table.requests(package, _golden(store, package), load).write(test.generator, path, package.signature)


def _golden(store: ArtifactStore, package: Package) -> Arrays:
    return load_npz(store.read_from_tree(package.repository, GOLDEN))
