"""What the operator keeps true on a real cluster: it puts back what is edited by hand, and says what it sees.

The tests share a model, promoted once through the whole pipeline, so they run in order. Traffic runs through the
gateway wherever another replica or the old route can answer.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from shiplift.runtime.records.kinds.package import Package
from shiplift.runtime.serving.kubernetes.objects.names import PACKAGE
from tests.cluster.conftest import Lab, until
from tests.cluster.figures import keep
from tests.cluster.test_release import SPEC, promoted, traffic
from tests.old_records import package_of_0_1

MODEL = "kept"
OPERATOR = "app.kubernetes.io/name=operator"
_BACK_S = 10


@pytest.fixture(scope="module")
def model(lab: Lab) -> str:
    """A model with one promoted version."""
    promoted(lab, MODEL, lab.log_classifier(MODEL, spec=SPEC))
    return MODEL


def service(lab: Lab) -> Any:
    return lab.kube.get("tritonservice", lab.serving, MODEL)


def condition(lab: Lab, kind: str) -> Any:
    return lab.condition(MODEL, kind)


def wait_ready(lab: Lab, seconds: int = 60) -> None:
    lab.kube("-n", lab.serving, "wait", "--for=condition=Ready", f"tritonservice/{MODEL}", f"--timeout={seconds}s")


def revision(lab: Lab) -> str:
    return str(service(lab)["spec"]["revision"])


def weights(lab: Lab, kind: str, name: str = MODEL) -> dict[str, int]:
    (rule,) = lab.kube.get(kind, lab.serving, name)["spec"]["rules"]
    return {backend["name"]: backend.get("weight", 1) for backend in rule["backendRefs"]}


def back_within(seconds: float, look: Callable[[], Any]) -> float:
    """Waits until something is true; returns after how many seconds, and fails if they are too many."""
    started = time.monotonic()
    until(look, seconds=seconds + 20)
    took = time.monotonic() - started
    assert took <= seconds, f"it took {took:.1f} s"
    return took


@pytest.fixture(autouse=True)
def settled(lab: Lab, model: str) -> None:
    wait_ready(lab, 90)


def test_after_a_promotion_kubectl_waits_shows_and_finds_everything_in_the_status(lab: Lab, model: str) -> None:
    body, name = service(lab), revision(lab)
    status = body["status"]
    assert status["observedGeneration"] == body["metadata"]["generation"]
    assert (status["revision"], status["version"], status["weight"]) == (name, 1, 100)
    assert status["weights"] == [{"revision": name, "percent": 100}]
    assert status["readyReplicas"] == 1
    header, line = lab.kube("-n", lab.serving, "get", "ts", model).splitlines()
    assert header.split() == ["NAME", "READY", "AVAILABLE", "REVISION", "WEIGHT", "REPLICAS", "P99", "AGE"]
    assert line.split()[:6] == [model, "True", "True", name, "100", "1"]
    assert lab.kube.exists("tritonrevision", lab.serving, name)
    owners = lab.kube.get("deployment", lab.serving, name)["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["name"]) for owner in owners] == [("TritonService", model)]
    shown = lab.kube.shiplift("status", model, "--engine", "argo", "--namespace", lab.namespace, "--json").stdout
    (served,) = json.loads(shown)["services"]
    assert (served["state"], served["version"], served["weights"]) == ("Ready", 1, {name: 100})


def scale_to_nothing(lab: Lab) -> Callable[[], Any]:
    name = revision(lab)
    lab.kube("-n", lab.serving, "scale", "deployment", name, "--replicas=0")
    return lambda: lab.kube.get("deployment", lab.serving, name)["spec"]["replicas"] == 1


def delete_http_route(lab: Lab) -> Callable[[], Any]:
    lab.kube("-n", lab.serving, "delete", "httproute", MODEL)
    return lambda: lab.kube.exists("httproute", lab.serving, MODEL)


def edit_grpc_weights(lab: Lab) -> Callable[[], Any]:
    name = revision(lab)
    patch = [{"op": "replace", "path": "/spec/rules/0/backendRefs/0/weight", "value": 0}]
    lab.kube("-n", lab.serving, "patch", "grpcroute", MODEL, "--type=json", "-p", json.dumps(patch))
    return lambda: weights(lab, "grpcroute") == {name: 100}


def delete_service(lab: Lab) -> Callable[[], Any]:
    name = revision(lab)
    lab.kube("-n", lab.serving, "delete", "service", name)
    return lambda: lab.kube.exists("service", lab.serving, name)


def delete_deployment(lab: Lab) -> Callable[[], Any]:
    name = revision(lab)
    lab.kube("-n", lab.serving, "delete", "deployment", name)
    return lambda: lab.kube.exists("deployment", lab.serving, name)


def delete_budget(lab: Lab) -> Callable[[], Any]:
    name = revision(lab)
    lab.kube("-n", lab.serving, "delete", "pdb", name)
    return lambda: lab.kube.exists("pdb", lab.serving, name)


@pytest.mark.parametrize(
    "harm", [scale_to_nothing, delete_http_route, edit_grpc_weights, delete_service, delete_deployment, delete_budget]
)
def test_what_is_edited_or_deleted_by_hand_is_back_within_ten_seconds(
    lab: Lab, harm: Callable[[Lab], Callable[[], Any]]
) -> None:
    took = back_within(_BACK_S, harm(lab))
    wait_ready(lab, 90)
    with traffic(lab, MODEL) as client:
        until(lambda: client.sent > 20, seconds=60)
    keep(harm.__name__.replace("_", " "), back_s=took)
    assert client.versions == {"1"}


def acts(lab: Lab) -> dict[str, str]:
    """How often the operator has looked and acted since it began, by the metric's name."""
    (pod,) = running(lab, lab.namespace, OPERATOR)
    path = f"/api/v1/namespaces/{lab.namespace}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
    lines = [line for line in lab.kube("get", "--raw", path).splitlines() if line.startswith("shiplift_operator_")]
    return dict(line.rsplit(" ", 1) for line in lines if "acts_total" in line or "looks_total" in line)


