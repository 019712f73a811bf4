"""Production on a cluster as a client of the operator: what it writes, waits for, and takes back."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from shiplift.runtime.base.errors import (
    Aborted,
    CanaryFailed,
    GoldenMismatch,
    PromotionConflict,
    ServerFailed,
    ShipliftError,
    Temporary,
)
from shiplift.runtime.base.progress import listening
from shiplift.runtime.records.capacity import Capacity
from shiplift.runtime.records.capturing import Capturing
from shiplift.runtime.records.promotion import Abort, Beside
from shiplift.runtime.records.serving import Nodes
from shiplift.runtime.records.site import Cluster, GatewayRef
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.kubernetes import production
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import (
    DEPLOYMENT,
    GRPC_ROUTE,
    TRITON_REVISION,
    TRITON_SERVICE,
    ResourceKind,
)
from shiplift.runtime.serving.kubernetes.objects.names import package_name, revision_name
from shiplift.runtime.serving.kubernetes.production import ClusterProduction
from shiplift.runtime.serving.operator import declared
from shiplift.runtime.serving.operator.cluster import seeing
from shiplift.runtime.serving.operator.resources import Reason, RevisionSpec, revision_of
from shiplift.runtime.spec.serving_settings import Rollout
from tests.unit.examples import artifact, package, site

CLUSTER = Cluster(
    namespace="shiplift",
    serving_namespace="models",
    server_image="x",
    gateway=GatewayRef(name="shiplift", namespace="models"),
)
OLD, NEW = package(version=1, repository=artifact("a", kind="tree")), package(version=2, repository=artifact("b"))
Act = Callable[[dict[str, Any]], None]


class FakeCluster:
    """The objects of a namespace, and an operator that acts whenever a service's spec changes."""

    namespace = "models"

    def __init__(self, operator: Act | None) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.operator = operator
        self.wanted: list[str] = []

    def get(self, kind: ResourceKind, name: str) -> dict[str, Any] | None:
        return self.objects.get((kind.name, name))

    def find(self, kind: ResourceKind, selector: str = "") -> list[dict[str, Any]]:
        return [body for (each, _), body in self.objects.items() if each == kind.name]

    def each(self, kind: ResourceKind) -> Iterator[dict[str, Any]]:
        yield from self.find(kind)

    def serves(self, kind: ResourceKind) -> bool:
        return True

    def delete(self, kind: ResourceKind, name: str) -> bool:
        return self.objects.pop((kind.name, name), None) is not None

    def merge(self, kind: ResourceKind, name: str, patch: dict[str, Any]) -> dict[str, Any] | None:
        body = self.objects.get((kind.name, name))
        if body is None:
            return None
        asked = patch["metadata"].get("resourceVersion", "")
        assert asked in ("", body["metadata"].get("resourceVersion", ""))
        notes = {**body["metadata"].get("annotations", {}), **patch["metadata"]["annotations"]}
        body["metadata"]["annotations"] = {key: value for key, value in notes.items() if value}
        return self.apply({**body, "spec": {**body["spec"], **patch.get("spec", {})}})

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        key = (body["kind"], body["metadata"]["name"])
        before = self.objects.get(key, {"metadata": {"generation": 0}, "spec": None})
        generation = before["metadata"]["generation"] + (before["spec"] != body["spec"])
        self.objects[key] = {**before, **body, "metadata": {**body["metadata"], "generation": generation}}
        if body["kind"] == "TritonService" and before["spec"] != body["spec"]:
            self.wanted.append(body["spec"]["revision"])
            if self.operator:
                self.operator(self.objects[key])
        return self.objects[key]

    @property
    def service(self) -> dict[str, Any]:
        return self.objects["TritonService", "digits"]


def status(body: dict[str, Any], weights: dict[str, int], *, reason: Reason = Reason.SERVING, **more: Any) -> None:
    """Writes a status as the operator does: Ready, or Stalled for a reason of failure."""
    stalled = "False" if reason is Reason.SERVING else "True"
    ready = "True" if reason is Reason.SERVING else "False"
    main = max(weights, key=lambda name: weights[name], default="")
    body["status"] = {
        "observedGeneration": body["metadata"]["generation"],
        "revision": main,
        "version": int(main.split("-")[1]) if main else 0,
        "weights": [{"revision": name, "percent": percent} for name, percent in weights.items()],
        "conditions": [
            {"type": "Ready", "status": ready, "reason": reason},
            {"type": "Stalled", "status": stalled, "reason": reason, "message": "it broke. See its logs."},
        ],
        **more,
    }


