"""Starting and ending releases against a real API server and Argo, with a pipeline of one short step.

The templates have the names and parameters of the real ones, but their pods only sleep and report. So each test takes
seconds, and tests what the API server and Argo's controller do: unique names, shutdowns, exit handlers, quotas.
"""

import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from shiplift.pipelines.daemons import stuck
from shiplift.pipelines.daemons.reconciler import Reconciler
from shiplift.pipelines.daemons.telling import Telling
from shiplift.pipelines.engines.answers import Accepted
from shiplift.pipelines.engines.argo.layout import EVENTS
from shiplift.pipelines.engines.argo.releases import ArgoReleases, concluding
from shiplift.pipelines.engines.argo.told import ToldTargets
from shiplift.pipelines.engines.argo.workflows import Push, Run
from shiplift.pipelines.installation.values import Images
from shiplift.pipelines.triggers.settings import Reconciling, TriggerSettings
from shiplift.runtime.events.targets import EventSettings, EventTarget
from shiplift.runtime.records.release import ReleaseReport
from shiplift.runtime.records.request import Request, Trigger
from shiplift.runtime.records.verdict import Outcome
from shiplift.runtime.serving.kubernetes.client import KubernetesClient
from shiplift.runtime.serving.kubernetes.kinds import POD, WORKFLOW
from tests.cluster.conftest import Kube, until
from tests.unit.pipelines.daemons.test_reconciler import Registry

IMAGE = os.environ.get("SHIPLIFT_PIPELINE_IMAGE", Images().pipeline)
WEBHOOK, MANUAL = Trigger(kind="webhook"), Trigger(kind="manual")
PUSH = Push(repository="acme/models", before="a" * 40, after="b" * 40)


class Place:
    """A namespace with small templates, and the releases and reconciler that act on it."""

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name
        self.api = KubernetesClient(name)
        self.registry = Registry()
        self.releases = ArgoReleases(self.api, self._tags)
        self.reconciler = self.with_telling(None)

    def with_telling(self, telling: Telling | None) -> Reconciler:
        registry: Any = self.registry
        return Reconciler(
            TriggerSettings(
                namespace=self.name,
                registry_uri="http://nowhere",
                reconciler=Reconciling(stuck_s=3, unschedulable_s=3, since=0),
            ),
            self.releases,
            registry,
            lambda: self.api.each(POD, stuck.OF_WORKFLOW),
            telling=telling,
        )

    def _tags(self, model: str, version: int) -> dict[str, str]:
        info = self.registry.version(model, version)
        return info.tags if info else {}

    def templates(self, *, seconds: float = 0, image: str = IMAGE, last_image: str = IMAGE, **pod: Any) -> None:
        """Installs `release`, `conclude` and `git-push`; the step takes `seconds` and outputs its parameter."""
        report = ReleaseReport(
            model="m",
            version=1,
            verdict=Outcome.PASS,
            alias="",
            endpoint=None,
            stages=(),
            checks=(),
            release="r",
            reason="it said so",
            exit_code=0,
            seconds=1,
            since_request_seconds=1,
            overhead_seconds=0,
        ).model_dump_json()
        step = container(
            image,
            f"import sys, time; open('/tmp/out', 'w').write(sys.argv[1]); time.sleep({seconds})",
            "{{workflow.parameters.request}}",
            "request_seen",
        )
        last = container(last_image, "import sys; open('/tmp/out', 'w').write(sys.argv[1])", report, "release_report")
        shared: dict[str, Any] = {"serviceAccountName": "default", "podGC": {"strategy": "OnWorkflowSuccess"}}
        inputs = {"parameters": [{"name": name} for name in ("request", "trigger")]}
        steps = [{"name": "step", **step, **pod}, {"name": "conclude", **last}]
        templates: dict[str, dict[str, Any]] = {
            "release": {"entrypoint": "step", "onExit": "conclude", "templates": steps, "arguments": inputs},
            "conclude": {"entrypoint": "conclude", "templates": steps, "arguments": inputs},
            "git-push": {"entrypoint": "conclude", "templates": steps[1:]},
        }
        for name, spec in templates.items():
            self.kube.apply(
                {
                    "apiVersion": "argoproj.io/v1alpha1",
                    "kind": "WorkflowTemplate",
                    "metadata": {"name": name, "namespace": self.name},
                    "spec": {**shared, **spec},
                }
            )

    def start(self, model: str = "digits") -> str:
        self.registry.add(model, 1)
        self.registry.tag(model, 1, release="none")  # so that the sweep does not release it
        return self.releases.accept(Request(model=model, version=1), MANUAL, again=True).name

    def reconciled(self, condition: Callable[[], Any], *, seconds: float = 240) -> Any:
        def turned() -> Any:
            self.reconciler.turn()
            return condition()

        return until(turned, seconds=seconds)

    def ended(self, name: str) -> Run | None:
        run = self.releases.get(name)
        return None if run.active else run