def running(lab: Lab, namespace: str, selector: str) -> list[Any]:
    """The pods that are not about to end."""
    pods = lab.kube.get("pod", namespace, selector=selector)
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def test_an_idle_operator_writes_nothing(lab: Lab) -> None:
    def still_ending() -> bool:
        return any("deletionTimestamp" in pod["metadata"] for pod in lab.kube.get("pod", lab.serving))

    until(lambda: not still_ending(), seconds=90)  # what the tests before have deleted
    until(lambda: condition(lab, "Verified")["status"] == "True", seconds=60)
    before = acts(lab)
    time.sleep(15)  # more than one relist and two heartbeats
    changed = {name for name, count in acts(lab).items() if count != before.get(name)}
    assert changed == {"shiplift_operator_looks_total", 'shiplift_operator_acts_total{kind="measure"}'}


def test_a_revision_that_does_not_exist_stalls_and_the_champion_keeps_serving(lab: Lab) -> None:
    name = revision(lab)
    with traffic(lab, MODEL) as client:
        patch = json.dumps({"spec": {"revision": "kept-9-ffffffff"}})
        lab.kube("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", patch)
        until(lambda: condition(lab, "Stalled")["status"] == "True", seconds=30)
        assert condition(lab, "Stalled")["reason"] == "RevisionMissing"
        assert condition(lab, "Available")["status"] == "True"
        assert condition(lab, "Ready")["status"] == "False"
        assert service(lab)["status"]["revision"] == name
        patch = json.dumps({"spec": {"revision": name}})
        lab.kube("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", patch)
        wait_ready(lab)
    assert (client.failures, client.versions) == ([], {"1"})


def test_a_package_that_can_not_be_fetched_stalls_and_the_champion_keeps_serving(lab: Lab) -> None:
    name = revision(lab)
    body = lab.kube.get("tritonrevision", lab.serving, name)
    package = body["spec"]["package"]
    package = {**package, "version": 8, "repository": {**package["repository"], "sha256": "0" * 64}}
    bad = {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": {"name": "kept-8-00000000", "namespace": lab.serving},
        "spec": {**body["spec"], "package": package},
    }
    lab.kube.apply(bad)
    with traffic(lab, MODEL) as client:
        patch = json.dumps({"spec": {"revision": "kept-8-00000000"}})
        lab.kube("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", patch)
        until(lambda: condition(lab, "Stalled")["status"] == "True", seconds=150)
        assert condition(lab, "Stalled")["reason"] == "StartFailed"
        assert service(lab)["status"]["failedRevision"] == "kept-8-00000000"
        patch = json.dumps({"spec": {"revision": name}})
        lab.kube("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", patch)
        wait_ready(lab)
        until(lambda: not lab.kube.exists("deployment", lab.serving, "kept-8-00000000"), seconds=90)
    assert (client.failures, client.versions) == ([], {"1"})


@pytest.mark.slow
def test_an_operator_deleted_during_a_promotion_goes_on_where_it_was(lab: Lab) -> None:
    with traffic(lab, MODEL) as client:
        version = lab.log_classifier(MODEL, samples=1100, spec=SPEC)
        until(lambda: f"{MODEL}-{version}-" in revision(lab), seconds=420)
        lab.kube("-n", lab.namespace, "delete", "pod", "-l", OPERATOR, "--force", "--grace-period=0")
        promoted(lab, MODEL, version)
        until(lambda: str(version) in client.versions, seconds=30)
    assert client.failures == []
    assert service(lab)["status"]["version"] == version


