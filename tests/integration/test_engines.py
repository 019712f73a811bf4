"""A release's stages with both engines of the bundled server: packaged, served, checked and tuned for real."""

from pathlib import Path

import pytest

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.host.processor import cpu_flags
from shiplift.runtime.model.tensors import load_npz
from shiplift.runtime.records.calibration import GraphKind, Rate
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.precision import Candidate, Candidates, Engine, Precision
from shiplift.runtime.search.calibration.keeping import keep, this_hardware
from shiplift.runtime.serving.machine.server import private_server
from shiplift.runtime.serving.triton.client import TritonClient, check_package
from shiplift.runtime.serving.triton.command_line import Features
from shiplift.runtime.serving.triton.environment import ServerEnvironment, default_root
from shiplift.runtime.serving.triton.repository import GOLDEN, install
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.steps.tune import tune
from tests.unit.examples import calibration, site
from tests.unit.steps.test_package import Bench

pytestmark = pytest.mark.integration
ENVIRONMENT = ServerEnvironment(default_root())
VARIANTS: list[tuple[Engine, Precision]] = [("onnxruntime", "fp32"), ("openvino", "fp32")]
GRAPHS: tuple[GraphKind, ...] = ("dense", "small")
if cpu_flags() & {"avx512_bf16", "amx_bf16"}:
    VARIANTS.append(("openvino", "bf16"))


def offered(bench: Bench) -> Candidates:
    """The same file on both engines, in each precision that needs no other file."""
    return Candidates(
        target="local-cpu",
        metric="accuracy",
        validation="v" * 64,
        candidates=tuple(
            Candidate(engine=engine, precision=precision, model=bench.model, score=0.95, samples=500)
            for engine, precision in VARIANTS
        ),
    )


def test_every_engine_serves_what_it_answered_when_it_was_packaged(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    packages = bench.package(offered(bench)).packages
    assert [(package.engine, package.precision) for package in packages] == VARIANTS
    models = tmp_path / "models"
    with (
        private_server(ENVIRONMENT, models, Features(cache_mb=0), log=tmp_path / "log") as server,
        TritonClient(server.grpc, repository_key=server.key) as client,
    ):
        for package in packages:
            tree = bench.store.fetch(package.repository, tmp_path / package.variant)
            install(tree, models, source=serving_name(package.model), name=package.variant)
            client.load(package.variant)
            check_package(client, package.variant, package, load_npz(tree / GOLDEN))


def test_tuning_measures_every_engine_and_packages_the_best(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    packages = bench.package(offered(bench))
    space = SearchSpace(  # a configuration for each engine and precision: the search ends by itself, not by the clock
        time_budget_s=60, max_batch=(8,), queue_delay_us=(0,), instances=(2,), threads=(1,), window_ms=100
    )
    place = site(tmp_path, server_environment=str(ENVIRONMENT.root))
    tuned = tune(place, Target(), packages, space, LatencyTarget(), Load(), Serving(), RecordedRequests())
    measured = {(trial.engine, trial.precision) for trial in tuned.trials if not trial.error}
    assert measured == set(VARIANTS)
    assert (tuned.package.engine, tuned.package.precision) == (tuned.best.engine, tuned.best.precision)


def test_tuning_on_a_calibrated_machine_begins_with_what_it_computes_fastest(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    packages = bench.package(offered(bench))
    place = site(tmp_path, server_environment=str(ENVIRONMENT.root))
    rates = tuple(
        Rate(graph=graph, engine=engine, precision=precision, instances=2, threads=1, batch=8, rows_per_s=rows)
        for graph in GRAPHS
        for (engine, precision), rows in zip(VARIANTS, (1.0, 10.0, 100.0), strict=False)
    )
    keep(place, this_hardware(), calibration(rates=rates))
    space = SearchSpace(
        time_budget_s=60, max_batch=(8,), queue_delay_us=(0,), instances=(2,), threads=(1,), window_ms=100
    )
    tuned = tune(place, Target(), packages, space, LatencyTarget(), Load(), Serving(), RecordedRequests())
    assert (tuned.trials[0].engine, tuned.trials[0].precision) == VARIANTS[-1]
    measured = {(trial.engine, trial.precision) for trial in tuned.trials}
    slow = {("openvino", "fp32")} if len(VARIANTS) == 3 else set()  # bf16 is ten times as fast in each case
    assert measured == set(VARIANTS) - slow
    assert [why.split(" was not tried")[0] for why in tuned.untried] == ["fp32 on OpenVINO"] * len(slow)