def container(image: str, script: str, argument: str, output: str) -> dict[str, Any]:
    return {
        "container": {
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c", script],
            "args": [argument],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        },
        "outputs": {"parameters": [{"name": output, "valueFrom": {"path": "/tmp/out", "default": ""}}]},
    }


@pytest.fixture(scope="module")
def namespace(kube: Kube) -> Iterator[str]:
    name = f"triggers-{uuid.uuid4().hex[:6]}"
    kube("create", "namespace", name)
    rules = [{"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "executor", "namespace": name}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "executor"}
    who = [{"kind": "ServiceAccount", "name": "default", "namespace": name}]
    kube.apply(
        [{**rbac, "kind": "Role", "rules": rules}, {**rbac, "kind": "RoleBinding", "roleRef": role, "subjects": who}]
    )
    yield name
    kube("delete", "namespace", name, "--wait=false")


@pytest.fixture
def place(kube: Kube, namespace: str) -> Iterator[Place]:
    yield Place(kube, namespace)
    kube("delete", "workflows,pods", "-n", namespace, "--all", "--wait=true", "--grace-period=1")


def test_fifty_at_once_over_two_replicas_are_one_workflow(place: Place) -> None:
    place.templates()
    replicas = [place.releases, ArgoReleases(KubernetesClient(place.name), place._tags)]
    with ThreadPoolExecutor(50) as pool:
        request = Request(model="digits", version=1)
        accepted = list(pool.map(lambda n: replicas[n % 2].accept(request, WEBHOOK), range(50)))
    assert {release.name for release in accepted} == {run.name for run in place.releases.runs()}
    assert [release.created for release in accepted].count(True) == 1


@pytest.mark.parametrize("model", ["模型", "x" * 256, "a {{workflow.name}} {{=1+1}} \"'\\ b", "-rf", "A_b.C"])
def test_any_model_s_name_reaches_the_step_as_it_is(place: Place, model: str) -> None:
    place.templates()
    request = Request(model=model, version=1, spec=f"# {{{{workflow.name}}}} {model}")
    name = place.releases.accept(request, WEBHOOK).name
    assert place.releases.get(name).request == request
    assert [run.name for run in place.releases.active(model)] == [name]
    run = until(lambda: place.ended(name), seconds=180)
    assert run.succeeded
    body = place.api.get(WORKFLOW, name)
    assert body is not None
    received = [
        parameter["value"]
        for node in body["status"]["nodes"].values()
        for parameter in node.get("outputs", {}).get("parameters", [])
        if parameter["name"] == "request_seen"
    ]
    assert Request.model_validate_json(received[0]) == request


def test_an_ended_release_has_its_report_and_runs_again_only_if_asked(place: Place) -> None:
    place.templates()
    name = place.start()
    run = until(lambda: place.ended(name), seconds=180)
    assert (run.succeeded, run.concluded, run.report.reason) == (True, True, "it said so")
    assert run.created_at <= run.first_pod_at <= run.finished_at
    request = Request(model="digits", version=1)
    assert place.releases.accept(request, WEBHOOK) == Accepted(name=name, created=False, queued=False)
    assert place.releases.accept(request, MANUAL) == Accepted(name=name, created=False, queued=False)
    assert place.releases.accept(request, MANUAL, again=True).name == f"{name}-2"
    place.reconciler.turn()
    place.reconciler.turn()
    counted = place.reconciler.metrics.registry.get_sample_value
    assert counted("shiplift_releases_active") == 1


def test_a_cancelled_release_still_reports(place: Place) -> None:
    place.templates(seconds=600)
    name = place.start()
    until(lambda: place.releases.get(name).first_pod_at)
    place.releases.cancel(name, "somebody asked")
    run = until(lambda: place.ended(name), seconds=180)
    assert (run.succeeded, run.stopped_because) == (False, "somebody asked")
    place.reconciled(lambda: place.releases.get(name).concluded)  # if Argo lost its last stage


def test_a_terminated_release_is_concluded(place: Place) -> None:
    place.templates(seconds=600)
    name = place.start()
    until(lambda: place.releases.get(name).first_pod_at)
    place.releases.terminate(name, "")
    run = until(lambda: place.ended(name), seconds=180)
    assert not run.concluded
    place.reconciled(lambda: place.releases.get(name).concluded)
    assert place.releases.get(concluding(name)).succeeded
    result = place.releases.result(name)
    assert result is not None
    assert result.reason == "it said so"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": "localhost/none:such"}, "ErrImagePull|ImagePullBackOff"),
        ({"image": "UPPER//case"}, "InvalidImageName"),
        ({"nodeSelector": {"shiplift.dev/none": "such"}}, "Unschedulable"),
    ],
)
def test_a_release_whose_pod_can_t_start_is_stopped_and_reports(place: Place, change: dict[str, Any], why: str) -> None:
    place.templates(**change)
    name = place.start()
    run = place.reconciled(lambda: place.ended(name))
    assert run.stopped_because.split(":")[0] in why.split("|")
    assert (run.concluded, run.report.reason) == (True, "it said so")


