"""A shadow on a cluster: what it writes for the operator, what it makes of the pods' metrics, and how it ends."""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shiplift.runtime.base.errors import PromotionConflict, ServerFailed, Temporary
from shiplift.runtime.measure.shadowing.on_cluster import UNCOMPARED, ClusterShadow
from shiplift.runtime.records.deployment import Deployment, Endpoint, ServerPods
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import ResourceKind
from shiplift.runtime.serving.kubernetes.objects.front import copying, routes
from shiplift.runtime.serving.operator.resources import SHADOW, mirror_of
from shiplift.runtime.spec.shadowing import Shadow
from tests.unit.examples import package

GATEWAY = GatewayRef(name="shiplift", namespace="models")
CLUSTER = Cluster(namespace="shiplift", serving_namespace="models", server_image="x", gateway=GATEWAY)
OLD, NEW = package(version=1), package(version=2)
DEPLOYMENT = Deployment(
    package=NEW, endpoint=Endpoint(http="", grpc=""), workload=ServerPods(name="digits-2-b", tuned_memory_mb=1)
)
WANTED = Shadow.model_validate({"for": "10m", "share": 0.25})


class Models:
    """A service whose version 1 serves, an operator that follows its annotation, and the pods of both revisions."""

    def __init__(self) -> None:
        self.now, self.follows, self.knows_shares = 100.0, True, True
        self.counts = {"digits-1-a": (0, 0), "digits-2-b": (0, 0)}
        status = {"revision": "digits-1-a", "version": 1, "observedGeneration": 1}
        spec = {"model": "digits", "revision": "digits-1-a"}
        meta = {"name": "digits", "namespace": "models", "generation": 1, "annotations": {}}
        self.service: dict[str, Any] = {"metadata": meta, "spec": spec, "status": status}
        self.beats: list[int] = []

    def get(self, kind: ResourceKind, _name: str) -> dict[str, Any] | None:
        if kind.name == "TritonService":
            return self.service
        route = routes("digits", CLUSTER, GATEWAY, {"digits-1-a": 100})[0]
        mirror = mirror_of(self.service) if self.follows else None
        if mirror is None:
            return route
        copied = json.loads(json.dumps(copying(route, mirror)))
        if not self.knows_shares:
            copied["spec"]["rules"][0]["filters"][0]["requestMirror"].pop("fraction")
        return cast("dict[str, Any]", copied)

    def merge(self, _kind: ResourceKind, _name: str, patch: dict[str, Any]) -> None:
        self.service["metadata"]["annotations"] |= patch["metadata"]["annotations"]
        if mirror := mirror_of(self.service):
            self.beats.append(mirror.beat)

    def find(self, _kind: ResourceKind, selector: str) -> list[dict[str, Any]]:
        revision = selector.partition("=")[2]
        return [{"metadata": {"name": f"{revision}-pod"}, "status": {"podIP": revision}}]

    def pages(self, addresses: Mapping[str, str]) -> Mapping[str, str]:
        return {pod: self.page(revision) for pod, revision in addresses.items()}

    def page(self, revision: str) -> str:
        answered, failed = self.counts[revision]
        version = revision.split("-")[1]
        labels = f'model="digits",version="{version}"'
        p99 = 2000 * int(version)
        return (
            f"nv_inference_request_success{{{labels}}} {answered}\n"
            f"nv_inference_request_failure{{{labels}}} {failed}\n"
            f'nv_inference_request_summary_us{{{labels},quantile="0.5"}} 1000\n'
            f'nv_inference_request_summary_us{{{labels},quantile="0.99"}} {p99}\n'
        )

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.counts = {"digits-1-a": self.more("digits-1-a", 80, 1), "digits-2-b": self.more("digits-2-b", 20, 2)}

    def more(self, revision: str, answered: int, failed: int) -> tuple[int, int]:
        before = self.counts[revision]
        return before[0] + answered, before[1] + failed

    def shadow(self) -> ClusterShadow:
        api = cast("KubernetesClient", self)
        return ClusterShadow(CLUSTER, api, pages=self.pages, clock=lambda: self.now, pause=self.pause)


def test_what_the_pods_counted_is_the_result_and_the_copying_ends() -> None:
    models = Models()
    with models.shadow().mirroring(DEPLOYMENT, OLD, WANTED) as mirror:
        for _ in range(30):
            seen = mirror.look()
        assert (seen.requests, seen.failed) == (29 * 22, 29 * 2)
        assert (seen.champion_requests, seen.champion_failed) == (29 * 81, 29)
        assert seen.uncompared == UNCOMPARED
        assert seen.p99_ratios == (2.0, 2.0, 2.0)  # one for each minute
        assert seen.challenger_latency is not None
        assert (seen.challenger_latency.p50_ms, seen.challenger_latency.p99_ms) == (1, 4)
        assert models.beats == sorted(set(models.beats))
        assert len(models.beats) >= 30
    assert models.service["metadata"]["annotations"] == {SHADOW: None}


def test_a_gateway_that_copies_all_or_none_is_not_used() -> None:
    models = Models()
    models.knows_shares = False
    with (
        pytest.raises(ServerFailed, match="copies all requests or none"),
        models.shadow().mirroring(DEPLOYMENT, OLD, WANTED),
    ):
        pass
    assert models.service["metadata"]["annotations"] == {SHADOW: None}


def test_an_operator_that_does_not_follow_is_waited_for_and_told_of() -> None:
    models = Models()
    models.follows = False
    with (
        pytest.raises(Temporary, match="has not written the routes"),
        models.shadow().mirroring(DEPLOYMENT, OLD, WANTED),
    ):
        pass


def test_another_version_that_serves_ends_it() -> None:
    models = Models()
    with models.shadow().mirroring(DEPLOYMENT, OLD, WANTED) as mirror:
        models.service["status"]["version"] = 3
        with pytest.raises(PromotionConflict, match="version 3 serves digits now, not version 1"):
            mirror.look()