def obedient(body: dict[str, Any]) -> None:
    status(body, {body["spec"]["revision"]: 100})


def refusing(reason: Reason) -> Act:
    """An operator that gives up on the new version, and leaves the traffic where it was."""

    def act(body: dict[str, Any]) -> None:
        if body["spec"]["revision"] != package_name(NEW):
            return obedient(body)
        served = {weight["revision"]: 100 for weight in body.get("status", {}).get("weights", [])}
        return status(body, served, reason=reason, failedRevision=package_name(NEW))

    return act


def place(cluster: FakeCluster, tmp_path: Path) -> ClusterProduction:
    return ClusterProduction(site(tmp_path, place=CLUSTER), CLUSTER, cast("KubernetesClient", cluster))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"_POLL_S": 0.01, "_SILENT_S": 0.05, "_RETIRE_S": 0.1, "_COUNTED_S": 0.05}.items():
        monkeypatch.setattr(production, name, seconds)


def test_a_promotion_is_a_revision_and_a_service_that_names_it(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    assert (served.serving("digits"), served.serves(OLD)) == (0, False)
    served.move(OLD, Rollout(replicas=2, canary_percent=(20,), hold_s=3))
    revision = cluster.objects["TritonRevision", package_name(OLD)]
    assert RevisionSpec.model_validate(revision["spec"]).parsed() == OLD
    assert cluster.service["spec"] == {
        "model": "digits",
        "revision": package_name(OLD),
        "replicas": 2,
        "rollout": {"canaryPercent": [20], "holdSeconds": 3},
    }
    assert (served.serving("digits"), served.serves(OLD), served.serves(NEW)) == (1, True, False)


def test_a_rerun_that_only_changes_what_is_captured_is_moved(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    served.move(OLD, Rollout())
    kept = OLD.model_copy(update={"capturing": Capturing(share=0.1, limit_bytes=10**9, retention_s=60)})
    assert (served.serves(OLD), served.serves(kept)) == (True, False)
    served.move(kept, Rollout())
    assert (served.serves(OLD), served.serves(kept)) == (False, True)


def test_the_revision_says_what_a_pod_was_measured_to_take(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    place(cluster, tmp_path).move(OLD, Rollout(), Capacity(peak_per_s=120, within_slo_per_s=100, p99_ms=50))
    measured = {"peakPerSecond": 120, "withinSloPerSecond": 100, "p99Milliseconds": 50}
    assert cluster.objects["TritonRevision", package_name(OLD)]["spec"]["capacity"] == measured


def test_the_packages_of_other_targets_are_groups_of_the_same_revision(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    slow = OLD.model_copy(update={"target": "slow", "nodes": Nodes(selector={"speed": "slow"})})
    beside = Beside(package=slow, capacity=Capacity(peak_per_s=60, within_slo_per_s=50, p99_ms=50))
    served.move(OLD, Rollout(), Capacity(peak_per_s=120, within_slo_per_s=100, p99_ms=50), (beside,))
    name = revision_name([OLD, slow])
    body = cluster.objects["TritonRevision", name]
    seen = seeing.revision_seen(body)
    assert seen.problem == ""
    (group,) = seen.others
    assert (group.name, group.package, group.artifacts_uri) == (f"{name}--slow", slow, seen.artifacts_uri)
    assert group.capacity == beside.capacity
    assert served.serves(OLD, (beside,))
    assert not served.serves(OLD)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"target": OLD.target}, "each target may have one group, but they are local-cpu, local-cpu"),
        ({"target": "slow", "version": 7}, "the package of target slow is of digits/7, not of digits/1"),
        ({"target": "slow", "signature": Signature(inputs=(), outputs=())}, "inputs or outputs of other names"),
        ({"target": "slow", "sequences": True}, "serves sequences, whose state is on one server"),
    ],
)
def test_a_revision_whose_groups_would_answer_differently_can_t_be_used(change: dict[str, Any], why: str) -> None:
    spec = revision_of(OLD, "s3://models").to_object()
    spec["otherGroups"] = [{"package": OLD.model_copy(update=change).model_dump(mode="json", exclude_none=True)}]
    seen = seeing.revision_seen({"metadata": {"name": "digits-1"}, "spec": spec})
    assert seen.package is None
    assert why in seen.problem


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (Reason.START_FAILED, ServerFailed),
        (Reason.WRONG_ANSWERS, GoldenMismatch),
        (Reason.CANARY_FAILED, CanaryFailed),
        (Reason.TRAFFIC_NOT_MOVED, Temporary),
        (Reason.INVALID_REVISION, ServerFailed),
    ],
)
def test_what_the_operator_gave_up_is_the_error_of_today_and_the_spec_names_what_served_before(
    reason: Reason, error: type[ShipliftError], tmp_path: Path
) -> None:
    cluster = FakeCluster(refusing(reason))
    served = place(cluster, tmp_path)
    served.move(OLD, Rollout(replicas=3))
    with pytest.raises(error, match=r"it broke. See its logs. The previous version has the traffic"):
        served.move(NEW, Rollout(replicas=1))
    assert cluster.wanted == [package_name(OLD), package_name(NEW), package_name(OLD)]
    assert cluster.service["spec"]["replicas"] == 3
    assert served.serves(OLD)


