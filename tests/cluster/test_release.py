"""A registration leads to a served champion on a real cluster, whatever fails on the way.

The tests share a model and its history, so they run in order: each disturbs what the one before promoted.
"""

import base64
import hashlib
import hmac
import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from shiplift.pipelines.engines.argo.engine import ArgoEngine
from shiplift.pipelines.release import RELEASE
from shiplift.runtime.base.errors import AlreadyDecided
from shiplift.runtime.store.registry.terms import CHALLENGER, CHAMPION, PREVIOUS
from tests.cluster.conftest import ABSENT_IMAGE, Kube, Lab, stage_runs, until
from tests.cluster.traffic import Traffic, row
from tests.integration.conftest import FAST, digits

MODEL = "plain"
SPEC = FAST + "rollout: {canary_percent: [50], hold_s: 1}\n"
RELEASE_S = 420


def ended(lab: Lab, name: str, *, seconds: float = RELEASE_S) -> Any:
    """Waits until a Workflow has ended and the registry has its report; returns the Workflow."""

    def look() -> Any:
        workflow = lab.kube.get("workflow", lab.namespace, name)
        phase = workflow.get("status", {}).get("phase")
        concluded = "shiplift.dev/concluded" in workflow["metadata"].get("labels", {})
        return workflow if phase in ("Succeeded", "Failed", "Error") and concluded else None

    return until(look, seconds=seconds)


