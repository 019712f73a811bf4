"""The operator's eyes and hands, against an API server that keeps objects in memory."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from shiplift.runtime.base.errors import ClusterRefused, Temporary
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.operator import measurements as m
from shiplift.runtime.serving.operator.cluster.acting import Actor
from shiplift.runtime.serving.operator.cluster.observing import Observer
from shiplift.runtime.serving.operator.deciding import Decision, next_action
from shiplift.runtime.serving.operator.evidence import Evidence, TrafficSample
from shiplift.runtime.serving.operator.observed import Observed
from shiplift.runtime.serving.operator.resources import (
    ConditionType,
    Reason,
    RevisionSpec,
    ServiceSpec,
    revision_object,
    service_object,
)
from shiplift.runtime.serving.operator.upkeep.retirement import leaving
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import package
from tests.unit.runtime.serving.operator.world import cluster, name_of

Object = dict[str, Any]


class Silent:
    """Measures nothing."""

    def measure(self, observed: Observed, wanted: m.Measurement, evidence: Evidence) -> Evidence:
        return evidence


class Right:
    """Whatever is asked is as it should be."""

    def measure(self, observed: Observed, wanted: m.Measurement, evidence: Evidence) -> Evidence:
        if isinstance(wanted, m.CheckAnswers):
            return m.with_answers(evidence, wanted.revision, "")
        if isinstance(wanted, m.AskFront):
            sample = TrafficSample(asked=wanted.requests, answered=wanted.requests)
            return m.with_share(evidence, wanted, {"gRPC": sample}, {wanted.target: 1}, observed.now)
        return evidence


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as server:
        put(
            server,
            "tritonservices",
            service_object("digits", "models", ServiceSpec(model="digits", revision=name_of(1))),
        )
        spec = RevisionSpec(artifacts_uri="s3://models", package=package(version=1).model_dump(mode="json"))
        put(server, "tritonrevisions", revision_object(name_of(1), "models", spec))
        gateway = {"metadata": {"name": "shiplift"}, "status": {"addresses": [{"value": "10.0.0.1"}]}}
        server.objects["gateways"]["shiplift"] = gateway
        yield server


def put(server: ApiServer, plural: str, body: Object) -> None:
    body["metadata"] |= {"uid": f"uid-{body['metadata']['name']}", "generation": 1}
    server.objects[plural][body["metadata"]["name"]] = body


def ready_pod(server: ApiServer, name: str, revision: str) -> None:
    labels = {"shiplift.dev/model": "digits", "shiplift.dev/package": revision}
    server.objects["pods"][name] = {
        "metadata": {"name": name, "labels": labels},
        "status": {"podIP": "10.1.0.7", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def look(server: ApiServer, evidence: Evidence, *, alone: bool = True) -> Observed:
    observer = Observer(server.api("models"), cluster())
    observed = observer.observed(observer.alone("digits") if alone else observer.everything(), "digits", evidence)
    assert observed is not None
    return observed


def turn(server: ApiServer, evidence: Evidence, measuring: Any = None) -> tuple[Decision, Evidence]:
    observed = look(server, evidence)
    decision = next_action(observed)
    return decision, Actor(server.api("models"), measuring or Silent()).act(observed, decision)


def test_a_service_begins_with_its_pods(server: ApiServer) -> None:
    decision, _ = turn(server, Evidence())
    assert set(server.objects["deployments"]) == {name_of(1)}
    assert set(server.objects["services"]) == {name_of(1)}
    owner = server.objects["deployments"][name_of(1)]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["uid"]) == ("TritonService", "uid-digits")
    status = server.objects["tritonservices"]["digits"]["status"]
    assert status["observedGeneration"] == 1
    assert not server.objects["grpcroutes"]
    assert decision.status is not None


def test_and_serves_once_they_are_ready_and_right(server: ApiServer) -> None:
    ready_pod(server, "pod-1", name_of(1))
    evidence = Evidence()
    for _ in range(6):
        _, evidence = turn(server, evidence, Right())
    assert set(server.objects["httproutes"]) == {"digits", "digits-path"}
    assert set(server.objects["endpointslices"]) == {"digits"}
    observed = look(server, evidence)
    assert observed.status.holds(ConditionType.READY)
    assert observed.status.version == 1
    decision = next_action(observed)
    assert (decision.apply, decision.delete, decision.status) == ((), (), None)
    assert next_action(look(server, evidence, alone=False)).apply == ()
    events = [event["message"] for event in server.objects["events"].values()]
    assert "Ready is True: digits-1 answers all requests" in events


def test_one_look_at_everything_shows_what_a_look_at_one_shows(server: ApiServer) -> None:
    turn(server, Evidence())
    first, second = look(server, Evidence()), look(server, Evidence(), alone=False)
    assert first.live == second.live
    assert first.revisions == second.revisions
    assert first.status == second.status


def test_an_autoscaler_that_is_installed_later_is_used_within_a_minute(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer, now = Observer(server.api("models"), cluster()), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert "ScaledObject" not in observer.everything().optional
    server.kinds["/apis/keda.sh/v1alpha1"] = [{"name": "scaledobjects", "kind": "ScaledObject", "namespaced": True}]
    now += 60
    assert "ScaledObject" in observer.everything().optional


def test_what_was_just_applied_is_seen_without_a_whole_look(server: ApiServer) -> None:
    ready_pod(server, "pod-1", name_of(1))
    evidence = Evidence()
    for _ in range(6):
        _, evidence = turn(server, evidence, Right())
    route = server.objects["httproutes"].pop("digits")
    observer = Observer(server.api("models"), cluster())
    missing = observer.observed(observer.alone("digits"), "digits", evidence)
    assert missing is not None
    applied = next_action(missing).apply
    assert [body["metadata"]["name"] for body in applied] == ["digits"]
    server.objects["httproutes"]["digits"] = route
    server.asked.clear()
    seen = observer.reread(missing, applied)
    assert len(server.asked) == 1
    assert seen.live == look(server, evidence).live


def test_an_object_that_is_refused_does_not_keep_the_others_from_being_written(server: ApiServer) -> None:
    server.forbidden.add(f"{name_of(1)}-none")
    observed = look(server, Evidence())
    decision = next_action(observed)
    bad = {**decision.apply[0], "metadata": {**decision.apply[0]["metadata"], "name": f"{name_of(1)}-none"}}
    broken = Decision(evidence=Evidence(), apply=(bad, *decision.apply), status=decision.status)
    with pytest.raises(ClusterRefused):
        Actor(server.api("models"), Silent()).act(observed, broken)
    assert set(server.objects["deployments"]) == {name_of(1)}
    assert "status" in server.objects["tritonservices"]["digits"]


def test_a_status_that_an_older_definition_refuses_stops_nothing_else(server: ApiServer) -> None:
    ready_pod(server, "pod-1", name_of(1))
    observed = look(server, Evidence())
    decision = next_action(observed)
    server.faults = [None] * len(decision.apply) + [422]
    evidence = Actor(server.api("models"), Right()).act(observed, decision)
    assert "status" not in server.objects["tritonservices"]["digits"]
    assert evidence.answers == {name_of(1): ""}
    assert any(event["reason"] == "StatusRefused" for event in server.objects["events"].values())


def test_what_was_added_to_a_selector_is_taken_away(server: ApiServer) -> None:
    _, evidence = turn(server, Evidence())
    server.objects["services"][name_of(1)]["spec"]["selector"]["x"] = "y"
    turn(server, evidence)
    assert "x" not in server.objects["services"][name_of(1)]["spec"]["selector"]


@pytest.mark.parametrize(("owner", "kept"), [("shiplift", [4]), ("kube-controller-manager", [])])
def test_a_number_of_pods_that_an_autoscaler_takes_over_is_kept(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, owner: str, kept: list[int]
) -> None:
    turn(server, Evidence())
    live = server.objects["deployments"][name_of(1)]
    live["spec"]["replicas"] = 4
    live["metadata"]["managedFields"] = [{"manager": owner, "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    del live["spec"]["selector"]  # something to put right
    server.objects["tritonservices"]["digits"]["spec"]["scaling"] = {"maxReplicas": 6}
    apply, handed_over = KubernetesClient.apply, []

    def spy(client: KubernetesClient, body: Object, **options: Any) -> Object:
        if options.get("manager") == "shiplift-handover":
            handed_over.append(body["spec"]["replicas"])
        return apply(client, body, **options)

    monkeypatch.setattr(KubernetesClient, "apply", spy)
    turn(server, Evidence())
    assert handed_over == kept
    assert "selector" in server.objects["deployments"][name_of(1)]["spec"]


def test_a_spec_that_is_invalid_says_so(server: ApiServer) -> None:
    server.objects["tritonservices"]["digits"]["spec"]["rollout"] = {"canaryPercent": ["many"]}
    turn(server, Evidence())
    stalled = look(server, Evidence()).status.condition(ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason == Reason.INVALID_SPEC
    assert "rollout.canaryPercent.0" in stalled.message


def test_a_field_of_a_newer_definition_stalls_nothing(server: ApiServer) -> None:
    spec = server.objects["tritonservices"]["digits"]["spec"]
    spec |= {"invented": {"least": 1}, "rollout": {"canaryPercent": [5], "invented": True}}
    observed = look(server, Evidence())
    assert observed.spec is not None
    assert observed.spec.rollout.canary_percent == (5,)


def test_a_service_must_be_named_after_its_model(server: ApiServer) -> None:
    server.objects["tritonservices"]["digits"]["spec"]["model"] = "letters"
    assert "must be named letters" in look(server, Evidence()).problem


def test_a_revision_that_can_t_be_read_says_why(server: ApiServer) -> None:
    del server.objects["tritonrevisions"][name_of(1)]["spec"]["package"]["server"]
    assert look(server, Evidence()).revisions[name_of(1)].problem == "server: Field required"


def test_an_invalid_status_counts_as_empty(server: ApiServer) -> None:
    server.objects["tritonservices"]["digits"]["status"] = {"weights": "all"}
    assert look(server, Evidence()).status.weights == ()


def test_a_failing_api_server_does_not_make_the_operator_forget(server: ApiServer) -> None:
    server.faults = [500] * 20
    with pytest.raises(Temporary):
        Observer(server.api("models"), cluster()).alone("digits")


def test_a_measurement_that_fails_leaves_the_evidence(server: ApiServer) -> None:
    class Broken:
        def measure(self, observed: Observed, wanted: m.Measurement, evidence: Evidence) -> Evidence:
            raise Temporary("the store is away", do="Wait.")

    ready_pod(server, "pod-1", name_of(1))
    decision, evidence = turn(server, Evidence(), Broken())
    assert decision.measure
    assert evidence.waiting == decision.evidence.waiting


def test_pods_on_cordoned_nodes_and_those_off_the_route_are_seen(server: ApiServer) -> None:
    for name in ("pod-1", "pod-2", "pod-3"):
        ready_pod(server, name, name_of(1))
    server.objects["pods"]["pod-1"]["spec"] = {"nodeName": "old"}
    server.objects["nodes"]["old"] = {"metadata": {"name": "old"}, "spec": {"unschedulable": True}}
    actor = Actor(server.api("models"), Silent())
    observed = look(server, Evidence())
    patch = leaving(observed, "pod-2")
    actor.act(observed, Decision(evidence=Evidence(), patch=(patch,)))
    observed = look(server, Evidence())
    assert [(pod.name, pod.cordoned) for pod in observed.pods[name_of(1)]] == [("pod-1", True), ("pod-3", False)]
    (retired,) = observed.retired
    assert retired.name == "pod-2"
    assert abs(retired.since - observed.now) < 5
    (owner,) = server.objects["pods"]["pod-2"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("TritonService", "uid-digits")
    actor.act(observed, Decision(evidence=Evidence(), delete=(("Pod", "pod-2"), ("TritonRevision", name_of(1)))))
    assert set(server.objects["pods"]) == {"pod-1", "pod-3"}
    assert not server.objects["tritonrevisions"]


def test_revisions_that_promotions_wrote_are_distinguished_from_others(server: ApiServer) -> None:
    spec = RevisionSpec(artifacts_uri="s3://models", package=package(version=2).model_dump(mode="json"))
    other = revision_object(name_of(2), "models", spec)
    del other["metadata"]["labels"]["shiplift.dev/model"]
    put(server, "tritonrevisions", other)
    server.objects["tritonservices"]["digits"]["spec"]["revision"] = name_of(2)
    for alone in (True, False):
        observed = look(server, Evidence(), alone=alone)
        assert {name: seen.history_of for name, seen in observed.revisions.items()} == {
            name_of(1): "digits",
            name_of(2): "",
        }
