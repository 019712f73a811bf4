"""The Argo engine with the real client against a fake API server."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, get_args

import pytest
import yaml

import shiplift
from shiplift.pipelines.choices import EngineName
from shiplift.pipelines.engines.answers import Catalogue, ClusterStatus
from shiplift.pipelines.engines.argo.engine import ArgoEngine
from shiplift.pipelines.engines.argo.following import events, logs
from shiplift.pipelines.engines.table import ENGINES
from shiplift.runtime.base.errors import Cancelled, ClusterRefused, NotFound, SpecInvalid, Temporary
from shiplift.runtime.records.deployment import Endpoint
from shiplift.runtime.records.failure import Failure
from shiplift.runtime.records.promotion import Promotion
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.discovery import CONFIG_MAP_NAME, PublishedModel, inside_of
from shiplift.runtime.serving.kubernetes import transport
from shiplift.runtime.spec.pipeline import parse
from shiplift.runtime.spec.target import Target
from shiplift.runtime.store.registry.terms import TAG, VersionInfo
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import package, signature, site
from tests.unit.pipelines_of_models import STATIC

NODE = {"type": "Pod", "id": "n1", "templateName": "admit", "startedAt": "2026-01-01T00:00:00Z"}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as server:
        yield server


@pytest.fixture
def engine(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArgoEngine:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    for module in (events, logs):
        monkeypatch.setattr(module, "_POLL_S", 0.05)
    monkeypatch.setattr(transport, "_PAUSE_S", 0.01)
    return ArgoEngine("shiplift", tmp_path)


def installed(server: ApiServer, home: Path) -> None:
    """Installs the WorkflowTemplate that names the site."""
    place = Cluster(namespace="shiplift", serving_namespace="shiplift-serving", server_image="x")
    there = site(home, registry_uri="http://mlflow.shiplift:5000").model_copy(update={"place": place})
    parameters = [{"name": "request"}, {"name": "site", "value": there.model_dump_json()}]
    server.objects["workflowtemplates"]["release"] = {
        "metadata": {"name": "release"},
        "spec": {"arguments": {"parameters": parameters}},
    }


def workflow(
    server: ApiServer, name: str, version: int = 1, *, created: str = "2026-01-01T00:00:00Z", **status: Any
) -> None:
    """A release's Workflow, under way unless its status says otherwise."""
    request = Request(model="digits", version=version).model_dump_json()
    parameters = [{"name": "request", "value": request}, {"name": "trigger", "value": "{}"}]
    server.workflows[name] = {
        "metadata": {"name": name, "creationTimestamp": created, "labels": {"shiplift.dev/model": "digits"}},
        "spec": {"workflowTemplateRef": {"name": "release"}, "arguments": {"parameters": parameters}},
        "status": {"phase": "Running", "nodes": {}} | status,
    }


def report(name: str, version: int = 1) -> ReleaseReport:
    return ReleaseReport(
        model="digits",
        version=version,
        verdict=Outcome.FAIL,
        alias="",
        endpoint=None,
        stages=(),
        checks=(),
        release=name,
        reason="too slow",
        exit_code=20,
        seconds=0,
        since_request_seconds=0,
        overhead_seconds=0,
    )


def reported(name: str) -> dict[str, Any]:
    """The status of a Workflow with a release report."""
    outputs = {"parameters": [{"name": "release_report", "value": report(name).model_dump_json()}]}
    return {"phase": "Failed", "nodes": {"n9": {"finishedAt": "2026-01-01T00:09:00Z", "outputs": outputs}}}


def pod(server: ApiServer, name: str, *lines: str, labels: dict[str, str], started: str = "1", **more: Any) -> None:
    state = more.pop("state", {"running": {}})
    server.objects["pods"][name] = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "wait"}, {"name": "main", "args": more.pop("args", [])}]},
        "status": {"startTime": started, "containerStatuses": [{"name": "main", "state": state, "restartCount": 0}]},
    }
    server.logs[name] = list(lines)


def stage(server: ApiServer, workflow: str, name: str, *lines: str, **more: Any) -> None:
    """A stage's pod."""
    labels = {"workflows.argoproj.io/workflow": workflow, "shiplift.dev/stages": name}
    pod(server, f"{workflow}-{name}-{more.get('started', '')}", *lines, labels=labels, **more)