def promoted(lab: Lab, model: str, version: int) -> None:
    """Waits until a version is the champion and its release has ended; any other end fails at once, with its reason."""
    try:
        outcome = until(lambda: tag(lab, model, version, "outcome"), seconds=RELEASE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{state(lab)}") from None
    assert outcome == "promoted", f"{outcome}: {tag(lab, model, version, 'reason')}\n{state(lab)}"
    assert lab.registry.alias(model, CHAMPION) == version


def state(lab: Lab) -> str:
    """What one reads first when a release hangs: its Workflows and pods, events, and what the controllers wrote."""
    asked = (
        ("get", "workflows,pods", "-o", "wide"),
        ("get", "events", "--sort-by=.lastTimestamp"),
        *(("logs", f"deployment/{name}", "--tail=40") for name in ("reconciler", "receiver", "operator", "mlflow")),
    )
    told = ((words, lab.kube.run("-n", lab.namespace, *words, check=False)) for words in asked)
    return "\n".join(f"$ kubectl {' '.join(words)}\n{done.stdout[-6000:]}{done.stderr}" for words, done in told)


def tag(lab: Lab, model: str, version: int, name: str) -> str:
    return lab.registry.version(model, version).tags.get(f"shiplift.{name}", "")


def workflow_of(lab: Lab, model: str, version: int) -> str:
    """The name of the newest Workflow of a version, once there is one."""
    selector = f"shiplift.dev/model={model},shiplift.dev/version={version}"

    def look() -> list[Any]:
        workflows = lab.kube.get("workflow", lab.namespace, selector=selector)
        return [body for body in workflows if body["spec"]["workflowTemplateRef"]["name"] == "release"]

    return str(max(until(look), key=lambda body: body["metadata"]["creationTimestamp"])["metadata"]["name"])


def pod_of(lab: Lab, name: str, stage: str) -> Any:
    """The running pod of a stage, once that stage is under way in it."""

    def look() -> Any:
        running = (pod for pod in pods_with(lab, name, stage) if pod["status"].get("phase") == "Running")
        return next((pod for pod in running if has_started(stage, log_of(lab, pod))), None)

    return until(look, seconds=RELEASE_S)


def has_started(stage: str, lines: list[str]) -> bool:
    """Whether a stage is under way or done; the line of one that runs once per target goes on with `for TARGET`."""
    return any(line.startswith(f"{stage}: started") for line in lines)


def pods_with(lab: Lab, name: str, stage: str) -> list[Any]:
    """The pods of a Workflow that run a stage."""
    pods = lab.kube.get("pod", lab.namespace, selector=f"workflows.argoproj.io/workflow={name}")
    return [pod for pod in pods if stage in pod["metadata"]["labels"]["shiplift.dev/stages"].split(".")]


def log_of(lab: Lab, pod: Any) -> list[str]:
    log = lab.kube.run("-n", lab.namespace, "logs", pod["metadata"]["name"], "-c", "main", check=False)
    return log.stdout.splitlines()


def serving(lab: Lab, model: str = MODEL) -> set[str]:
    """The versions that have pods."""
    deployments = lab.kube.get("deployment", lab.serving, selector=f"shiplift.dev/model={model}")
    return {deployment["metadata"]["labels"]["shiplift.dev/version"] for deployment in deployments}


def service_of(lab: Lab) -> Any:
    return lab.kube.get("tritonservice", lab.serving, MODEL)


def traffic(lab: Lab, model: str = MODEL) -> Traffic:
    gateway = lab.kube.get("gateway", lab.serving, "shiplift")["status"]["addresses"][0]["value"]
    return Traffic(model=model, gateway=gateway, authority=f"{model}.{lab.serving}.svc", row=row(digits()[0]))


@contextmanager
def scaled(kube: Kube, namespace: str, name: str, replicas: int) -> Iterator[None]:
    """Scales a Deployment, and back at the end."""
    before = kube.get("deployment", namespace, name)["spec"]["replicas"]
    kube("-n", namespace, "scale", "deployment", name, f"--replicas={replicas}")
    until(lambda: len(kube.get("pod", namespace, selector=f"app.kubernetes.io/name={name}")) == replicas, seconds=90)
    try:
        yield
    finally:
        kube("-n", namespace, "scale", "deployment", name, f"--replicas={before}")


def argo(lab: Lab, *words: str) -> str:
    program = lab.kube.kubeconfig.parents[1] / "bin" / "argo"
    if not program.is_file():
        pytest.skip("there is no `argo` beside this cluster")
    done = subprocess.run(
        [program, "-n", lab.namespace, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "KUBECONFIG": str(lab.kube.kubeconfig)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def released(lab: Lab) -> None:
    """Two released versions of the model, whichever tests ran before: a failed test may be run again by itself."""
    known = len(lab.mlflow.MlflowClient().search_model_versions(f"name='{MODEL}'"))
    for samples in (1200, 1100)[known:]:
        version = lab.log_classifier(MODEL, samples=samples, spec=SPEC)
        promoted(lab, MODEL, version)
        ended(lab, workflow_of(lab, MODEL, version))  # until then, `rerun` would name this very Workflow


def test_a_registration_alone_leads_to_a_served_champion(lab: Lab) -> None:
    started = time.time()
    version = lab.log_classifier(MODEL, spec=SPEC)
    promoted(lab, MODEL, version)
    took = time.time() - started
    workflow = ended(lab, workflow_of(lab, MODEL, version))
    assert workflow["status"]["phase"] == "Succeeded"
    assert workflow["metadata"]["name"].startswith(f"release-{MODEL}-{version}-")
    names = {node["displayName"].removesuffix("(0)") for node in workflow["status"]["nodes"].values()}
    assert {"prepare", "find-champion", "each-target(0:local-cpu)", "deliver"} <= names
    pods = [node for node in workflow["status"]["nodes"].values() if node["type"] == "Pod"]
    assert len(pods) == 4  # with that of `conclude`: `prepare` went on with the only target
    with traffic(lab) as client:
        until(lambda: client.sent > 20, seconds=60)
    assert (client.failures, client.versions) == ([], {str(version)})
    runs = stage_runs(workflow)
    assert set(runs) == {*(stage.name for stage in RELEASE.flat()), "conclude"}
    seconds = {name: run["seconds"] for name, run in runs.items()}
    print(f"registered to served: {took:.0f} s, of which stages {sum(seconds.values()):.0f} s: {seconds}")


def test_the_container_that_handles_the_model_had_nothing_to_steal(lab: Lab) -> None:
    workflow = workflow_of(lab, MODEL, 1)
    pods = lab.kube.get("pod", lab.namespace, selector=f"workflows.argoproj.io/workflow={workflow}")
    sandboxed = {
        pod["metadata"]["labels"]["shiplift.dev/stages"]: pod
        for pod in pods
        if "shiplift.dev/sandbox" in pod["metadata"]["labels"]
    }
    assert set(sandboxed) == {"admit.find_targets.export.quantize.package.tune"}
    for pod in sandboxed.values():
        assert pod["status"]["phase"] == "Succeeded"
        containers = {container["name"]: container for container in pod["spec"]["containers"]}
        main, broker = containers["main"], containers["broker"]
        secret = {volume["name"] for volume in pod["spec"]["volumes"] if {"secret", "projected"} & set(volume)}
        assert secret & {mount["name"] for mount in broker["volumeMounts"]} == {"ledger"}
        assert secret & {mount["name"] for mount in main["volumeMounts"]} == set()
        assert "envFrom" not in main
        assert not [variable for variable in main["env"] if "secretKeyRef" in variable.get("valueFrom", {})]
        assert main["securityContext"]["readOnlyRootFilesystem"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["serviceAccountName"] == "shiplift-step"
        assert not lab.kube.exists("secret", lab.namespace, "shiplift-step.service-account-token")


@pytest.mark.slow
def test_nothing_fails_while_pods_controller_and_webhook_are_lost_on_the_way(lab: Lab) -> None:
    with traffic(lab) as client:
        with scaled(lab.kube, lab.namespace, "receiver", 0):
            version = lab.log_classifier(MODEL, samples=1100, spec=SPEC)
            name = until(
                lambda: [w for w in lab.workflows(MODEL) if f"-{version}-" in w["metadata"]["name"]], seconds=90
            )
            name = name[0]["metadata"]["name"]
        lost = pod_of(lab, name, "export")["metadata"]
        lab.kube("-n", lab.namespace, "delete", "pod", lost["name"], "--force", "--grace-period=0")
        pod_of(lab, name, "quantize")
        lab.kube("-n", "argo", "delete", "pod", "-l", "app=workflow-controller", "--force", "--grace-period=0")
        promoted(lab, MODEL, version)
        workflow = ended(lab, name)
        exports = pods_with(lab, name, "export")
        until(lambda: client.versions >= {"1", str(version)}, seconds=30)
        assert serving(lab) == {str(version)}
        promotion = json.loads(
            lab.kube.shiplift("rollback", MODEL, "--engine", "argo", "--namespace", lab.namespace, "--json").stdout
        )
        assert (promotion["version"], lab.registry.alias(MODEL, CHAMPION)) == (1, 1)
        until(lambda: serving(lab) == {"1"}, seconds=60)
    assert client.failures == []
    print(f"{client.sent} requests through a promotion and a rollback, none failed")
    finished = [pod["metadata"]["uid"] for pod in exports if pod["status"]["phase"] == "Succeeded"]
    assert finished
    assert lost["uid"] not in finished
    runs = stage_runs(workflow)
    assert runs["admit"]["cached"]  # the pod that was lost had finished it
    assert (runs["export"]["outcome"], runs["export"]["cached"]) == ("ok", False)
    assert workflow["metadata"]["annotations"]["shiplift.dev/trigger"] == "sweep"


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_a_registry_that_goes_away_during_a_stage_only_delays_it(lab: Lab) -> None:
    selector = lab.kube.get("service", lab.namespace, "mlflow")["spec"]["selector"]
    name = json.loads(rerun(lab, f"{MODEL}/2"))["name"]
    pod_of(lab, name, "admit")
    nobody = {"spec": {"selector": {**selector, "shiplift.dev/away": "true"}}}
    lab.kube("-n", lab.namespace, "patch", "service", "mlflow", "--type=merge", "-p", json.dumps(nobody))
    try:
        time.sleep(15)  # the length of the outage under test
    finally:
        back = [{"op": "remove", "path": "/spec/selector/shiplift.dev~1away"}]
        lab.kube("-n", lab.namespace, "patch", "service", "mlflow", "--type=json", "-p", json.dumps(back))
    assert ended(lab, name)["status"]["phase"] == "Succeeded"
    promoted(lab, MODEL, 2)
    assert lab.registry.alias(MODEL, PREVIOUS) == 1


def rerun(lab: Lab, name: str, *more: str) -> str:
    return lab.kube.shiplift("rerun", name, "--engine", "argo", "--namespace", lab.namespace, "--json", *more).stdout


def test_fifty_deliveries_over_two_replicas_one_of_which_is_killed_make_one_release(lab: Lab) -> None:
    secret = lab.kube.get("secret", lab.namespace, "shiplift-webhooks")["data"]["mlflow"]
    key = base64.b64decode(secret).decode().split()[0]
    pods = until(lambda: ready_receivers(lab), seconds=90)
    version = lab.log_classifier("many", spec=SPEC)
    body = json.dumps(
        {"entity": "model_version", "action": "created", "data": {"name": "many", "version": str(version)}}
    ).encode()

    def deliver(number: int) -> tuple[int, str]:
        delivery, sent = str(uuid.uuid4()), str(int(time.time()))
        signed = hmac.new(key.encode(), f"{delivery}.{sent}.".encode() + body, hashlib.sha256).digest()
        headers = {
            "X-MLflow-Signature": f"v1,{base64.b64encode(signed).decode()}",
            "X-MLflow-Delivery-Id": delivery,
            "X-MLflow-Timestamp": sent,
        }
        to = pods[number % 2]["status"]["podIP"]
        try:
            url = f"http://{to}:8080/webhooks/mlflow"
            answer = httpx.post(url, content=body, headers=headers, timeout=20, trust_env=False)
        except httpx.HTTPError as error:
            return 0, str(error)  # that replica is gone: MLflow would deliver it again
        return answer.status_code, answer.text

    with ThreadPoolExecutor(10) as pool:
        answers = [pool.submit(deliver, number) for number in range(50)]
        lab.kube("-n", lab.namespace, "delete", "pod", pods[0]["metadata"]["name"], "--force", "--grace-period=0")
    results = [answer.result() for answer in answers]
    assert {code for code, _ in results} <= {202, 0, 503}, results
    failed = [answer for answer in results[1::2] if answer[0] != 202]  # by the replica that was left alone
    assert [code for code, _ in results[1::2]] == [202] * 25, failed
    assert len(lab.workflows("many")) == 1


def ready_receivers(lab: Lab) -> Any:
    pods = lab.kube.get("pod", lab.namespace, selector="app.kubernetes.io/name=receiver")
    ready = [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
    ]
    return ready if len(ready) == 2 else None


@pytest.mark.slow
def test_two_versions_registered_together_end_with_the_newer_one(lab: Lab, tmp_path: Path) -> None:
    """The older one stays served for those who name it, since the spec says so."""
    target = "targets: [{name: cpu, engine: onnxruntime, precisions: [fp32]}]\n"
    both = f"{SPEC}{target}serving: {{version_policy: {{latest: 2}}}}\n"
    older, newer = (lab.log_classifier("pair", samples=samples, spec=both) for samples in (300, 1150))
    first, second = (ended(lab, workflow_of(lab, "pair", version)) for version in (older, newer))
    assert min(started(second)) >= first["status"]["finishedAt"]
    assert [tag(lab, "pair", version, "outcome") for version in (older, newer)] == ["promoted", "promoted"]
    assert lab.registry.alias("pair", CHAMPION) == newer
    assert serving(lab, "pair") == {str(newer)}

    images, _ = digits()
    learnt = {samples: lab.fitted[samples].predict(images) for samples in (300, 1150)}
    (differs,) = np.nonzero(learnt[300] != learnt[1150])
    np.savez(tmp_path / "images.npz", input=images[differs[:8]])
    engine = ArgoEngine(lab.namespace, lab.folder)
    for version, samples in ((None, 1150), (newer, 1150), (older, 300)):
        answer = engine.infer("pair", tmp_path / "images.npz", version=version)
        labels = [[int(label)] for label in learnt[samples][differs[:8]]]
        assert (answer.version, answer.outputs["label"]) == (version or newer, labels)
    client = traffic(lab, "pair")
    for path, version in (("", newer), (f"/versions/{newer}", newer), (f"/versions/{older}", older)):
        response = httpx.post(
            f"http://{client.gateway}:8000/v2/models/pair{path}/infer", json=client.body, trust_env=False, timeout=10
        )
        assert response.json()["model_version"] == str(version)


def started(workflow: Any) -> list[str]:
    """When each of a Workflow's pods started, in one format, so that they compare as text."""
    return [node["startedAt"] for node in workflow["status"]["nodes"].values() if node["type"] == "Pod"]


def submitted(lab: Lab, version: int, **site: Any) -> str:
    """Submits a Workflow with a changed site, as a hand-written one might have; returns its name."""
    engine = ArgoEngine(lab.namespace, lab.folder)
    changed = engine.site.model_copy(update={"place": engine.site.place.model_copy(update=site)})
    parameters = {
        "request": json.dumps({"model": MODEL, "version": version}),
        "trigger": "{}",
        "model": MODEL,
        "site": changed.model_dump_json(),
    }
    body = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {
            "name": f"release-{MODEL}-{version}-{uuid.uuid4().hex[:6]}",
            "namespace": lab.namespace,
            "labels": {"shiplift.dev/model": MODEL, "shiplift.dev/version": str(version)},
        },
        "spec": {
            "workflowTemplateRef": {"name": "release"},
            "arguments": {"parameters": [{"name": key, "value": value} for key, value in parameters.items()]},
        },
    }
    lab.kube.apply(body)
    return str(body["metadata"]["name"])  # type: ignore[index]


@pytest.fixture
def kube_env(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(lab.kube.kubeconfig))


@pytest.mark.slow
@pytest.mark.usefixtures("kube_env", "released")
def test_a_challenger_that_never_becomes_ready_leaves_the_champion_alone(lab: Lab) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    other = 1 if champion == 2 else 2
    with traffic(lab) as client:
        name = submitted(lab, other, server_image=ABSENT_IMAGE, ready_timeout_s=40)
        workflow = ended(lab, name)
    assert workflow["status"]["phase"] == "Failed"
    reason = tag(lab, MODEL, other, "reason")
    assert "did not become ready" in reason
    assert "nobody-has-this" in reason
    assert tag(lab, MODEL, other, "outcome") == "failed"
    messages = [node.get("message", "") for node in workflow["status"]["nodes"].values()]
    assert any("deploy: " in message and "did not become ready" in message for message in messages)
    assert [run["outcome"] for run in stage_runs(workflow).values() if run["name"] == "deploy"] == ["failed"]
    assert (client.failures, client.versions) == ([], {str(champion)})
    assert serving(lab) == {str(champion)}
    assert lab.registry.alias(MODEL, CHALLENGER) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_an_exhausted_quota_is_reported_and_nothing_is_left(lab: Lab) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    other = 1 if champion == 2 else 2
    short_of_quota(lab, other)
    assert "exceeded quota" in tag(lab, MODEL, other, "reason")
    assert serving(lab) == {str(champion)}


def short_of_quota(lab: Lab, version: int) -> str:
    """Releases a version while no more pods are allowed; the name of the Workflow, which failed."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": lab.serving},
        "spec": {"hard": {"pods": "0"}},  # running pods stay
    }
    lab.kube.apply(quota)
    try:
        until(lambda: "hard" in lab.kube.get("resourcequota", lab.serving, "full").get("status", {}), seconds=30)
        name = str(json.loads(rerun(lab, f"{MODEL}/{version}", "--allow-older"))["name"])
        assert ended(lab, name)["status"]["phase"] == "Failed"
    finally:
        lab.kube("-n", lab.serving, "delete", "resourcequota", "full")
    return name


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_argo_retry_goes_on_where_a_release_failed(lab: Lab) -> None:
    other = 1 if lab.registry.alias(MODEL, CHAMPION) == 2 else 2
    name = short_of_quota(lab, other)
    before = {node["id"]: node.get("finishedAt") for node in pods_of(lab, name, "prepare")}
    assert before
    argo(lab, "retry", name)
    assert ended(lab, name)["status"]["phase"] == "Succeeded"
    assert {node["id"]: node.get("finishedAt") for node in pods_of(lab, name, "prepare")} == before
    assert tag(lab, MODEL, other, "outcome") == "promoted"
    assert lab.registry.alias(MODEL, CHAMPION) == other
    until(lambda: serving(lab) == {str(other)}, seconds=60)


def pods_of(lab: Lab, name: str, template: str) -> list[Any]:
    """The pods of a template, from the Workflow's nodes."""
    nodes = lab.kube.get("workflow", lab.namespace, name)["status"]["nodes"].values()
    return [node for node in nodes if node["type"] == "Pod" and node.get("templateName") == template]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["admit", "tune", "deploy", "load_test"])
@pytest.mark.usefixtures("released")
def test_cancelled_in_a_stage_it_leaves_nothing_behind(lab: Lab, tmp_path: Path, stage: str) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    other = 1 if champion == 2 else 2
    spec = tmp_path / "shiplift.yaml"  # a load test that no earlier release has run, and that takes a while
    spec.write_text(SPEC.replace("open_loop_s: 0", "open_loop_s: 30, seed: 7"))
    name = json.loads(rerun(lab, f"{MODEL}/{other}", "--allow-older", "--spec", str(spec)))["name"]
    pod_of(lab, name, stage)
    lab.kube.shiplift("cancel", f"{MODEL}/{other}", "--engine", "argo", "--namespace", lab.namespace)
    assert ended(lab, name)["status"]["phase"] == "Failed"
    assert tag(lab, MODEL, other, "outcome") == "cancelled"
    assert lab.registry.alias(MODEL, CHAMPION) == champion
    until(lambda: serving(lab) == {str(champion)}, seconds=60)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["cancel", "abort", "argo stop", "kubectl"])
@pytest.mark.usefixtures("released")
def test_aborted_while_its_traffic_moves_the_champion_has_it_again(lab: Lab, command: str) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    other = 1 if champion == 2 else 2
    revision = service_of(lab)["spec"]["revision"]
    with traffic(lab) as client:
        name = json.loads(rerun(lab, f"{MODEL}/{other}", "--allow-older"))["name"]
        until(
            lambda: lab.kube.get("tritonservice", lab.serving, MODEL)["status"].get("weight") == 50, seconds=RELEASE_S
        )
        if command == "argo stop":
            argo(lab, "stop", name)
        elif command == "kubectl":
            patch = json.dumps({"spec": {"revision": revision}})
            lab.kube.run("-n", lab.serving, "patch", "tritonservice", MODEL, "--type=merge", "-p", patch)
        else:
            named = MODEL if command == "abort" else f"{MODEL}/{other}"
            why = ("--reason", "it looks wrong") if command == "abort" else ()
            lab.kube.shiplift(command, named, *why, "--engine", "argo", "--namespace", lab.namespace)
            assert service_of(lab)["status"]["version"] == champion
        ended(lab, name)
        until(lambda: serving(lab) == {str(champion)}, seconds=60)
    assert tag(lab, MODEL, other, "outcome") == "aborted"
    assert tag(lab, MODEL, other, "reason").startswith("aborted by ")
    assert lab.registry.alias(MODEL, CHAMPION) == champion
    assert client.failures == []


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_a_version_that_bakes_gives_the_traffic_back_when_an_alarm_is_raised(lab: Lab, tmp_path: Path) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    other = 1 if champion == 2 else 2
    spec = tmp_path / "shiplift.yaml"  # no answer takes so little time
    alarms = "[answers, {kind: p99, limit_ms: 0.001}]"
    spec.write_text(f"{SPEC}promotion: {{bake: {{for: 1h, alarms: {alarms}}}}}\n")
    with traffic(lab) as client:
        name = json.loads(rerun(lab, f"{MODEL}/{other}", "--allow-older", "--spec", str(spec)))["name"]
        until(lambda: "rolled back while baking" in json.dumps(service_of(lab).get("status", {})), seconds=RELEASE_S)
        until(lambda: serving(lab) == {str(champion)}, seconds=30)
        ended(lab, name)
        who = f"--as=system:serviceaccount:{lab.namespace}:shiplift-operator"
        patch = ("patch", "tritonservice", MODEL, "--type=merge", "-p", '{"spec": {"revision": "another"}}')
        refused = lab.kube.run("-n", lab.serving, *patch, who, check=False)  # it may only note how the bake went
        assert "may not change the spec of a TritonService" in refused.stderr
        until(lambda: lab.registry.alias(MODEL, CHAMPION) == champion, seconds=180)
        until(lambda: tag(lab, MODEL, other, "outcome") == "rolled back", seconds=60)
    assert tag(lab, MODEL, other, "reason").startswith("rolled back while baking: at least ")
    assert client.failures == []


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_a_version_shadows_the_champion_before_it_gets_traffic(lab: Lab, tmp_path: Path) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    other = 1 if champion == 2 else 2
    spec = tmp_path / "shiplift.yaml"
    spec.write_text(f"{SPEC}promotion: {{shadow: {{share: 0.5, for: 90s, min_requests: 10, if_fewer: refuse}}}}\n")
    with traffic(lab) as client:
        name = json.loads(rerun(lab, f"{MODEL}/{other}", "--allow-older", "--spec", str(spec)))["name"]
        until(lambda: copies(lab), seconds=RELEASE_S)
        assert service_of(lab)["status"]["version"] == champion
        ended(lab, name)
        until(lambda: not copies(lab), seconds=60)
    assert tag(lab, MODEL, other, "outcome") == "promoted", tag(lab, MODEL, other, "reason")
    assert client.failures == []


def copies(lab: Lab) -> list[str]:
    """Whom the model's gRPC route copies requests to."""
    route = json.loads(lab.kube("-n", lab.serving, "get", "grpcroute", MODEL, "-o", "json"))
    filters = [each for rule in route["spec"]["rules"] for each in rule.get("filters") or ()]
    return [each["requestMirror"]["backendRef"]["name"] for each in filters if each["type"] == "RequestMirror"]


@pytest.mark.slow
def test_a_version_waits_for_a_person_and_the_first_decision_counts(lab: Lab) -> None:
    model = "approved"
    where = ("--engine", "argo", "--namespace", lab.namespace)
    version = lab.log_classifier(model, spec=SPEC + "promotion: {approval: required}\n")
    until(lambda: tag(lab, model, version, "outcome") == "waiting for approval", seconds=RELEASE_S)
    assert ended(lab, workflow_of(lab, model, version))["status"]["phase"] == "Failed"
    assert serving(lab, model) == set()
    lab.kube.shiplift("approve", f"{model}/{version}", "--reason", "looked at it", *where)
    refused = lab.kube.shiplift("reject", f"{model}/{version}", *where, check=False)
    assert refused.returncode == AlreadyDecided.exit_code
    until(lambda: tag(lab, model, version, "outcome") == "promoted", seconds=RELEASE_S)
    assert tag(lab, model, version, "approval").endswith(": looked at it")
    assert lab.registry.alias(model, CHAMPION) == version


def deployments(lab: Lab) -> set[str]:
    return {deployment["metadata"]["name"] for deployment in lab.kube.get("deployment", lab.serving)}


@pytest.mark.slow
@pytest.mark.usefixtures("released")
def test_argos_own_commands_double_no_effect(lab: Lab) -> None:
    champion = lab.registry.alias(MODEL, CHAMPION)
    before = deployments(lab)
    request = json.dumps({"model": MODEL, "version": champion})
    workflow = argo(
        lab,
        "submit",
        "--from",
        "workflowtemplate/release",
        "-p",
        f"request={request}",
        "-p",
        "trigger={}",
        "-p",
        f"model={MODEL}",
        "-o",
        "name",
    ).strip()
    first = ended(lab, workflow.rsplit("/", 1)[-1])
    assert first["status"]["phase"] == "Succeeded"
    again = argo(lab, "resubmit", first["metadata"]["name"], "-o", "name").strip()
    assert ended(lab, again.rsplit("/", 1)[-1])["status"]["phase"] == "Succeeded"
    assert deployments(lab) == before
    assert lab.registry.alias(MODEL, CHAMPION) == champion


@pytest.mark.usefixtures("released")
def test_pods_of_steps_have_no_more_rights_than_they_need(lab: Lab) -> None:
    name = workflow_of(lab, MODEL, lab.registry.alias(MODEL, CHAMPION))
    for pod in lab.kube.get("pod", lab.namespace, selector=f"workflows.argoproj.io/workflow={name}"):
        (main,) = [container for container in pod["spec"]["containers"] if container["name"] == "main"]
        token = any("serviceaccount" in mount["mountPath"] for mount in main["volumeMounts"])
        stages = pod["metadata"]["labels"]["shiplift.dev/stages"]
        assert token == (stages in ("find_champion", "deploy.load_test.shadow.gate.promote", "conclude"))
        assert main["securityContext"]["readOnlyRootFilesystem"]
