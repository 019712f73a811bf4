"""The Kubernetes objects of a served model: golden files, and what holds for every server's pods."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.base.errors import MissingTool, ServerFailed, SpecInvalid
from shiplift.runtime.base.names import dns_name, serving_name
from shiplift.runtime.capture import ring
from shiplift.runtime.guest.pod import guard
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.records.model import PythonEnvironment, RecordedRequests
from shiplift.runtime.records.serving import ServerNeeds
from shiplift.runtime.records.shadowing import Mirror
from shiplift.runtime.records.site import Cluster, GatewayRef, IngressRef
from shiplift.runtime.records.verdict import Packages
from shiplift.runtime.serving.kubernetes.objects import deployment, front, names, shared
from shiplift.runtime.serving.kubernetes.serve import PORTS
from shiplift.runtime.serving.triton.config import server_needs
from shiplift.runtime.spec.measurement import LatencyTarget, Load, SearchSpace
from shiplift.runtime.spec.serving_settings import HostPolicy, Metrics, RateLimiter, Serving
from shiplift.runtime.spec.target import Target, Toleration, Wanted
from shiplift.steps.find_targets import find_targets
from shiplift.steps.tune import tune
from tests.unit.examples import Golden, package, signature, site

CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="example.org/shiplift-server:1")
H200 = Target(
    name="h200",
    accelerator="nvidia",
    server="nvidia",
    engine="tensorrt",
    compute_capability="9.0",
    image="example.org/tritonserver:26.07",
    node_selector={"nvidia.com/gpu.product": "NVIDIA-H200"},
    tolerations=(Toleration(key="gpu", operator="Exists", effect="NoSchedule"),),
)
PINNED = Serving(host_policy=HostPolicy(numa_node=0, cpu_cores="0-3"), rate_limiter=RateLimiter())


def on_gpu(**changes: Any) -> Package:
    fields = {"target": "h200", "server": "nvidia", "nodes": H200.nodes, "needs": server_needs(PINNED, "nvidia")}
    return package(**fields | changes)


def deployed(served: Package) -> Any:
    return deployment.deployment(
        CLUSTER, served, "s3://bucket/x", name=names.package_name(served), replicas=1, extra={}
    )


def pod_of(served: Package) -> Any:
    return deployed(served)["spec"]["template"]["spec"]


@pytest.mark.parametrize(("name", "served"), [("bundled", package()), ("nvidia", on_gpu())])
def test_a_package_is_served_by_the_golden_objects(golden: Golden, name: str, served: Package) -> None:
    service, budget = (
        deployment.service(served, name="x", extra={}),
        deployment.disruption_budget(served, name="x", replicas=1),
    )
    golden(f"serving.{name}.yaml", yaml.safe_dump_all([deployed(served), service, budget], sort_keys=False, width=120))


def members(*memory_mb: float) -> list[shared.SharedMember]:
    return [
        shared.SharedMember(
            group=f"{dns_name(model)}-1", package=package(model=model), artifacts_uri="s3://x", memory_mb=each
        )
        for model, each in zip(("digits", "team/Cats"), memory_mb, strict=True)
    ]


def test_a_shared_server_is_the_golden_objects(golden: Golden) -> None:
    owners = [{"apiVersion": "shiplift.dev/v1alpha1", "kind": "TritonService", "name": "digits", "uid": "u1"}]
    objects = shared.server_objects(CLUSTER, members(200, 300), replicas=1, owners=owners, monitored=True)
    objects.append(shared.shared_service(package(), group="digits-1", server=objects[0]["metadata"]["name"]))
    golden("shared.yaml", yaml.safe_dump_all(objects, sort_keys=False, width=120))


KEEPING = CLUSTER.model_copy(update={"capture_uri": "http://capture.shiplift.svc:8009"})
CAPTURED = Capturing(share=0.1, limit_bytes=10**9, retention_s=86400)


def test_what_clients_send_is_captured_by_a_container_with_a_secret_of_its_own(golden: Golden) -> None:
    served = package(capturing=CAPTURED)
    body = deployment.deployment(KEEPING, served, "s3://x", name="d-2", replicas=1, extra={}, serves=True)
    golden("serving.captured.yaml", yaml.safe_dump(body, sort_keys=False, width=120))
    pod = body["spec"]["template"]["spec"]
    fetch, capture = pod["initContainers"]
    (triton,) = pod["containers"]
    assert (capture["name"], capture["restartPolicy"]) == ("capture", "Always")
    assert "envFrom" not in triton
    assert {source["secretRef"]["name"] for source in capture["envFrom"]} == {names.CAPTURE_SENDER}
    assert names.CAPTURE_SENDER not in str(fetch)
    assert capture["volumeMounts"] == [{"name": "rings", "mountPath": ring.FOLDER}]
    assert capture["volumeMounts"][0] in triton["volumeMounts"]
    assert all("emptyDir" in volume for volume in pod["volumes"])


@pytest.mark.parametrize(
    ("cluster", "served", "serves"),
    [
        (KEEPING, package(capturing=CAPTURED), False),  # a load test's own pods
        (KEEPING, package(), True),
        (CLUSTER, package(capturing=CAPTURED), True),
        (KEEPING, on_gpu(capturing=CAPTURED), True),
    ],
)
def test_nothing_else_is_captured(cluster: Cluster, served: Package, serves: bool) -> None:
    body = deployment.deployment(cluster, served, "s3://x", name="d-2", replicas=1, extra={}, serves=serves)
    assert "capture" not in str(body["spec"]["template"])


def test_a_shared_server_captures_those_of_its_models_that_say_so() -> None:
    first, second = members(200, 300)
    kept = replace(second, package=package(model="team/Cats", capturing=CAPTURED))
    body = shared.server_objects(KEEPING, [first, kept], replicas=1, owners=[], monitored=False)[0]
    capture = body["spec"]["template"]["spec"]["initContainers"][-1]
    assert capture["args"] == [
        "--to",
        KEEPING.capture_uri,
        "--model",
        serving_name("team/Cats"),
        kept.package.repository.sha256,
        "0.1",
    ]


def test_a_shared_server_asks_for_the_memory_of_all_its_models_up_to_its_limit() -> None:
    for memory_mb, asked in (((10, 20), "256Mi"), ((200, 300), "500Mi"), ((2000, 2000), "2048Mi")):
        body, *_ = shared.server_objects(CLUSTER, members(*memory_mb), replicas=1, owners=[], monitored=False)
        (container,) = body["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["requests"]["memory"] == asked


def test_the_name_of_a_shared_server_is_that_of_its_packages() -> None:
    digests = {"a-1": "0" * 64, "b-1": "1" * 64}
    assert shared.server_name(digests) == shared.server_name(dict(reversed(digests.items())))
    assert shared.server_name(digests) != shared.server_name({**digests, "b-1": "2" * 64})


@pytest.mark.parametrize(("name", "policies"), [("gateway", False), ("envoy", True)])
def test_a_models_front_is_the_golden_objects(golden: Golden, name: str, policies: bool) -> None:
    cluster = CLUSTER.model_copy(update={"gateway": GatewayRef(name="shiplift", namespace="models")})
    weights = {"digits-1-aaaaaaaa": 90, "digits-2-bbbbbbbb": 10}
    objects = front.front_objects("digits", cluster, weights, "10.0.0.1", policies=policies, timeout_s=60.5)
    golden(f"front.{name}.yaml", yaml.safe_dump_all(objects, sort_keys=False, width=120))
    (grpc, *https) = [body for body in objects if body["kind"] in ("GRPCRoute", "HTTPRoute")]
    assert [front.weights_of(body) for body in (grpc, *https)] == [weights] * 3
    assert {body["spec"]["rules"][0]["timeouts"]["request"] for body in https} == {"61s"}


def test_a_share_of_the_requests_is_copied_by_every_route(golden: Golden) -> None:
    cluster = CLUSTER.model_copy(update={"gateway": GatewayRef(name="shiplift", namespace="models")})
    objects = front.front_objects("digits", cluster, {"digits-1-aaaaaaaa": 100}, "10.0.0.1", policies=False)
    mirror = Mirror(revision="digits-2-bbbbbbbb", share=0.2)
    copying = [front.copying(body, mirror) for body in objects]
    golden("front.shadow.yaml", yaml.safe_dump_all(copying, sort_keys=False, width=120))
    assert [front.weights_of(body) for body in copying[:3]] == [{"digits-1-aaaaaaaa": 100}] * 3


@pytest.mark.parametrize("tls_secret", ["", "models-tls"])
def test_an_ingress_leads_to_the_service_that_is_switched(golden: Golden, tls_secret: str) -> None:
    ingress = IngressRef(class_name="nginx", host="models.example.org", tls_secret=tls_secret)
    cluster = CLUSTER.model_copy(update={"ingress": ingress})
    weights = {"digits-1-aaaaaaaa": 0, "digits-2-bbbbbbbb": 100}
    objects = front.front_objects("digits", cluster, weights, "", policies=False)
    name = "ingress.tls" if tls_secret else "ingress"
    golden(f"front.{name}.yaml", yaml.safe_dump_all(objects, sort_keys=False, width=120))
    service, *both = objects
    assert front.weights_of(service) == weights
    backends = [body["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"] for body in both]
    assert [(each["name"], each["port"]["name"]) for each in backends] == [("digits", "http"), ("digits", "grpc")]


def test_without_a_gateway_the_front_is_a_service_that_selects_one_package() -> None:
    (body,) = front.front_objects("digits", CLUSTER, {"digits-1-a": 0, "digits-2-b": 100}, "", policies=True)
    assert (body["kind"], body["spec"]["selector"]) == ("Service", {"shiplift.dev/package": "digits-2-b"})
    assert front.weights_of(body) == {"digits-1-a": 0, "digits-2-b": 100}
    with pytest.raises(ValueError, match="too many values"):
        front.front_objects("digits", CLUSTER, {"digits-1-a": 10, "digits-2-b": 90}, "", policies=True)


def test_a_pipeline_s_members_are_loaded_before_its_graph() -> None:
    (triton,) = pod_of(on_gpu(companions=("part--5f0c",)))["containers"]
    loaded = [argument for argument in triton["args"] if argument.startswith("--load-model=")]
    assert loaded == ["--load-model=part--5f0c", "--load-model=digits"]


def test_a_gpu_target_is_served_by_its_own_image_where_its_target_says() -> None:
    pod = pod_of(on_gpu())
    (fetch,), (triton,) = pod["initContainers"], pod["containers"]
    assert (fetch["image"], triton["image"]) == (CLUSTER.server_image, "example.org/tritonserver:26.07")
    assert triton["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    own = [each for each in pod["tolerations"] if not each["key"].startswith("node.kubernetes.io/")]
    assert own == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert triton["args"][0] == "tritonserver"
    for flag in (
        "--load-model=digits",
        "--model-control-mode=explicit",
        "--rate-limit=execution_count",
        "--host-policy=numa_0_cores_0-3,cpu-cores=0-3",
        "--disable-auto-complete-config",
    ):
        assert flag in triton["args"]


def test_a_python_model_s_environment_is_unpacked_by_the_pod_that_serves_it_on_either_server() -> None:
    needed = PythonEnvironment(python="3.11", machine="x86_64", wheels=())
    strict = CLUSTER.model_copy(update={"allow_without": ("landlock",)})
    for served in (package(environment=needed), package(environment=needed, server="nvidia", nodes=H200.nodes)):
        body = deployment.deployment(strict, served, "s3://bucket/x", name="x", replicas=1, extra={})
        pod = body["spec"]["template"]["spec"]
        (fetch,), (triton,) = pod["initContainers"], pod["containers"]
        assert fetch["args"][-2:] == ["--environments", "/environments"]
        assert {"name": "environments", "emptyDir": {}} in pod["volumes"]
        for container in (fetch, triton):
            assert {"name": "environments", "mountPath": "/environments"} in container["volumeMounts"]
        told = triton["args"] if served.server == "bundled" else [each["value"] for each in triton["env"]]
        assert {"/environments", "landlock"} <= set(told)
    assert "environments" not in str(pod_of(package()))


def test_a_front_s_pod_on_nvidia_s_server_loads_its_graph_first_and_unpacks_what_it_runs_in() -> None:
    pod = pod_of(on_gpu(kind="text", tensors=signature()))
    (fetch,), (triton,) = pod["initContainers"], pod["containers"]
    loaded = [flag for flag in triton["args"] if flag.startswith("--load-model=")]
    assert loaded == ["--load-model=digits--tensors", "--load-model=digits"]
    assert {"/models/digits", "/models/digits--tensors"} <= set(triton["command"])  # a plan's stamp is beside it
    assert fetch["args"][-2:] == ["--environments", "/environments"]
    assert {"name": "SHIPLIFT_ENVIRONMENTS", "value": "/environments"} in triton["env"]
    here = pod_of(package(kind="text", tensors=signature()))
    assert "environments" not in str(here)


@pytest.mark.parametrize("served", [package(), on_gpu()])
def test_every_serving_pod_meets_the_restricted_standard_and_mounts_what_it_writes(served: Package) -> None:
    pod = pod_of(served)
    assert pod["securityContext"]["runAsNonRoot"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_same_package_gives_the_same_pod_so_applying_it_again_restarts_nothing() -> None:
    assert deployed(on_gpu()) == deployed(on_gpu())


def test_a_rate_limited_model_gets_a_server_that_limits() -> None:
    limited = package(needs=server_needs(PINNED, "bundled"))
    assert pod_of(limited)["containers"][0]["args"].count("--rate-limiter") == 1
    assert limited.needs == ServerNeeds(rate_limiter=True)
    assert "--rate-limiter" not in pod_of(package())["containers"][0]["args"]


def test_a_model_with_metrics_of_its_own_gets_a_server_that_has_them() -> None:
    measured = package(needs=server_needs(Serving(metrics=Metrics(interval_ms=500, quantiles=(0.9,))), "bundled"))
    arguments = pod_of(measured)["containers"][0]["args"]
    assert "--flag=--metrics-interval-ms=500" in arguments
    assert "--flag=--metrics-config=summary_quantiles=0.5:0.05,0.9:0.01,0.99:0.001" in arguments
    assert not [word for word in pod_of(package())["containers"][0]["args"] if word.startswith("--flag")]


def test_a_target_without_an_image_is_refused_at_the_start_and_at_the_latest_when_deployed(tmp_path: Path) -> None:
    bare = H200.model_copy(update={"image": ""})
    with pytest.raises(SpecInvalid, match="target h200 has `server: nvidia` but no `image`"):
        deployed(on_gpu(nodes=bare.nodes))

    with pytest.raises(SpecInvalid, match="targets: h200 has `server: nvidia` but no `image`"):
        find_targets(site(tmp_path, place=CLUSTER), Wanted(targets=(bare,)))
    assert find_targets(site(tmp_path), Wanted(targets=(bare,))).targets == (bare,)


def test_without_a_server_to_search_on_the_release_says_where_there_is_one(tmp_path: Path) -> None:
    packages = Packages(target="h200", packages=(on_gpu(), on_gpu(precision="fp16")), checks=())
    rest: Any = (SearchSpace(), LatencyTarget(), Load(), Serving(), RecordedRequests())
    with pytest.raises(MissingTool, match="target h200 needs NVIDIA's Triton image"):
        tune(site(tmp_path), H200, packages, *rest)


def test_what_the_modules_share_agrees() -> None:
    assert (PORTS.http, PORTS.grpc, PORTS.metrics) == (names.HTTP, names.GRPC, names.METRICS)
    assert ServerFailed.exit_code == guard.MISMATCH


def test_a_group_s_name_is_a_label_and_tells_its_revision() -> None:
    fast, slow = package(target="fast"), package(target="slow")
    assert names.revision_name([fast]) == names.package_name(fast)
    revision = names.revision_name([fast, slow])
    assert revision not in (names.revision_name([slow, fast]), names.package_name(fast))
    longest = names.package_name(package(model="x" * 40, version=12345))
    for target in ("slow", "t" * 63):
        name = names.group_name(longest, target)
        assert len(name) <= 63
        assert names.revision_of_group(name) == longest
    assert names.group_name(revision, "slow") == f"{revision}--slow"