def test_every_engine_that_can_be_named_is_in_the_table() -> None:
    assert set(ENGINES) == set(get_args(EngineName))


# --- releases ---


def test_a_cluster_without_shiplift_says_so(engine: ArgoEngine) -> None:
    with pytest.raises(ClusterRefused, match="is not installed in namespace 'shiplift'"):
        _ = engine.site


def test_the_releases_of_a_cluster_are_listed_newest_first(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "release-digits-1", 1, **reported("release-digits-1"))
    workflow(server, "release-digits-2", 2, created="2026-01-02T00:00:00Z")
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    assert [(release.name, release.phase, release.outcome, release.reason) for release in status.releases] == [
        ("release-digits-2", "Running", "", ""),
        ("release-digits-1", "Failed", "refused", "too slow"),
    ]


def test_a_cancelled_release_is_not_called_inconclusive(engine: ArgoEngine, server: ApiServer) -> None:
    cancelled = report("done").model_copy(
        update={"verdict": Outcome.INCONCLUSIVE, "exit_code": 130, "failure": Failure.of(Cancelled("stopped", do="x"))}
    )
    outputs = {"parameters": [{"name": "release_report", "value": cancelled.model_dump_json()}]}
    workflow(server, "done", phase="Failed", nodes={"n9": {"outputs": outputs}})
    workflow(server, "terminated", phase="Failed")
    workflow(server, "stopping")
    for name in ("terminated", "stopping"):
        server.workflows[name]["spec"]["shutdown"] = "Terminate"
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    shown = {release.name: (release.outcome, release.reason) for release in status.releases}
    assert shown["terminated"] == ("cancelled", "")
    assert shown["done"] == ("cancelled", "too slow")
    assert shown["stopping"] == ("", "it is being cancelled")
    assert (cancelled.heading, cancelled.message) == ("CANCELLED", "cancelled: too slow")


def test_a_registry_that_does_not_answer_leaves_a_note(engine: ArgoEngine, server: ApiServer, tmp_path: Path) -> None:
    installed(server, tmp_path)
    workflow(server, "release-digits-1")
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    assert [release.name for release in status.releases] == ["release-digits-1"]
    assert status.note.startswith("releases whose Workflows were removed are not listed: asking service mlflow failed")


NO_CPU = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."


def test_a_pod_that_fits_no_node_is_reported_at_once(engine: ArgoEngine, server: ApiServer) -> None:
    pending = NODE | {"phase": "Pending", "message": "PodInitializing"}
    workflow(server, "r", nodes={"n1": pending})
    events = engine.events("r")
    assert [event and event.kind for event in (next(events), next(events))] == ["started", None]
    server.workflows["r"]["status"]["nodes"]["n1"] = pending | {"message": NO_CPU}
    waiting = next(events)
    assert waiting is not None
    assert (waiting.stage, waiting.kind, waiting.message) == ("admit", "progress", f"Pending: {NO_CPU}")
    assert next(events) is None
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    assert status.releases[0].reason == f"Pending: {NO_CPU}"


def test_a_release_is_under_way_until_its_workflow_has_ended(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "r")
    assert engine.under_way("r")
    server.end("r")
    assert not engine.under_way("r")
    assert not engine.under_way("gone")


def test_events_are_reported_once_and_the_result_is_the_last_stage_s(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "r", nodes={"n1": NODE | {"phase": "Running"}})
    events = engine.events("r")
    first = next(events)
    assert first is not None
    assert (first.stage, first.kind) == ("admit", "started")
    assert next(events) is None
    workflow(server, "r", **reported("r"))
    server.workflows["r"]["status"]["nodes"]["n1"] = NODE | {"phase": "Succeeded", "finishedAt": NODE["startedAt"]}
    assert [(event.stage, event.outcome) for event in events if event] == [("admit", "ok")]
    assert engine.result("r") == report("r")
    workflow(server, "odd", phase="Error")
    with pytest.raises(NotFound, match="left no report"):
        engine.result("odd")


