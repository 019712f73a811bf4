"""The Kubernetes objects of a served model: golden files, and what holds for every server's pods."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.base.errors import MissingTool, ServerFailed, SpecInvalid
from shiplift.runtime.records.serving import Package, ServerNeeds
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.kubernetes import guard
from shiplift.runtime.serving.kubernetes.objects import names, serving
from shiplift.runtime.serving.kubernetes.serve import PORTS
from shiplift.runtime.serving.triton.config import server_needs
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving import HostPolicy, RateLimiter, Serving
from shiplift.runtime.spec.target import Target, Toleration, Wanted
from shiplift.steps.find_targets import find_targets
from shiplift.steps.tune import tune
from tests.unit.examples import Golden, package, site

CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/shiplift-server:1")
H200 = Target(
    name="h200", accelerator="nvidia", server="nvidia", engine="tensorrt", compute_capability="9.0",
    image="example.org/tritonserver:26.07", node_selector={"nvidia.com/gpu.product": "NVIDIA-H200"},
    tolerations=(Toleration(key="gpu", operator="Exists", effect="NoSchedule"),),
)  # fmt: skip
PINNED = Serving(host_policy=HostPolicy(numa_node=0, cpu_cores="0-3"), rate_limiter=RateLimiter())


def on_gpu(**changes: Any) -> Package:
    fields = {"target": "h200", "server": "nvidia", "nodes": H200.nodes, "needs": server_needs(PINNED, "nvidia")}
    return package(**fields | changes)


def deployed(served: Package) -> Any:
    return serving.deployment(CLUSTER, served, "s3://bucket/x", name=names.package_name(served), replicas=1, extra={})


def pod_of(served: Package) -> Any:
    return deployed(served)["spec"]["template"]["spec"]


@pytest.mark.parametrize(("name", "served"), [("bundled", package()), ("nvidia", on_gpu())])
def test_a_package_is_served_by_the_golden_objects(golden: Golden, name: str, served: Package) -> None:
    service, budget = serving.service(served, name="x", extra={}), serving.disruption_budget(served, name="x")
    golden(f"serving.{name}.yaml", yaml.safe_dump_all([deployed(served), service, budget], sort_keys=False, width=120))


def test_a_gpu_target_is_served_by_its_own_image_where_its_target_says() -> None:
    pod = pod_of(on_gpu())
    (fetch,), (triton,) = pod["initContainers"], pod["containers"]
    assert (fetch["image"], triton["image"]) == (CLUSTER.server_image, "example.org/tritonserver:26.07")
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert triton["args"][0] == "tritonserver"
    for flag in ("--load-model=digits", "--model-control-mode=explicit", "--rate-limit=execution_count",
                 "--host-policy=numa_0_cores_0-3,cpu-cores=0-3", "--disable-auto-complete-config"):  # fmt: skip
        assert flag in triton["args"]


@pytest.mark.parametrize("served", [package(), on_gpu()])
def test_every_serving_pod_meets_the_restricted_standard_and_mounts_what_it_writes(served: Package) -> None:
    pod = pod_of(served)
    assert pod["securityContext"]["runAsNonRoot"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_same_package_gives_the_same_pod_so_applying_it_again_restarts_nothing() -> None:
    assert deployed(on_gpu()) == deployed(on_gpu())


def test_a_rate_limited_model_gets_a_server_that_limits() -> None:
    limited = package(needs=server_needs(PINNED, "bundled"))
    assert pod_of(limited)["containers"][0]["args"][-1] == "--rate-limiter"
    assert limited.needs == ServerNeeds(rate_limiter=True)
    assert "--rate-limiter" not in pod_of(package())["containers"][0]["args"]


def test_a_target_without_an_image_is_refused_at_the_start_and_at_the_latest_when_deployed(tmp_path: Path) -> None:
    bare = H200.model_copy(update={"image": ""})
    with pytest.raises(SpecInvalid, match="target h200 has `server: nvidia` but no `image`"):
        deployed(on_gpu(nodes=bare.nodes))

    with pytest.raises(SpecInvalid, match="targets: h200 has `server: nvidia` but no `image`"):
        find_targets(site(tmp_path, place=CLUSTER), Wanted(targets=(bare,)))
    assert find_targets(site(tmp_path), Wanted(targets=(bare,))).targets == (bare,)


def test_without_a_server_to_search_on_the_release_says_where_there_is_one(tmp_path: Path) -> None:
    packages = Packages(target="h200", packages=(on_gpu(), on_gpu(precision="fp16")), checks=())
    rest: Any = (SearchSpace(), LatencyTarget(), Load(), Serving())
    with pytest.raises(MissingTool, match="target h200 needs NVIDIA's Triton image"):
        tune(site(tmp_path), H200, packages, *rest)


def test_what_the_modules_share_agrees() -> None:
    assert (PORTS.http, PORTS.grpc, PORTS.metrics) == (names.HTTP, names.GRPC, names.METRICS)
    assert ServerFailed.exit_code == guard.MISMATCH