def test_a_pipeline_image_that_is_nowhere_still_ends_in_the_registry(place: Place) -> None:
    place.templates(image="localhost/none:such", last_image="localhost/none:such")
    name = place.start()
    place.reconciled(lambda: place.releases.get(name).concluded, seconds=300)
    tags = place.registry.versions["digits", 1].tags
    assert (tags["shiplift.release"], tags["shiplift.outcome"]) == (name, "failed")
    assert "localhost/none:such" in tags["shiplift.reason"]


def test_a_quota_that_allows_no_pod_is_reported(place: Place) -> None:
    place.templates()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
    place.kube.apply({**quota, "metadata": {"name": "none", "namespace": place.name}})
    until(lambda: "used" in place.kube.get("quota", place.name, "none").get("status", {}))
    try:
        name = place.start()
        place.reconciled(lambda: place.releases.get(name).concluded, seconds=300)
        tags = place.registry.versions["digits", 1].tags
        assert "exceeded quota" in tags["shiplift.reason"]
    finally:
        place.kube("delete", "quota", "none", "-n", place.name)


def test_a_push_is_processed_once(place: Place) -> None:
    place.templates()
    first, second = (place.releases.push(PUSH) for _ in range(2))
    assert (first.created, second.created, second.name) == (True, False, first.name)
    assert until(lambda: place.ended(first.name), seconds=180).succeeded
    assert not place.releases.push(PUSH).created


def test_targets_hear_of_each_release_once_over_a_restart_of_who_tells_them(place: Place) -> None:
    place.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": EVENTS, "namespace": place.name}})
    got: list[tuple[str, str]] = []

    def receive(request: httpx.Request) -> httpx.Response:
        event = json.loads(request.content)
        got.append((event["type"], event["subject"]))
        return httpx.Response(204)

    def telling() -> Telling:
        settings = EventSettings(targets=(EventTarget(name="ops", url="https://events.example"),))
        targets = ToldTargets(place.api)
        return Telling(settings, "urn:shiplift:test", targets, print, transport=httpx.MockTransport(receive))

    place.templates()
    place.reconciler = place.with_telling(telling())
    place.reconciler.turn()
    place.start("told")
    place.reconciled(lambda: len(got) >= 2)
    place.reconciler.turn()
    place.reconciler = place.with_telling(telling())
    place.reconciler.turn()
    assert len(got) == 2
    assert got[0] == ("dev.shiplift.release.started", "told/1")
    (told,) = ToldTargets(place.api).read().values()
    assert (told.target, told.waiting, told.dead) == ("ops", 0, 0)