def test_cancelling_waits_for_the_end_and_names_what_it_stopped(
    engine: ArgoEngine, server: ApiServer, tmp_path: Path
) -> None:
    installed(server, tmp_path)
    workflow(server, "r", 3)
    assert engine.cancel("digits", 4) == ""

    def controller() -> None:
        while server.workflows["r"]["spec"].get("shutdown") != "Stop":
            time.sleep(0.01)
        server.end("r", "Failed")

    thread = Thread(target=controller, daemon=True)
    thread.start()
    assert engine.cancel("digits", 3) == "r"
    thread.join(timeout=120)


def test_a_wrong_spec_is_refused_before_the_cluster_is_asked(engine: ArgoEngine, server: ApiServer) -> None:
    with pytest.raises(SpecInvalid):
        engine.order("digits/1", "slo: 3", again=False, allow_older=False)
    assert server.asked == []


# --- the registry, through the API server ---


def test_a_registry_that_is_not_there_or_not_up_is_no_missing_version(
    engine: ArgoEngine, server: ApiServer, tmp_path: Path
) -> None:
    installed(server, tmp_path)
    with pytest.raises(ClusterRefused, match='asking service mlflow failed: services "mlflow:5000" not found'):
        engine.report("digits", 1)
    server.faults += [503] * 4  # the client asks again three times
    with pytest.raises(Temporary, match="asking service mlflow failed with status 503"):
        engine.report("digits", 1)
    server.faults.append(403)
    with pytest.raises(ClusterRefused, match="the cluster forbids asking service mlflow"):
        engine.report("digits", 1)
    server.faults += [0] * 4
    with pytest.raises(Temporary, match="the cluster does not answer"):
        engine.report("digits", 1)


class Kept:
    """A registry with one promoted version of each model."""

    def aliases(self, name: str) -> dict[str, int]:
        return {"champion": 2}

    def version(self, name: str, version: int) -> VersionInfo:
        tags = {f"{TAG}outcome": "promoted"}
        return VersionInfo(name=name, version=version, source="", run_id=name, created_at=0, tags=tags)

    def read_text(self, run_id: str, path: str) -> str:
        endpoint = Endpoint(http="http://127.0.0.1:1", grpc="127.0.0.1:2")
        kept = Promotion(model=run_id, version=2, alias="champion", endpoint=endpoint, package=package(model=run_id))
        return json.dumps({"record": kept.model_dump_json(), "signature": "of a key that is not here"})


def test_members_of_a_pipeline_are_found_without_the_key_that_verifies_them(engine: ArgoEngine) -> None:
    vars(engine)["registry"] = Kept()
    spec = parse(STATIC).spec
    encode = spec.members["encode"]
    found = engine.members(spec.model_copy(update={"members": {"encode": encode}}))
    assert found == {"encode": package(model="encoder")}
    assert not engine.verified


def test_a_model_that_nothing_serves_is_not_asked(engine: ArgoEngine, server: ApiServer, tmp_path: Path) -> None:
    installed(server, tmp_path)
    with pytest.raises(NotFound, match="production does not serve 'digits'"):
        engine.infer("digits", tmp_path / "x.npz")


def published(server: ApiServer, **changes: Any) -> None:
    """What the operator says of a model."""
    entry = PublishedModel(
        model="digits",
        revision="digits-2-bbbbbbbb",
        version=2,
        signature=signature(),
        inside=inside_of("digits", "shiplift-serving"),
        **changes,
    )
    data = {"digits": entry.model_dump_json()}
    server.objects["configmaps"][CONFIG_MAP_NAME] = {"metadata": {"name": CONFIG_MAP_NAME}, "data": data}