def test_a_first_version_that_fails_leaves_no_service(tmp_path: Path) -> None:
    cluster = FakeCluster(refusing(Reason.START_FAILED))
    with pytest.raises(ServerFailed):
        place(cluster, tmp_path).move(NEW, Rollout())
    assert ("TritonService", "digits") not in cluster.objects


def test_a_killed_promotion_that_is_run_again_and_fails_still_knows_what_served_before(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    served.move(OLD, Rollout())
    cluster.operator = None  # the promotion is killed before the operator has seen its spec
    declared.declare(
        served._api, "digits", package_name(NEW), revision_of(NEW, "x"), replicas=1, rollout=declared.AT_ONCE
    )
    with pytest.raises(Temporary, match="the operator has not looked at it for"):
        served.move(NEW, Rollout())
    assert cluster.service["spec"]["revision"] == package_name(OLD)


def test_without_an_operator_the_error_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(Temporary, match="Check that Deployment `operator` runs"):
        place(FakeCluster(None), tmp_path).move(NEW, Rollout())


def test_an_operator_that_stops_on_the_way_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(body: dict[str, Any]) -> None:
        status(body, {})
        body["status"]["conditions"] = [
            {"type": "Reconciling", "status": "True", "reason": "Starting", "message": "0 of 1 pods are ready"}
        ]

    monkeypatch.setattr(production, "_STILL_S", -179.9)
    cluster = FakeCluster(stuck)
    told: list[str] = []
    impatient = CLUSTER.model_copy(update={"ready_timeout_s": 180})
    served = ClusterProduction(site(tmp_path, place=impatient), impatient, cast("KubernetesClient", cluster))
    with (
        listening(lambda message, _: told.append(message)),
        pytest.raises(Temporary, match="has reported nothing new"),
    ):
        served.move(NEW, Rollout(hold_s=0))
    assert "0 of 1 pods are ready" in told


def test_a_change_of_the_service_from_outside_is_not_undone(tmp_path: Path) -> None:
    def meddled(body: dict[str, Any]) -> None:
        body["spec"] = {**body["spec"], "revision": "other"}

    cluster = FakeCluster(meddled)
    with pytest.raises(PromotionConflict, match=r"someone changed it: it names other"):
        place(cluster, tmp_path).move(NEW, Rollout())
    assert cluster.service["spec"]["revision"] == "other"


# --- aborts ---


def half_way(cluster: FakeCluster, served: ClusterProduction, hand: Callable[[], object]) -> None:
    """Serves the old version, with an operator that never moves traffic to the new one: there, `hand` acts."""
    served.move(OLD, Rollout())

    def slow(body: dict[str, Any]) -> None:
        if body["spec"]["revision"] == package_name(NEW):
            hand()
        else:
            obedient(body)

    cluster.operator = slow


def test_an_abort_sets_the_service_back_and_the_promotion_does_not_undo_that(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    half_way(cluster, served, lambda: served.abort("digits", Abort(by="ana", reason="too slow")))
    with pytest.raises(Aborted, match="aborted by ana: too slow"):
        served.move(NEW, Rollout(), requested_at=1.0)
    assert cluster.service["spec"]["revision"] == package_name(OLD)
    assert cluster.service["spec"]["rollout"] == {"canaryPercent": [], "holdSeconds": 0}
    assert served.abort("digits", Abort(by="bob")) == served.moving("digits")
    with pytest.raises(Aborted, match="aborted by ana"):
        served.move(NEW, Rollout(), requested_at=1.0)  # a pod that was lost is started again
    with pytest.raises(Aborted, match="aborted by ana"):
        served.commit("digits")
    assert served.serves(OLD)
    cluster.operator = obedient
    served.move(NEW, Rollout(), requested_at=2.0)  # another release
    assert served.serves(NEW)


def test_a_service_set_back_by_hand_means_an_abort(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)

    def by_hand() -> None:
        cluster.apply({**cluster.service, "spec": {**cluster.service["spec"], "revision": package_name(OLD)}})

    half_way(cluster, served, by_hand)
    for _ in range(2):
        with pytest.raises(Aborted, match="aborted by someone: TritonService digits was set back"):
            served.move(NEW, Rollout(), requested_at=1.0)
    assert served.serves(OLD)


def test_what_is_committed_or_concluded_is_not_aborted(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    assert served.abort("digits", Abort(by="ana")) is None
    served.move(NEW, Rollout(), requested_at=1.0)
    served.commit("digits")
    served.commit("digits")
    known = served.abort("digits", Abort(by="ana"))
    assert known is not None
    assert (known.committed, known.abort) == (True, None)
    served.settle("digits", 7)
    assert served.moving("digits") == known
    served.settle("digits", NEW.version)
    assert served.moving("digits") is None


def test_a_number_of_replicas_set_by_kubectl_scale_stays(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    served.move(OLD, Rollout())
    by = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    cluster.service["metadata"]["managedFields"] = by
    served.move(NEW, Rollout(replicas=4))
    assert "replicas" not in cluster.service["spec"]


def test_retiring_waits_for_what_the_operator_still_runs(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    served.move(NEW, Rollout())
    owner = [{"kind": "TritonService", "name": "digits"}]
    old = (DEPLOYMENT.name, package_name(OLD))
    cluster.objects[old] = {"metadata": {"name": package_name(OLD), "ownerReferences": owner}}
    cluster.objects[DEPLOYMENT.name, "twin"] = {"metadata": {"name": "twin"}}  # of another release
    told: list[str] = []

    def hear(message: str, _: float | None) -> None:
        told.append(message)
        cluster.objects.pop(old, None)

    with listening(hear):
        served.retire("digits")
    assert set(told) == {f"waiting for the last requests of {package_name(OLD)}"}


def route(**weights: int) -> dict[str, Any]:
    backends = [{"name": name.replace("_", "-"), "weight": weight} for name, weight in weights.items()]
    return {"kind": "GRPCRoute", "metadata": {"name": "digits"}, "spec": {"rules": [{"backendRefs": backends}]}}


def test_what_an_earlier_shiplift_promoted_counts_until_it_is_declared(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    cluster.objects[GRPC_ROUTE.name, "digits"] = route(digits_1_aaaaaaaa=100, digits_2_bbbbbbbb=0)
    served = place(cluster, tmp_path)
    assert (served.serving("digits"), served.serves(OLD)) == (1, False)
    assert served.declare(OLD, replicas=2)
    assert cluster.service["spec"]["rollout"] == {"canaryPercent": [], "holdSeconds": 0}
    assert served.serves(OLD)
    assert not served.declare(NEW, replicas=1)
    assert cluster.wanted == [package_name(OLD)]


def test_every_service_and_version_is_listed_from_the_status(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    place(cluster, tmp_path).move(OLD, Rollout())
    services = list(declared.everything(cast("KubernetesClient", cluster)))
    assert declared.versions(services) == {"digits": 1}
    assert services[0].revisions == {package_name(OLD)}
    assert {kind.name for kind in (TRITON_SERVICE, TRITON_REVISION)} == {"TritonService", "TritonRevision"}


def test_a_retired_model_leaves_neither_a_service_nor_a_revision(tmp_path: Path) -> None:
    cluster = FakeCluster(obedient)
    served = place(cluster, tmp_path)
    served.move(OLD, Rollout())
    served.move(NEW, Rollout())
    served.drop(NEW)  # it serves
    assert {name for kind, name in cluster.objects if kind == "TritonRevision"} == {
        package_name(OLD),
        package_name(NEW),
    }
    served.drop(OLD)
    assert [name for kind, name in cluster.objects if kind == "TritonRevision"] == [package_name(NEW)]
    assert served.traffic("digits").unknown
    cluster.service["status"]["clientRequestsPerMinute"] = 12.4
    assert served.traffic("digits").requests == 13
    for _ in range(2):
        served.withdraw("digits")
        served.drop(NEW)
        assert not cluster.objects
    assert not served.traffic("digits").sentence
