"""The reconciler against an API server and a registry that can be late, wrong or away."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from shiplift.pipelines.daemons.prometheus import ReleaseMetrics, listen, web
from shiplift.pipelines.daemons.reconciler import Orders, Reconciler
from shiplift.pipelines.daemons.stuck import OF_WORKFLOW, of_pod
from shiplift.pipelines.engines.argo.releases import ArgoReleases, concluding
from shiplift.pipelines.triggers.settings import Reconciling, SecretFiles, TriggerSettings
from shiplift.runtime.base.errors import NotFound, Temporary
from shiplift.runtime.base.names import workflow_name
from shiplift.runtime.records.release import ReleaseReport, StageRun
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.retirement import Retirement, Retiring
from shiplift.runtime.records.site import RegistryApprovals, Site, SitePolicy
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.kubernetes.kinds import POD
from shiplift.runtime.store.ledger import PROMOTION
from shiplift.runtime.store.registry.lease import LeaseHolder
from shiplift.runtime.store.registry.terms import VersionInfo
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import site

NAME = workflow_name("digits", 3, "")
NOW = 1_800_000_000.0


class Registry:
    """Versions and their tags; what is asked of webhooks."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int], VersionInfo] = {}
        self.webhooks: list[tuple[str, str, bool]] = []
        self.away = False
        self.description = ""
        self.aliases: dict[str, dict[str, int]] = {}
        self.texts: dict[tuple[str, str], str] = {}

    def models(self) -> Iterator[tuple[str, int, dict[str, int]]]:
        self._answer()
        for name in sorted({name for name, _ in self.versions}):
            yield name, 9, self.aliases.get(name, {})

    def read_text(self, run_id: str, path: str) -> str | None:
        self._answer()
        return self.texts.get((run_id, path))

    def add(self, name: str, version: int, created_at: float = NOW) -> None:
        self.versions[name, version] = VersionInfo(
            name=name, version=version, source="", run_id=f"{name}-{version}", created_at=created_at, tags={}
        )

    def newest(self) -> Iterator[VersionInfo]:
        self._answer()
        for name in {name for name, _ in self.versions}:
            yield max((info for info in self.versions.values() if info.name == name), key=lambda info: info.version)

    def version(self, name: str, version: int) -> VersionInfo | None:
        self._answer()
        return self.versions.get((name, version))

    def tagged(self, tag: str, value: str = "") -> list[VersionInfo]:
        self._answer()
        return [info for info in self.versions.values() if info.tags.get(tag) == value]

    def tag(self, name: str, version: int, **tags: str) -> None:
        self._answer()
        if (name, version) not in self.versions:
            raise NotFound("no such version", do="-")
        self.versions[name, version].tags.update({f"shiplift.{key}": value for key, value in tags.items()})

    def ensure_webhook(self, name: str, url: str, secret: str, *, renew: bool, description: str) -> None:
        self._answer()
        self.webhooks.append((url, secret, renew))
        self.description = description

    def webhook(self, name: str) -> dict[str, Any] | None:
        self._answer()
        return {"name": name, "description": self.description} if self.description else None

    def _answer(self) -> None:
        if self.away:
            raise Temporary("the registry does not answer", do="Wait.")