def test_a_model_is_discovered_from_inside_the_cluster_and_from_outside(
    engine: ArgoEngine, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(server, tmp_path)
    with pytest.raises(NotFound, match="production does not serve 'digits'"):
        shiplift.discover("digits", engine="argo", home=tmp_path)
    published(server)
    with pytest.raises(NotFound, match="'digits' has no address outside the cluster"):
        engine.discover("digits")
    outside = Endpoint(http="http://10.0.0.1:8000", grpc="10.0.0.1:8001")
    published(server, outside=outside, host="digits.shiplift-serving")
    served = shiplift.discover("digits", engine="argo", home=tmp_path)
    assert (served.grpc, served.host, served.version) == (outside.grpc, "digits.shiplift-serving", 2)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert engine.discover("digits").grpc == "digits.shiplift-serving:8001"


# --- logs ---


def test_the_lines_of_a_shared_pod_are_those_of_its_stages(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "r", 3)
    written = ["argo began", "admit: started", "admit: ok after 1.00 s", "export: started", "a warning", "deploy: odd"]
    stage(server, "r", "admit.export", *written)
    assert list(engine.logs("digits/3", lines=50, follow=False)) == [
        "admit            argo began",
        "admit            started",
        "admit            ok after 1.00 s",
        "export           started",
        "export           a warning",
        "export           deploy: odd",
    ]


GROUP = {"type": "Pod", "id": "g1", "templateName": "prepare", "phase": "Running", "startedAt": "2026-01-01T00:00:00Z"}


def grouped(server: ApiServer, *lines: str) -> None:
    """A Workflow whose first pod has written these lines."""
    workflow(server, "r", nodes={"g1": GROUP})
    stage(server, "r", "admit.find_targets.export", *lines)
    (written,) = server.objects["pods"].values()
    written["metadata"]["annotations"] = {"workflows.argoproj.io/node-id": "g1"}


def test_the_stages_of_a_running_pod_are_reported_from_its_log(engine: ArgoEngine, server: ApiServer) -> None:
    grouped(server, "admit: started", "admit: ok after 1.50 s (cached)", "export: started")
    seen: list[tuple[str, str]] = []
    for event in engine.events("r"):
        seen += [(event.stage, event.kind)] if event else []
        if ("export", "started") in seen:
            break
    assert seen[-2:] == [("admit", "finished"), ("export", "started")]
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    assert status.releases[0].reason == "under way: export"


def test_without_a_log_a_running_pod_is_at_its_first_stage(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "r", nodes={"g1": GROUP})
    first = next(engine.events("r"))
    assert first is not None
    assert (first.stage, first.kind) == ("admit", "started")
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    assert status.releases[0].reason == "under way: admit"


def test_the_log_of_a_release_is_that_of_its_stages_in_their_order(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "old", 3)
    workflow(server, "new", 3, created="2026-01-02T00:00:00Z")
    stage(server, "old", "admit", "of another")
    target = ["tune", "--target", json.dumps({"name": "gpu"})]
    stage(server, "new", "tune", "trial 1", "trial 2", started="2", args=target)
    stage(server, "new", "admit", "scanned", started="1", state={"terminated": {}})
    stage(server, "new", "deploy", "not yet", started="3", state={"waiting": {}})
    expected = ["admit            scanned", "tune/gpu         trial 1", "tune/gpu         trial 2"]
    assert list(engine.logs("digits/3", lines=50, follow=False)) == expected
    assert list(engine.logs("digits", lines=2, follow=False)) == expected[1:]
    assert list(engine.logs("new", lines=50, follow=False)) == expected


def test_a_followed_release_ends_with_its_last_stage(engine: ArgoEngine, server: ApiServer) -> None:
    workflow(server, "r")
    stage(server, "r", "admit", "one")
    lines = engine.logs("digits/1", lines=5, follow=True)
    assert next(lines) == "admit            one"
    admit: Queue[str | None] = server.more["r-admit-"]
    admit.put("two")
    assert next(lines) == "admit            two"
    stage(server, "r", "export", "three", started="2")
    assert next(lines) == "export           three"
    server.end("r")
    admit.put(None)
    server.more["r-export-2"].put("last words")
    server.more["r-export-2"].put(None)
    assert list(lines) == ["export           last words"]


def test_the_parts_of_a_cluster_have_logs_with_their_pods_names(engine: ArgoEngine, server: ApiServer) -> None:
    for name in ("receiver-a", "receiver-b"):
        pod(server, name, f"hello from {name}", labels={"app.kubernetes.io/name": "receiver"}, started=name)
    pod(server, "reconciler-a", "swept", labels={"app.kubernetes.io/name": "reconciler"})
    assert list(engine.logs("receiver", lines=5, follow=False)) == [
        "receiver-a       hello from receiver-a",
        "receiver-b       hello from receiver-b",
    ]
    assert list(engine.logs("", lines=5, follow=False)) == ["reconciler-a     swept"]


def test_for_a_missing_log_the_error_lists_the_logs_there_are(engine: ArgoEngine, server: ApiServer) -> None:
    with pytest.raises(NotFound, match="Logs are: reconciler, receiver, mlflow, capture, or MODEL/VERSION"):
        list(engine.logs("digits/9", lines=5, follow=False))
    workflow(server, "r")
    with pytest.raises(NotFound, match=r"no pod of r has a log.*keep.pods_s"):
        list(engine.logs("digits/1", lines=5, follow=False))


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_that_may_not_be_read_is_an_error(engine: ArgoEngine, server: ApiServer, follow: bool) -> None:
    workflow(server, "r")
    stage(server, "r", "admit", "one")
    server.forbidden.add("r-admit-/log")
    with pytest.raises(ClusterRefused, match="the cluster forbids reading the log of r-admit-"):
        list(engine.logs("r", lines=5, follow=follow))


# --- targets ---


def test_the_targets_of_a_cluster_are_those_installed_and_the_default(engine: ArgoEngine, server: ApiServer) -> None:
    assert [entry.target for entry in engine.targets().entries] == [Target()]
    listed = {"targets": [{"name": "gpu", "accelerator": "nvidia", "server": "nvidia"}]}
    server.objects["configmaps"]["shiplift-targets"] = {"data": {"targets.yaml": yaml.safe_dump(listed)}}
    catalogue: Catalogue = engine.targets()
    assert [(entry.target.name, entry.unfit) for entry in catalogue.entries] == [("local-cpu", None), ("gpu", None)]
    assert (catalogue.file, catalogue.default_place) == ("ConfigMap shiplift/shiplift-targets", "any node")


def test_detected_targets_are_written_here(engine: ArgoEngine, server: ApiServer, tmp_path: Path) -> None:
    labels = {"kubernetes.io/arch": "amd64"}
    server.objects["nodes"]["a"] = {"metadata": {"name": "a", "labels": labels}}
    catalogue = engine.detect("small")
    assert [entry.target.name for entry in catalogue.entries] == ["small"]
    assert catalogue.file == str(tmp_path / "targets.yaml")
    assert "small" in (tmp_path / "targets.yaml").read_text()


# --- what serves ---


def service(server: ApiServer, model: str, *conditions: dict[str, Any], generation: int = 1, **status: Any) -> None:
    """A model's TritonService, as the operator left it."""
    server.kinds["/apis/shiplift.dev/v1alpha1"] = [
        {"name": "tritonservices", "kind": "TritonService", "namespaced": True}
    ]
    server.objects["tritonservices"][model] = {
        "metadata": {"name": model, "generation": generation},
        "spec": {"model": model, "revision": f"{model}-2-bbbbbbbb", "replicas": 2},
        "status": {"observedGeneration": 1, "conditions": list(conditions)} | status,
    }


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "observedGeneration": 1}


