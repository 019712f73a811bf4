"""The pod that a search measures on: what it is made of, and its life cycle. Real ones are in tests/cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.base.errors import ClusterRefused, ServerFailed, Temporary
from shiplift.runtime.guest.pod.guard import KEY
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes import bench_pod as benches
from shiplift.runtime.serving.kubernetes import workloads
from shiplift.runtime.serving.kubernetes.bench_pod import BenchPod
from shiplift.runtime.serving.kubernetes.objects.bench import bench_name, bench_pod
from shiplift.runtime.serving.kubernetes.objects.names import BENCH, LABEL, bench_label
from shiplift.runtime.serving.kubernetes.staging import ClusterStaging
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import Golden, artifact, package, site
from tests.unit.runtime.serving.kubernetes.test_objects import CLUSTER, on_gpu

QUICK = CLUSTER.model_copy(update={"ready_timeout_s": 1})
PACKAGES = (on_gpu(), on_gpu(precision="fp16", repository=artifact("b", kind="tree")))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as api_server:
        api_server.created = lambda pod: pod.update(status=ready("10.0.0.7"))
        yield api_server


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "_POLL_S", 0.01)


def ready(address: str) -> Any:
    return {"podIP": address, "conditions": [{"type": "Ready", "status": "True"}]}


def pod(server: ApiServer, cluster: Cluster = QUICK, packages: tuple[Package, ...] = PACKAGES) -> BenchPod:
    return BenchPod(server.api("models"), cluster, packages, "s3://bucket/x")


@pytest.mark.parametrize(
    ("name", "packages"),
    [("nvidia", PACKAGES), ("bundled", (package(), package(precision="int8", repository=artifact("b", kind="tree"))))],
)
def test_a_bench_is_the_golden_pod(golden: Golden, name: str, packages: tuple[Package, ...]) -> None:
    body = bench_pod(CLUSTER, packages, "s3://bucket/x", name=bench_name(packages), key="k" * 32)
    golden(f"bench.{name}.yaml", yaml.safe_dump(body, sort_keys=False, width=120))


def test_the_graph_of_a_front_is_checked_for_a_plan_like_the_front() -> None:
    body = bench_pod(CLUSTER, (on_gpu(kind="text"),), "s3://bucket/x", name="x", key="k")
    checked = [word for word in body["spec"]["containers"][0]["command"] if word.startswith("/models/")]
    assert checked == [f"/models/digits--onnxruntime-fp32{ending}" for ending in ("", "--tensors")]


def test_a_bench_is_not_found_as_a_served_model() -> None:
    body = bench_pod(CLUSTER, PACKAGES, "s3://bucket/x", name="x", key="k")
    labels = body["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] != "triton"
    assert not {f"{LABEL}model", f"{LABEL}package", f"{LABEL}version"} & set(labels)
    (triton,) = body["spec"]["containers"]
    assert triton["args"][0] == "tritonserver"
    assert not [word for word in triton["args"] if word.startswith("--load-model")]


def test_every_container_of_a_bench_meets_the_restricted_standard() -> None:
    spec = bench_pod(CLUSTER, PACKAGES, "s3://bucket/x", name="x", key="k")["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert not spec["automountServiceAccountToken"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert [container["name"] for container in spec["initContainers"]] == [
        "fetch-onnxruntime-fp32",
        "fetch-onnxruntime-fp16",
    ]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_name_depends_on_what_is_searched_and_fits_a_label() -> None:
    assert bench_name(PACKAGES) == bench_name(PACKAGES)
    others = (PACKAGES[:1], (on_gpu(target="other"), PACKAGES[1]), (on_gpu(version=3), PACKAGES[1]))
    assert len({bench_name(PACKAGES), *map(bench_name, others)}) == 4
    long = on_gpu(model="A" * 48, version=99999)
    assert len(bench_name((long,))) <= 63
    assert len(bench_label(long.model, long.version)) <= 63


def test_each_start_has_its_own_key_and_clears_what_a_killed_search_left(server: ApiServer) -> None:
    first = pod(server).start()
    server.objects["pods"]["someone-s"] = {"metadata": {"name": "someone-s"}}
    second = pod(server).start()
    assert (first.host, second.host) == ("10.0.0.7", "10.0.0.7")
    assert first.key != second.key
    body = server.objects["pods"][bench_name(PACKAGES)]
    assert {"name": KEY, "value": second.key} in body["spec"]["containers"][0]["env"]
    pod(server).end()
    pod(server).end()
    assert list(server.objects["pods"]) == ["someone-s"]


def test_an_address_of_ipv6_can_take_a_port(server: ApiServer) -> None:
    server.created = lambda body: body.update(status=ready("fd00::7"))
    assert pod(server).start().host == "[fd00::7]"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": "no GPU is free"}]},
            "no GPU is",
        ),
        (
            {"containerStatuses": [{"name": "triton", "state": {"waiting": {"reason": "InvalidImageName"}}}]},
            "InvalidImageName",
        ),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {"name": "fetch-fp32", "state": {"terminated": {"exitCode": 35, "message": "artifact corrupt"}}}
                ],
            },
            "fetch-fp32 ended with exit code 35: artifact corrupt",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"},
            "the node was low on memory",
        ),
        ({"phase": "Pending"}, "gives no reason"),
    ],
)
def test_a_pod_that_does_not_come_up_says_why(server: ApiServer, status: Any, why: str) -> None:
    server.created = lambda body: body.update(status=status)
    with pytest.raises(ServerFailed, match=why) as error:
        pod(server).start()
    assert "for measuring configurations" in error.value.what


def test_a_cluster_that_forbids_pods_names_the_missing_right(server: ApiServer) -> None:
    server.faults = [404, 403]
    with pytest.raises(ClusterRefused, match="the cluster forbids creating pods in models"):
        pod(server).start()


def test_two_searches_of_the_same_at_once_do_not_share_a_pod(server: ApiServer) -> None:
    server.faults = [404, 409]
    with pytest.raises(Temporary, match="another search has just created pod bench-digits-2-"):
        pod(server).start()


def test_why_it_ended_is_what_the_cluster_knows(server: ApiServer) -> None:
    bench = pod(server)
    bench.start()
    assert bench.why_ended() == ""
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    server.objects["pods"][bench.name]["status"] = {"containerStatuses": [{"name": "triton", "state": killed}]}
    assert bench.why_ended() == "triton was killed at its memory limit, 2Gi (OOMKilled)"
    bench.end()
    assert bench.why_ended() == "the pod is gone"


def test_the_end_of_a_release_clears_what_its_searches_left(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod(server).start()
    pod(server, packages=(on_gpu(version=3),)).start()
    server.objects |= {"deployments": {}, "services": {}}
    monkeypatch.setattr(workloads, "KubernetesClient", server.api)
    ClusterStaging(site(tmp_path, place=CLUSTER), CLUSTER, "digits", 2).end()
    left = [body["metadata"]["labels"][BENCH] for body in server.objects["pods"].values()]
    assert left == ["digits-3"]