def test_scaled_by_kubectl_there_are_that_many_pods(lab: Lab) -> None:
    lab.kube("-n", lab.serving, "scale", "tritonservice", MODEL, "--replicas=2")
    until(lambda: service(lab)["status"].get("readyReplicas") == 2, seconds=60)
    lab.kube("-n", lab.serving, "scale", "tritonservice", MODEL, "--replicas=1")
    until(lambda: lab.kube.get("deployment", lab.serving, revision(lab))["status"].get("replicas") == 1, seconds=60)


# --- upgrades --------------------------------------------------------------------------------------------------------


def upgrade(lab: Lab, section: str, **values: Any) -> None:
    """Installs Shiplift over itself with other values, and waits until the operator that came has measured."""
    all_values = yaml.safe_load((lab.folder / "values.yaml").read_text())
    file = lab.folder / "upgraded.yaml"
    file.write_text(yaml.safe_dump(all_values | {section: all_values.get(section, {}) | values}))
    (before,) = running(lab, lab.namespace, OPERATOR)
    lab.kube.shiplift("install", "--values", str(file))
    (after,) = running(lab, lab.namespace, OPERATOR)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    until(lambda: 'shiplift_operator_acts_total{kind="measure"}' in acts(lab), seconds=60)


def put_back_to_0_1(lab: Lab) -> None:
    """Writes the record of what serves as 0.1 did."""
    package = lab.kube.get("tritonrevision", lab.serving, revision(lab))["spec"]["package"]
    old = {name: value for name, value in package_of_0_1(Package.model_validate(package)).items() if value is not None}
    patch = json.dumps([{"op": "replace", "path": "/spec/package", "value": old}])
    lab.kube("-n", lab.serving, "patch", "tritonrevision", revision(lab), "--type=json", "-p", patch)


def serving_pods(lab: Lab) -> dict[str, int]:
    """The pods that serve the model, and how often a container of theirs was started again."""
    pods = running(lab, lab.serving, f"{PACKAGE}={revision(lab)}")
    return {
        pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
        for pod in pods
    }


@contextmanager
def nothing_fails(lab: Lab) -> Iterator[None]:
    """Sends requests meanwhile, and some more in the end: the same version answers them all."""
    version = str(service(lab)["status"]["version"])
    with traffic(lab, MODEL) as client:
        until(lambda: client.sent > 20, seconds=60)
        yield
        wait_ready(lab)
        sent = client.sent
        until(lambda: client.sent > sent + 20, seconds=60)
    assert (client.failures, client.versions) == ([], {version})


def test_what_0_1_promoted_answers_through_an_upgrade_and_its_pods_stay(lab: Lab) -> None:
    put_back_to_0_1(lab)
    pods = serving_pods(lab)
    with nothing_fails(lab):
        upgrade(lab, "policy", samples=int(time.time()))
    assert serving_pods(lab) == pods
    assert service(lab)["status"]["revision"] == revision(lab)


@pytest.mark.slow
def test_an_upgrade_that_changes_the_servers_pods_replaces_them_and_no_request_fails(lab: Lab) -> None:
    put_back_to_0_1(lab)
    pods = serving_pods(lab)
    with nothing_fails(lab):
        upgrade(lab, "serving", ready_timeout_s=150 + int(time.time()) % 100)
        until(lambda: not set(serving_pods(lab)) & set(pods), seconds=150)
    assert set(serving_pods(lab).values()) == {0}


def test_a_deletion_by_hand_is_undone_unless_an_annotation_retires_the_model(lab: Lab) -> None:
    name = "retiring"
    promoted(lab, name, lab.log_classifier(name, spec=SPEC))
    before = lab.kube.get("tritonservice", lab.serving, name)["metadata"]["uid"]
    lab.kube("-n", lab.serving, "delete", "tritonservice", name)

    def is_back() -> bool:
        names = lab.kube("-n", lab.serving, "get", "tritonservice", "-o", "name")
        there = f"tritonservice.shiplift.dev/{name}" in names
        return there and lab.kube.get("tritonservice", lab.serving, name)["metadata"]["uid"] != before

    until(is_back, seconds=180)
    events = lab.kube("-n", lab.serving, "get", "events", "-o", "json")
    assert f"kubectl annotate tritonservice {name} shiplift.dev/retire=REASON" in events

    lab.kube("-n", lab.serving, "annotate", "tritonservice", name, "shiplift.dev/retire=replaced")
    lab.kube("-n", lab.serving, "delete", "tritonservice", name)

    def is_retired() -> bool:
        tags = lab.registry.version(name, 1).tags
        told = "retired by someone with kubectl" in tags.get("shiplift.retired", "")
        return told and tags["shiplift.outcome"] == "retired"

    until(is_retired, seconds=240)
    until(lambda: lab.registry.alias(name, "champion") == 0)

    def is_gone() -> bool:
        return f"/{name}" not in lab.kube("-n", lab.serving, "get", "tritonservice,tritonrevision", "-o", "name")

    until(is_gone)
