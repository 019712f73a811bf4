"""Benches on real servers: trials run under exactly the configuration that the final package gets, on any bench.

The pod's server is the bundled Triton, started on the loopback as NVIDIA's is in a pod: with packages fetched by the
init container's own code, through the guard, and with the meter beside it. Only Kubernetes is missing.
"""

import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from shiplift.runtime.base.errors import MeasurementFailed, ServerFailed, Temporary
from shiplift.runtime.base.names import serving_name
from shiplift.runtime.guest.pod import guard, meter
from shiplift.runtime.host.processes import identify, kill, listening, start_child
from shiplift.runtime.records.kinds.package import GraphPackage, Package
from shiplift.runtime.records.model import RecordedRequests
from shiplift.runtime.records.precision import Precision
from shiplift.runtime.records.serving import Nodes, ServingConfig
from shiplift.runtime.records.site import Cluster, Site
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.search import pod_server
from shiplift.runtime.search.pod_server import PodServer
from shiplift.runtime.search.private_server import private_bench
from shiplift.runtime.search.space import Point
from shiplift.runtime.serving.kubernetes.bench_pod import Running
from shiplift.runtime.serving.kubernetes.fetch import fetch
from shiplift.runtime.serving.kubernetes.objects.bench import METER, served_as
from shiplift.runtime.serving.kubernetes.serve import PORTS
from shiplift.runtime.serving.triton.client import TritonClient, check_golden
from shiplift.runtime.serving.triton.command_line import Ports, nvidia_command, variables
from shiplift.runtime.serving.triton.config import ModelDescription, retuned
from shiplift.runtime.serving.triton.repository import golden_arrays, write_package
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import Serving
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.artifacts import ArtifactStore
from shiplift.steps.tune import tune
from tests.integration.conftest import until
from tests.integration.test_triton import ENVIRONMENT, SIGNATURE, X, onnx_folder

pytestmark = pytest.mark.integration
FIRST = ServingConfig(max_batch=8, queue_delay_us=0, instances=1, threads=1)
GOLDEN = golden_arrays({"x": X}, {"y": 2 * X})
TARGET = Target(name="gpu", server="nvidia", precisions=("fp32", "int8"), image="example.org/tritonserver:1")
CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/shiplift-server:1")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "home").mkdir()
    return Site(
        home=str(tmp_path / "home"),
        registry_uri="",
        artifacts_uri=(tmp_path / "store").as_uri(),
        server_environment=str(ENVIRONMENT.root),
        place=CLUSTER,
    )


@pytest.fixture
def packages(site: Site, tmp_path: Path) -> tuple[Package, ...]:
    """The model `Doubled_1` for NVIDIA's image, in two precisions that share a file here."""
    onnx = onnx_folder(tmp_path / "onnx")
    return tuple(packaged(site, precision, onnx, tmp_path) for precision in ("fp32", "int8"))


def packaged(site: Site, precision: Precision, onnx: Path, work: Path) -> Package:
    description = ModelDescription(
        name="Doubled_1", version=3, signature=SIGNATURE, config=FIRST, serving=Serving(), precision=precision
    )
    tree = work / f"package-{precision}"
    tree.mkdir()
    write_package(tree, description, onnx, "nvidia", example={"x": X}, golden=GOLDEN)
    return GraphPackage(
        target="gpu",
        server="nvidia",
        model="Doubled_1",
        version=3,
        precision=precision,
        config=FIRST,
        repository=ArtifactStore(site.artifacts_uri).put_tree(tree),
        signature=SIGNATURE,
        nodes=Nodes(image="example.org/tritonserver:1"),
    )