class Lab:
    """A namespace with a reconciler, and the hands of everyone else in it."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.registry = Registry()
        self.now = time.time()
        self.secret = folder / "mlflow"
        self.secret.write_text("the secret\n")
        self.settings = TriggerSettings(
            namespace="shiplift",
            registry_uri="http://mlflow",
            secrets=SecretFiles(mlflow=(self.secret,)),
            reconciler=Reconciling(webhook_url="http://receiver/webhooks/mlflow", since=NOW),
        )
        self.serving: dict[str, int] = {}
        self.releases = ArgoReleases(server.api(), self._tags)
        self.reconciler = self.restarted()

    def restarted(self) -> Reconciler:
        api: Any = self.server.api()
        registry: Any = self.registry
        return Reconciler(
            self.settings,
            self.releases,
            registry,
            lambda: api.each(POD),
            serving=lambda: self.serving,
            orders=Orders(self.server.api),
            clock=lambda: self.now,
        )

    def install(self, on: Site) -> None:
        parameters = [{"name": Site.parameter(), "value": on.model_dump_json()}]
        template = {"metadata": {}, "spec": {"arguments": {"parameters": parameters}}}
        self.server.objects["workflowtemplates"]["release"] = template

    def _tags(self, name: str, version: int) -> dict[str, str]:
        info = self.registry.version(name, version)
        return info.tags if info else {}

    def turn(self, *, later_s: float = 0) -> None:
        self.now += later_s
        self.reconciler.turn()

    def start(self, model: str = "digits", version: int = 3) -> str:
        self.registry.add(model, version)
        request, trigger = Request(model=model, version=version), Trigger(kind="webhook")
        return self.releases.accept(request, trigger).name

    def pod(self, workflow: str = NAME, *, since_s: float = 300, **status: Any) -> None:
        at = datetime.fromtimestamp(self.now - since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        meta = {"name": f"{workflow}-pod", "labels": {OF_WORKFLOW: workflow}, "creationTimestamp": at}
        status = {"phase": "Pending", "conditions": [scheduled]} | status
        for condition in status["conditions"]:
            condition.setdefault("lastTransitionTime", at)
        self.server.objects["pods"][f"{workflow}-pod"] = {"metadata": meta, "status": status}

    def workflow(self, name: str = NAME) -> dict[str, Any]:
        return self.server.workflows[name]

    def metric(self, name: str, **labels: str) -> float:
        return self.reconciler.metrics.registry.get_sample_value(name, labels) or 0.0

    @property
    def tags(self) -> dict[str, str]:
        return self.registry.versions["digits", 3].tags


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running() as server:
        yield Lab(server, tmp_path)


def ended_report(name: str = NAME, *, verdict: Outcome = Outcome.PASS, alias: str = "champion") -> ReleaseReport:
    return ReleaseReport(
        model="digits",
        version=3,
        verdict=verdict,
        alias=alias,
        endpoint=None,
        checks=(),
        release=name,
        reason="every check passed",
        exit_code=0,
        seconds=9,
        since_request_seconds=10,
        overhead_seconds=1,
        stages=(
            StageRun(name="admit", seconds=2.0),
            StageRun(name="export", seconds=0.1, cached=True),
            StageRun(name="gate", outcome="skipped"),
        ),
    )


def reported(report: ReleaseReport | None, pod_at: str = "") -> dict[str, Any]:
    parameters = [{"name": "release_report", "value": report.model_dump_json()}] if report else []
    nodes: dict[str, Any] = {"exit": {"type": "Pod", "outputs": {"parameters": parameters}, "startedAt": pod_at}}
    return {"nodes": nodes}


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"name": "main", "image": "img", "state": {"waiting": {"reason": reason, "message": message}}}]


# --- what it starts ---


def test_what_no_webhook_announced_is_started_once(lab: Lab) -> None:
    lab.registry.add("digits", 3)
    lab.registry.add("digits", 2)
    lab.registry.add("old", 1, created_at=NOW - 1)
    lab.registry.add("done", 1)
    lab.registry.tag("done", 1, release="release-done-1-0123456789")
    for _ in range(3):
        lab.turn()
    assert set(lab.server.workflows) == {NAME}
    parameters = {item["name"]: item["value"] for item in lab.workflow()["spec"]["arguments"]["parameters"]}
    assert Trigger.model_validate_json(parameters["trigger"]).kind == "sweep"


def test_without_a_date_given_versions_older_than_the_installation_are_left_alone(lab: Lab) -> None:
    lab.settings = lab.settings.model_copy(update={"reconciler": Reconciling()})
    lab.reconciler = lab.restarted()
    lab.registry.add("digits", 3, created_at=NOW)
    lab.turn()
    assert lab.server.workflows == {}  # nothing is installed: nothing could run
    at = datetime.fromtimestamp(NOW + 1, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lab.install(site(Path("/work")))
    lab.server.objects["workflowtemplates"]["release"]["metadata"] = {"creationTimestamp": at}
    lab.turn()
    assert lab.server.workflows == {}
    lab.registry.add("digits", 4, created_at=NOW + 2)
    lab.turn()
    assert set(lab.server.workflows) == {workflow_name("digits", 4, "")}


def test_a_version_that_waits_goes_on_once_a_tag_that_the_site_trusts_says_so(lab: Lab) -> None:
    lab.registry.add("digits", 3, created_at=NOW - 1)
    lab.registry.tag("digits", 3, outcome="waiting for approval", release=NAME, approve="ana: checked")
    policies = (
        SitePolicy(approvers=("ana",)),
        SitePolicy(approvers=("ana",), approvals=RegistryApprovals(tags="trusted")),
    )
    for policy in policies:
        lab.install(site(Path("/work"), policy=policy))
        assert lab.server.workflows == {}
        for _ in range(2):
            lab.turn()
    (workflow,) = lab.server.workflows.values()
    parameters = {item["name"]: item["value"] for item in workflow["spec"]["arguments"]["parameters"]}
    decision = Trigger.model_validate_json(parameters["trigger"]).decision
    assert decision is not None
    assert decision.sentence == "approved by ana, says a tag in the registry: checked"


def test_the_webhook_is_made_and_renewed_when_its_secret_changes(lab: Lab) -> None:
    url = "http://receiver/webhooks/mlflow"
    lab.turn()
    lab.turn()
    lab.secret.write_text("the next secret")
    lab.turn()
    assert lab.registry.webhooks == [
        (url, "the secret", True),
        (url, "the secret", False),
        (url, "the next secret", True),
    ]
    lab.secret.unlink()
    lab.turn()
    assert len(lab.registry.webhooks) == 3


def test_a_registry_that_is_away_does_not_keep_pods_from_being_looked_at(lab: Lab) -> None:
    lab.start()
    lab.pod(containerStatuses=waiting("ErrImagePull"))
    lab.registry.away = True
    lab.turn()
    assert lab.workflow()["spec"]["shutdown"] == "Stop"
    assert lab.metric("shiplift_reconciler_failures_total", part="sweep") == 1
    assert lab.reconciler.healthy()


def test_it_is_ready_once_the_registry_announces_new_versions(lab: Lab) -> None:
    lab.registry.away = True
    lab.turn()
    assert not lab.reconciler.ready()
    lab.registry.away = False
    lab.turn()
    assert lab.reconciler.ready()
    lab.registry.away = True
    lab.turn()
    assert lab.reconciler.ready()  # it has been registered, and MLflow remembers


def test_a_cluster_that_fails_for_a_turn_is_looked_at_in_the_next(lab: Lab) -> None:
    lab.registry.add("digits", 3)
    lab.server.faults = [500, 429]
    lab.turn()
    assert lab.server.workflows == {}
    lab.turn()
    assert set(lab.server.workflows) == {NAME}


# --- what it stops ---


@pytest.mark.parametrize(
    "reason",
    ["ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"],
)
@pytest.mark.parametrize("where", ["containerStatuses", "initContainerStatuses"])
def test_a_workflow_whose_pod_can_t_start_is_stopped_with_the_reason(lab: Lab, reason: str, where: str) -> None:
    lab.start()
    status: dict[str, Any] = {where: waiting(reason, "no such image")}
    lab.pod(since_s=121, **status)
    lab.turn()
    assert lab.workflow()["spec"]["shutdown"] == "Stop"
    assert lab.workflow()["metadata"]["annotations"]["shiplift.dev/stopped-because"] == f"{reason}: no such image"


def test_so_is_one_that_finds_no_node(lab: Lab) -> None:
    lab.start()
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no gpu"}
    lab.pod(conditions=[condition])
    lab.turn()
    assert lab.releases.get(NAME).stopped_because == "Unschedulable: 0/1 nodes: no gpu"


@pytest.mark.parametrize(("since_s", "stopped"), [(3599, False), (3601, True)])
def test_one_that_waits_for_room_on_a_node_that_fits_is_given_longer(lab: Lab, since_s: float, stopped: bool) -> None:
    lab.start()
    message = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector."
    lab.pod(since_s=since_s, conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": message}])
    lab.turn()
    assert bool(lab.releases.get(NAME).stopped_because) == stopped


def test_what_a_target_asks_of_a_node_is_said_with_the_scheduler_s_words() -> None:
    condition = {"type": "PodScheduled", "reason": "Unschedulable", "message": "0/1 nodes are available."}
    pod: Any = {
        "metadata": {"labels": {OF_WORKFLOW: NAME, "shiplift.dev/stages": "tune"}},
        "spec": {"nodeSelector": {"gpu": "yes", "disk": "fast"}},
        "status": {"conditions": [condition]},
    }
    assert str(of_pod(pod)) == "Unschedulable: tune asks for a node with disk=fast, gpu=yes: 0/1 nodes are available."


def test_so_is_one_whose_pod_the_quota_forbids(lab: Lab) -> None:
    lab.start()
    at = datetime.fromtimestamp(lab.now - 121, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = 'pods "x" is forbidden: exceeded quota: small, requested: cpu=2'
    node = {"type": "Pod", "phase": "Pending", "message": message, "startedAt": at}
    lab.workflow()["status"] = {"phase": "Running", "nodes": {"n": node}}
    lab.turn()
    assert lab.releases.get(NAME).stopped_because == f"FailedCreate: {message}"


@pytest.mark.parametrize(
    ("since_s", "status"),
    [
        (119, {"containerStatuses": waiting("ImagePullBackOff")}),
        (9999, {"containerStatuses": waiting("ContainerCreating")}),
        (9999, {"containerStatuses": waiting("PodInitializing")}),
        (9999, {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}),
        (9999, {"phase": "Failed", "containerStatuses": waiting("ImagePullBackOff")}),
        (9999, {}),
    ],
)
def test_a_pod_that_may_yet_start_is_left_alone(lab: Lab, since_s: float, status: dict[str, Any]) -> None:
    lab.start()
    lab.pod(since_s=since_s, **status)
    lab.turn()
    assert "shutdown" not in lab.workflow()["spec"]


def test_pods_that_are_not_a_workflow_s_are_nobody_s_business(lab: Lab) -> None:
    lab.start()
    lab.pod("another", containerStatuses=waiting("ErrImagePull"))
    lab.pod("", containerStatuses=waiting("ErrImagePull"))
    lab.turn()
    assert "shutdown" not in lab.workflow()["spec"]


def test_an_exit_handler_that_can_t_start_either_is_ended_and_the_registry_told_at_once(lab: Lab) -> None:
    lab.start()
    lab.pod(containerStatuses=waiting("ErrImagePull", "no such image"))
    lab.turn()
    lab.turn(later_s=60)  # its pod is still there, or its exit handler's is: that one has its time
    assert lab.workflow()["spec"]["shutdown"] == "Stop"
    lab.turn(later_s=63)
    assert lab.workflow()["spec"]["shutdown"] == "Terminate"
    assert lab.tags["shiplift.release"] == NAME
    assert lab.tags["shiplift.outcome"] == "failed"
    assert lab.tags["shiplift.reason"] == "ErrImagePull: no such image"
    lab.server.end(NAME, "Failed")
    lab.server.objects["pods"].clear()
    lab.turn(later_s=60)  # what it set up may still be there: its last stage is tried once more
    lab.server.end(concluding(NAME), "Failed")
    lab.turn(later_s=60)
    assert lab.tags["shiplift.reason"] == "ErrImagePull: no such image"
    assert lab.releases.get(NAME).concluded
    assert lab.metric("shiplift_releases_total", verdict="inconclusive", trigger="webhook") == 1


# --- what it concludes ---


def test_a_terminated_release_is_concluded_after_a_moment_and_once(lab: Lab) -> None:
    lab.start()
    lab.server.end(NAME, "Failed")
    lab.turn()
    assert set(lab.server.workflows) == {NAME}
    lab.turn(later_s=20)
    assert set(lab.server.workflows) == {NAME, concluding(NAME)}
    lab.turn(later_s=20)
    lab.registry.tag("digits", 3, release=NAME, outcome="cancelled")
    lab.server.end(concluding(NAME), **reported(ended_report(verdict=Outcome.INCONCLUSIVE, alias="")))
    lab.turn(later_s=20)
    assert lab.releases.get(NAME).concluded
    assert lab.tags["shiplift.outcome"] == "cancelled"
    assert "message" not in lab.workflow()["status"]  # its last stage wrote one, or Argo did
    assert lab.metric("shiplift_releases_total", verdict="inconclusive", trigger="webhook") == 1
    for _ in range(2):
        lab.turn(later_s=60)
    assert lab.metric("shiplift_releases_total", verdict="inconclusive", trigger="webhook") == 1
    assert len(lab.server.workflows) == 2


def test_a_release_that_nothing_can_conclude_is_told_in_brief(lab: Lab) -> None:
    lab.start()
    lab.server.end(NAME, "Failed")
    lab.turn(later_s=20)
    lab.pod(concluding(NAME), containerStatuses=waiting("ErrImagePull"))
    lab.turn(later_s=20)
    assert lab.workflow(concluding(NAME))["spec"]["shutdown"] == "Stop"
    lab.server.end(concluding(NAME), "Failed")
    lab.server.objects["pods"].clear()
    lab.turn(later_s=20)
    assert lab.tags["shiplift.verdict"] == "inconclusive"
    assert lab.tags["shiplift.reason"] == "its Workflow ended before it could report how it went"
    assert lab.releases.get(NAME).concluded


def test_a_registry_that_was_away_at_the_end_is_told_when_it_is_back(lab: Lab) -> None:
    """The exit handler gave its report, and nobody heard it."""
    lab.start()
    lab.server.end(NAME, "Succeeded", **reported(ended_report()))
    lab.registry.away = True
    lab.turn(later_s=60)
    assert set(lab.server.workflows) == {NAME}
    lab.registry.away = False
    lab.turn(later_s=60)
    assert set(lab.server.workflows) == {NAME, concluding(NAME)}
    lab.server.end(concluding(NAME), "Failed")
    lab.turn(later_s=60)
    assert lab.tags["shiplift.outcome"] == "promoted"
    assert lab.tags["shiplift.reason"] == "every check passed"
    assert lab.metric("shiplift_releases_total", verdict="pass", trigger="webhook") == 1


def test_a_later_release_of_the_version_has_the_last_word(lab: Lab) -> None:
    lab.start()
    lab.server.end(NAME, "Failed", **reported(ended_report(verdict=Outcome.FAIL, alias="")))
    lab.workflow()["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    again = lab.releases.accept(Request(model="digits", version=3), Trigger(kind="manual"), again=True).name
    lab.server.end(again, "Succeeded", **reported(ended_report(again)))
    lab.registry.tag("digits", 3, release=again, outcome="promoted")
    lab.turn(later_s=60)
    assert lab.tags["shiplift.release"] == again
    assert set(lab.server.workflows) == {NAME, again}
    assert lab.metric("shiplift_releases_total", verdict="fail", trigger="webhook") == 1
    assert lab.metric("shiplift_releases_total", verdict="pass", trigger="manual") == 1


def test_a_version_that_was_deleted_meanwhile_has_nobody_to_be_told(lab: Lab) -> None:
    lab.start()
    lab.server.end(NAME, "Failed")
    del lab.registry.versions["digits", 3]
    lab.turn(later_s=60)
    lab.server.end(concluding(NAME), "Failed")
    lab.turn(later_s=60)
    assert lab.releases.get(NAME).concluded


def test_a_workflow_submitted_wrongly_by_hand_harms_nothing(lab: Lab) -> None:
    name = "by-hand"
    lab.server.workflows[name] = {
        "metadata": {"name": name, "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"workflowTemplateRef": {"name": "release"}, "arguments": {"parameters": [{"name": "request"}]}},
    }
    lab.server.end(name, "Error")
    lab.start()
    lab.turn(later_s=60)
    assert set(lab.server.workflows) == {name, NAME}
    assert lab.metric("shiplift_releases_active") == 1


# --- what it counts ---


def test_what_ended_is_counted_once_over_restarts(lab: Lab) -> None:
    lab.start()
    created = lab.workflow()["metadata"]["creationTimestamp"]
    pod_at = datetime.fromtimestamp(datetime.fromisoformat(created).timestamp() + 7, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    lab.server.end(NAME, **reported(ended_report(), pod_at))
    lab.registry.tag("digits", 3, release=NAME)
    lab.start("fraud", 1)
    lab.turn()
    lab.turn()
    assert lab.metric("shiplift_releases_total", verdict="pass", trigger="webhook") == 1
    assert lab.metric("shiplift_releases_active") == 1
    assert lab.metric("shiplift_release_queue_seconds_sum") == 7
    assert lab.metric("shiplift_stage_seconds_sum", stage="admit", outcome="ok") == 2
    assert lab.metric("shiplift_stage_seconds_count", stage="export", outcome="ok") == 0
    assert lab.metric("shiplift_stage_cache_total", stage="export", cached="true") == 1
    assert lab.metric("shiplift_stage_cache_total", stage="admit", cached="false") == 1
    assert lab.metric("shiplift_stage_cache_total", stage="gate", cached="false") == 0
    lab.reconciler = lab.restarted()
    lab.turn()
    assert lab.metric("shiplift_releases_total", verdict="pass", trigger="webhook") == 0
    assert set(lab.server.workflows) == {NAME, workflow_name("fraud", 1, "")}


def test_a_release_that_argo_retried_is_counted_again(lab: Lab) -> None:
    lab.start()
    lab.registry.tag("digits", 3, release=NAME)
    lab.server.end(NAME, **reported(ended_report()))
    lab.turn()
    lab.workflow()["status"]["finishedAt"] = "2031-01-01T00:00:00Z"
    lab.turn()
    assert lab.metric("shiplift_releases_total", verdict="pass", trigger="webhook") == 2


def test_it_serves_metrics_and_says_whether_it_still_looks(lab: Lab) -> None:
    lab.turn()
    server = listen(web(lab.reconciler.metrics.registry, {"/healthz": lab.reconciler.healthy}), 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False) as client:
            families = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
            assert "shiplift_releases_active" in families
            assert client.get("/healthz").status_code == 200
            lab.now += 3600
            assert client.get("/healthz").status_code == 503
            assert client.get("/").status_code == 404
    finally:
        server.shutdown()
        thread.join(timeout=120)
        server.server_close()


def test_no_metric_has_a_label_of_a_model_or_a_person() -> None:
    metrics = ReleaseMetrics()
    labels = {label for metric in vars(metrics).values() for label in getattr(metric, "_labelnames", ())}
    assert labels == {"verdict", "trigger", "stage", "outcome", "cached", "part"}


def test_a_workflow_packed_by_argo_is_read(lab: Lab) -> None:
    import base64
    import gzip

    lab.start()
    packed = base64.b64encode(gzip.compress(json.dumps(reported(ended_report())["nodes"]).encode())).decode()
    lab.server.end(NAME, compressedNodes=packed)
    assert lab.releases.get(NAME).report == ended_report()


def under_way(lab: Lab, *, since_s: float, kind: str = "Retry", children: tuple[str, ...] = ()) -> dict[str, Any]:
    """A Workflow with one stage under way for so long."""
    at = datetime.fromtimestamp(lab.now - since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    node = {"type": kind, "phase": "Running", "startedAt": at, "children": list(children)}
    before = {"type": "Pod", "children": ["deploy-1", "other"], "outboundNodes": ["deploy-1"]}
    lab.workflow()["status"] = {"phase": "Running", "nodes": {"deploy-1": node, "done": before}}
    return node


def test_a_stage_that_argo_retry_left_without_a_pod_is_begun_anew(lab: Lab) -> None:
    lab.start()
    under_way(lab, since_s=60)
    lab.turn()
    nodes = lab.workflow()["status"]["nodes"]
    assert list(nodes) == ["done"]
    assert (nodes["done"]["children"], nodes["done"]["outboundNodes"]) == (["other"], [])


@pytest.mark.parametrize(
    "changes", [{"since_s": 3}, {"since_s": 60, "children": ("pod",)}, {"since_s": 60, "kind": "DAG"}]
)
def test_a_stage_that_has_a_pod_or_will_get_one_is_left_alone(lab: Lab, changes: dict[str, Any]) -> None:
    lab.start()
    under_way(lab, **changes)
    lab.turn()
    assert list(lab.workflow()["status"]["nodes"]) == ["deploy-1", "done"]


def test_a_stage_of_a_workflow_that_is_being_stopped_is_left_alone(lab: Lab) -> None:
    lab.start()
    under_way(lab, since_s=60)
    lab.workflow()["spec"]["shutdown"] = "Stop"
    lab.turn()
    assert list(lab.workflow()["status"]["nodes"]) == ["deploy-1", "done"]


# --- aliases moved by hand -------------------------------------------------------------------------------------------


def promoted(lab: Lab, model: str, version: int, previous: int, unfinished: str = "") -> None:
    """As after a promotion, with the aliases that it set."""
    lab.serving[model] = version
    for each in (previous, version):
        lab.registry.add(model, each, created_at=NOW - 1)
    lab.registry.aliases[model] = {"champion": version, "previous": previous}
    for each, before in ((previous, 0), (version, previous)):
        record = json.dumps({"previous": before, "unfinished": unfinished})
        lab.registry.texts[f"{model}-{each}", PROMOTION] = json.dumps({"record": record, "signature": "-"})


def reinstating(lab: Lab) -> list[str]:
    return [name for name in lab.server.workflows if name.startswith("reinstate-")]


@pytest.mark.parametrize("aliases", [{"champion": 1}, {"champion": 0}, {"previous": 2}, {"previous": 0}])
def test_aliases_moved_by_hand_are_moved_back_by_one_workflow_at_a_time(lab: Lab, aliases: dict[str, int]) -> None:
    promoted(lab, "digits", 2, 1)
    lab.registry.add("digits", 3, created_at=NOW - 1)
    lab.turn()
    assert reinstating(lab) == []
    lab.registry.aliases["digits"] |= aliases
    for _ in range(3):
        lab.turn(later_s=60)
        assert reinstating(lab) == ["reinstate-digits"]
    spec = lab.server.workflows["reinstate-digits"]["spec"]
    assert spec["workflowTemplateRef"] == {"name": "reinstate"}
    assert spec["arguments"]["parameters"] == [{"name": "model", "value": "digits"}]
    lab.server.end("reinstate-digits", "Failed")
    lab.turn(later_s=60)
    assert reinstating(lab) == ["reinstate-digits", "reinstate-digits-2"]
    lab.registry.aliases["digits"] = {"champion": 2, "previous": 1}
    lab.server.end("reinstate-digits-2")
    lab.turn(later_s=1000)
    assert len(reinstating(lab)) == 2


def test_a_promotion_under_way_and_a_deleted_version_are_not_drift(lab: Lab) -> None:
    promoted(lab, "under-way", 2, 1, "promotion")
    lab.registry.aliases["under-way"] = {"champion": 1}
    promoted(lab, "deleted", 2, 1)
    del lab.registry.versions["deleted", 1]
    lab.registry.aliases["deleted"] = {"champion": 2}
    promoted(lab, "gone", 2, 1)
    del lab.registry.versions["gone", 2]
    lab.registry.aliases["gone"] = {"previous": 1}
    lab.registry.add("never-served", 1, created_at=NOW - 1)
    lab.registry.aliases["never-served"] = {"champion": 1}
    lab.turn()
    assert reinstating(lab) == []


def test_a_version_with_the_number_of_a_deleted_champion_is_released_and_gets_no_alias_before(lab: Lab) -> None:
    promoted(lab, "digits", 2, 1)
    envelope = {"record": json.dumps({"previous": 1, "unfinished": "", "registered_at": NOW - 1}), "signature": "-"}
    lab.registry.texts["digits-2", PROMOTION] = json.dumps(envelope)
    lab.turn()
    assert lab.server.workflows == {}
    lab.registry.add("digits", 2, created_at=NOW + 1)  # of the same run, which still has the record
    lab.registry.aliases["digits"] = {}
    lab.turn()
    assert list(lab.server.workflows) == [workflow_name("digits", 2, "")]
    lab.registry.aliases["digits"] = {"champion": 1}
    lab.turn()
    assert reinstating(lab) == ["reinstate-digits"]


def test_a_release_of_a_deleted_version_does_not_tag_the_one_with_its_number(lab: Lab) -> None:
    lab.registry.add("digits", 3, created_at=NOW - 2)
    request = Request(model="digits", version=3, registered_at=NOW - 2)
    lab.releases.accept(request, Trigger(kind="webhook"))
    lab.registry.add("digits", 3, created_at=NOW - 1)
    lab.server.end(NAME, "Failed")
    lab.turn(later_s=60)
    lab.server.end(concluding(NAME), "Failed")
    lab.turn(later_s=60)
    assert lab.registry.versions["digits", 3].tags == {}
    assert lab.releases.get(NAME).counted


def test_a_champion_that_production_has_no_word_of_is_declared_by_a_workflow(lab: Lab) -> None:
    for model, unfinished in (("lost", ""), ("under-way", "promotion")):
        promoted(lab, model, 2, 1, unfinished)
        del lab.serving[model]
    promoted(lab, "down", 2, 1)
    lab.serving["down"] = 0  # it has a TritonService, which the operator looks after
    lab.turn()
    assert reinstating(lab) == ["reinstate-lost"]
    for number in range(2, 6):  # one that changes nothing is not repeated for ever
        lab.server.end(reinstating(lab)[-1], "Failed")
        lab.turn(later_s=60)
        assert len(reinstating(lab)) == min(number, 3)


def test_a_service_that_was_deleted_with_an_order_is_retired_and_not_declared_again(lab: Lab) -> None:
    order = Retirement(by="someone with kubectl", reason="replaced", at=NOW)
    for model in ("gone", "kept"):
        promoted(lab, model, 2, 1)
    del lab.serving["gone"]
    data = {"gone": order.model_dump_json(), "kept": order.model_dump_json(), "odd": "no order"}
    lab.server.objects["configmaps"]["shiplift-retiring"] = {"metadata": {"name": "shiplift-retiring"}, "data": data}
    lab.turn()
    (name,) = lab.server.workflows
    assert name == f"retire-gone-{int(NOW)}"
    told = {each["name"]: each["value"] for each in lab.server.workflows[name]["spec"]["arguments"]["parameters"]}
    assert Retiring.model_validate_json(told["retiring"]) == Retiring(
        retirement=order.model_copy(update={"version": 2}), force=True
    )
    noted = lab.server.objects["configmaps"]["shiplift-retiring"]["data"]
    assert ("gone" in noted, noted.get("kept")) == (True, None)  # someone declared that one again
    lab.turn()
    assert list(lab.server.workflows) == [name]
    lab.registry.aliases["gone"] = {}
    lab.server.end(name, "Succeeded")
    lab.turn()
    assert not lab.server.objects["configmaps"]["shiplift-retiring"]["data"].get("gone")


def test_nothing_is_started_while_another_installation_holds_the_registry(lab: Lab) -> None:
    other = LeaseHolder(holder="other", place="the stack of ana", since=NOW, expires_at=lab.now + 100)
    lab.registry.description = other.model_dump_json()
    lab.registry.add("digits", 3, created_at=NOW + 1)
    lab.turn()
    assert (lab.registry.webhooks, lab.server.workflows) == ([], {})
    lab.now += 101
    lab.registry.description = other.model_copy(update={"expires_at": 1.0}).model_dump_json()
    lab.turn()
    assert len(lab.registry.webhooks) == 1
    assert list(lab.server.workflows) == [NAME]