def test_status_says_what_serves_as_the_operator_saw_it(engine: ArgoEngine, server: ApiServer, tmp_path: Path) -> None:
    installed(server, tmp_path)
    weights = [{"revision": "digits-1-aaaaaaaa", "percent": 90}, {"revision": "digits-2-bbbbbbbb", "percent": 10}]
    service(
        server,
        "digits",
        condition("Ready", "False", "CanaryFailed"),
        condition("Stalled", "True", "CanaryFailed", "version 2 failed 3 of its 9 requests"),
        revision="digits-1-aaaaaaaa",
        version=1,
        weights=weights,
        readyReplicas=1,
    )
    service(server, "fresh", generation=2)
    service(server, "well", condition("Ready", "True", "Serving"), revision="well-2-bbbbbbbb", version=2)
    status = engine.status(None)
    assert isinstance(status, ClusterStatus)
    digits, fresh, well = status.services
    assert (digits.state, digits.reason) == ("Stalled", "CanaryFailed")
    assert digits.message == "version 2 failed 3 of its 9 requests"
    assert (digits.version, digits.weights) == (1, {"digits-1-aaaaaaaa": 90, "digits-2-bbbbbbbb": 10})
    assert (digits.ready_pods, digits.pods) == (1, 2)
    assert (fresh.state, fresh.message) == ("Unknown", "the operator has not looked at it since the last change")
    assert (well.state, well.version) == ("Ready", 2)