class LoopbackPod:
    """Does what a pod's containers do, on its own loopback address, with the ports of every pod."""

    def __init__(self, site: Site, packages: tuple[Package, ...], folder: Path) -> None:
        self.site, self.packages, self.folder = site, packages, folder
        self.started = 0
        self.child: Any = None

    def start(self) -> Running:
        self.end()
        self.started += 1
        self.host = host = ".".join(["127", *(str(random.randint(2, 250)) for _ in range(3))])
        models = self.folder / f"models-{self.started}"
        environments = self.folder / "environments"
        for package in self.packages:
            name, served = serving_name(package.model), served_as(package)
            fetch(self.site.artifacts_uri, package.repository.sha256, models, name, served, environments=environments)
        (self.folder / "guard").mkdir(exist_ok=True)
        for module in (guard, meter):
            shutil.copy(str(module.__file__), self.folder / "guard")
        ports = Ports(http=PORTS.http, grpc=PORTS.grpc, metrics=PORTS.metrics, host=host)
        triton = nvidia_command(models, ports, self.packages[0].needs, load=())
        names = [served_as(package) + end for package in self.packages for end in ("", *package.called_endings)]
        models_checked = [word for name in names for word in ("--model", str(models / name))]
        folders = [f"--backend-directory={ENVIRONMENT.backends}", f"--cache-directory={ENVIRONMENT.caches}"]
        command = [sys.executable, "-I", str(self.folder / "guard" / "guard.py"), *models_checked]
        path = f"{ENVIRONMENT.tritonserver.parent}{os.pathsep}{os.environ['PATH']}"
        self.child = start_child(
            [*command, "--meter", f"{host}:{METER}", "--", *triton, *folders],
            environment={
                **variables(ENVIRONMENT),
                "PATH": path,
                guard.KEY: f"key{self.started}",
                "SHIPLIFT_ENVIRONMENTS": str(environments),
            },
            log=self.folder / "log",
        )
        both = (ports.grpc, ports.http, METER)
        until(lambda: self.child.poll() is not None or all(listening(host, port) for port in both))
        return Running(host, f"key{self.started}")

    def end(self) -> None:
        if self.child is not None and self.child.poll() is None:
            kill(identify(self.child.pid))
            until(lambda: not listening(self.host, METER))  # a container would end at once

    def why_ended(self) -> str:
        return "" if self.child.poll() is None else f"triton ended with exit code {self.child.wait()}"


@contextmanager
def pod_bench(site: Site, packages: tuple[Package, ...], work: Path) -> Iterator[tuple[PodServer, LoopbackPod]]:
    work.mkdir()
    pod = LoopbackPod(site, packages, work)
    try:
        bench = PodServer(pod, ArtifactStore(site.artifacts_uri), work)
        yield bench, pod
        bench.close()
    finally:
        pod.end()


def test_a_trial_runs_under_exactly_the_configuration_that_its_package_would_get(
    site: Site, packages: tuple[Package, ...], tmp_path: Path
) -> None:
    points = [
        Point(packages[0], ServingConfig(max_batch=4, queue_delay_us=500, instances=3, threads=2)),
        Point(packages[1], ServingConfig(max_batch=16, queue_delay_us=0, instances=1, threads=1)),
        Point(packages[1], ServingConfig(max_batch=16, queue_delay_us=0, instances=2, threads=1)),
    ]
    (tmp_path / "private").mkdir()
    with (
        pod_bench(site, packages, tmp_path / "pod") as (pod, _),
        private_bench(site, packages, Serving(), tmp_path / "private") as private,
    ):
        for point in points:
            model = pod.serve(point)
            assert model == f"Doubled_1--{point.package.variant}"
            with (
                TritonClient(pod.address("grpc"), repository_key=pod._running.key) as client,
                TritonClient(private.address("grpc")) as other,
            ):
                check_golden(client, model, SIGNATURE, GOLDEN, tolerance=1e-6)
                assert client.loaded() == {model: [3]}  # the previous package is unloaded
                mine, theirs = client.config(model), other.config(private.serve(point))
            config = point.config
            assert (mine.max_batch_size, mine.instance_group[0].count) == (config.max_batch, config.instances)
            assert mine.dynamic_batching.max_queue_delay_microseconds == config.queue_delay_us
            assert mine.parameters["intra_op_thread_count"].string_value == str(config.threads)
            assert mine.model_warmup[1].batch_size == config.max_batch
            # The private server reads its configuration from a file written like the final package's.
            theirs.name, theirs.instance_group[0].name = mine.name, mine.instance_group[0].name
            assert mine == theirs


def test_only_the_holder_of_the_key_changes_what_a_bench_serves(
    site: Site, packages: tuple[Package, ...], tmp_path: Path
) -> None:
    with pod_bench(site, packages, tmp_path / "pod") as (bench, _):
        model = bench.serve(Point(packages[0], FIRST))
        with TritonClient(bench.address("grpc"), repository_key="a guess") as client:
            for change in (client.load, client.unload):
                with pytest.raises(Temporary, match="restricted"):
                    change(model)
            assert client.ready(model)
        load = f"http://{bench.address('http')}/v2/repository/models/{model}/load"
        assert httpx.post(load, json={}, trust_env=False).status_code == 403


def test_a_bench_reports_its_servers_memory_cores_and_hardware(
    site: Site, packages: tuple[Package, ...], tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir()
    with (
        pod_bench(site, packages, tmp_path / "pod") as (bench, _),
        private_bench(site, packages, Serving(), tmp_path / "private") as private,
    ):
        for server in (bench, private):
            server.serve(Point(packages[0], FIRST))
        assert bench.cores == private.cores
        assert bench.hardware[1] == private.hardware[1]
        assert bench.memory_mb() == pytest.approx(private.memory_mb(), rel=0.2)


@pytest.mark.slow
def test_a_configuration_that_does_not_load_or_kills_the_server_fails_alone(
    site: Site, packages: tuple[Package, ...], tmp_path: Path
) -> None:
    with pod_bench(site, packages, tmp_path / "pod") as (bench, pod):
        good = Point(packages[0], FIRST)
        broken = packages[1].model_copy(update={"precision": "fp16"})  # the pod does not have it
        with pytest.raises(ServerFailed, match="Doubled_1--onnxruntime-fp16"):
            bench.serve(Point(broken, FIRST))
        bench.serve(good)
        pod.end()
        with pytest.raises(MeasurementFailed, match="triton ended with exit code"):
            bench.memory_mb()
        model = bench.serve(good)
        assert pod.started == 2
        with TritonClient(bench.address("grpc")) as client:
            check_golden(client, model, SIGNATURE, GOLDEN, tolerance=1e-6)


def test_a_target_with_nvidia_s_image_is_searched_and_gets_the_best_configuration(
    site: Site, packages: tuple[Package, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods: list[LoopbackPod] = []

    def make_pod(_: object, cluster: Cluster, searched: tuple[Package, ...], artifacts_uri: str) -> LoopbackPod:
        assert (cluster, artifacts_uri) == (CLUSTER, site.artifacts_uri)
        pods.append(LoopbackPod(site, searched, tmp_path))
        return pods[-1]

    monkeypatch.setattr(pod_server, "BenchPod", make_pod)
    space = SearchSpace(
        time_budget_s=8, max_batch=(1, 8), queue_delay_us=(0,), instances=(1, 2), threads=(1,), window_ms=100
    )
    candidates = Packages(target="gpu", packages=packages, checks=())
    tuned = tune(site, TARGET, candidates, space, LatencyTarget(), Load(), Serving(), RecordedRequests())
    assert [pod.child.poll() is None for pod in pods] == [False]
    assert tuned.configurations > 1
    assert (tuned.best.error, tuned.best.memory_mb > 0, tuned.best.throughput_per_s > 0) == ("", True, True)
    assert tuned.package.config == tuned.best.config
    by_variant = {package.variant: package for package in packages}
    store = ArtifactStore(site.artifacts_uri)
    text, before = (
        store.read_from_tree(package.repository, "Doubled_1/config.pbtxt").decode()
        for package in (tuned.package, by_variant[tuned.best.variant])
    )
    assert text == retuned(before, tuned.best.config)
