"""`shiplift install` and `uninstall` on a real cluster, in their own namespaces beside the session's."""

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from shiplift.pipelines.engines.argo.layout import REGISTRY_ADMIN
from shiplift.pipelines.installation import accounts
from shiplift.runtime.base.errors import ClusterUnreachable, NotFound, ServerFailed
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.records.site import Cluster
from shiplift.runtime.serving.kubernetes.objects.deployment import deployment
from shiplift.runtime.serving.kubernetes.objects.names import REGISTRY_READER
from tests.cluster.conftest import Kube, of_this_machine, small_values, until
from tests.unit.examples import package

NAME = "shiplift-install"
SERVING = f"{NAME}-serving"


@dataclass
class Place:
    """An installation that these tests may change at will."""

    kube: Kube
    folder: Path
    values: dict[str, Any]

    def write(self, **change: Any) -> Path:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(self.values | change))
        return file

    def install(self, *words: str, **change: Any) -> "subprocess.CompletedProcess[str]":
        return self.kube.shiplift("install", "--values", str(self.write(**change)), "--timeout", "200", *words)

    def changes(self, *words: str, **change: Any) -> dict[str, str]:
        """The changes that `install` reports, by object."""
        done = json.loads(self.install("--json", *words, **change).stdout)
        return {entry["object"]: entry["change"] for entry in done["objects"] if entry["change"] != "unchanged"}

    def versions(self) -> dict[str, str]:
        """The version of each of our objects, except kinds whose status changes it, such as pods."""
        kinds = "configmap,secret,service,serviceaccount,role,rolebinding,networkpolicy,workflowtemplate"
        bodies = [body for namespace in (NAME, SERVING) for body in self.kube.get(kinds, namespace)]
        return {f"{body['kind']}/{body['metadata']['name']}": body["metadata"]["resourceVersion"] for body in bodies}

    def mlflow(self, path: str, method: str = "GET", **options: Any) -> httpx.Response:
        """MLflow's response to its administrator, or with `auth=None` to somebody without an account."""
        at = f"http://{self.kube.service(NAME, 'mlflow')}:5000{path}"
        options = {"auth": self.kube.credentials(NAME, REGISTRY_ADMIN)} | options
        return httpx.request(method, at, trust_env=False, timeout=60, **options)

    def ask(self, namespace: str, method: str, path: str, body: Any = None, *, labels: Any = None) -> int:
        """The status that a fresh pod of ours in a namespace gets from MLflow; it has no credentials."""
        request = f"urllib.request.Request({f'http://mlflow.{NAME}.svc:5000{path}'!r}, method={method!r}"
        request += (
            f", data={json.dumps(body).encode()!r}, headers={{'Content-Type': 'application/json'}})" if body else ")"
        )
        program = (
            "import urllib.request, urllib.error\n"
            f"try: print(urllib.request.urlopen({request}, timeout=30).status)\n"
            "except urllib.error.HTTPError as error: print(error.code)"
        )
        name = f"asks-{secrets.token_hex(4)}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 10001,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "main",
                        "image": self.image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["python", "-c", program],
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }
        self.kube.apply(pod)
        try:
            until(lambda: self._ended(namespace, name), seconds=90)
            return int(self.kube("-n", namespace, "logs", name).split()[-1])
        finally:
            self.kube("-n", namespace, "delete", "pod", name, "--wait=false")

    def _ended(self, namespace: str, name: str) -> bool:
        return self.kube.get("pod", namespace, name)["status"].get("phase") in ("Succeeded", "Failed")

    @property
    def image(self) -> str:
        (container,) = self.kube.get("deployment", NAME, "receiver")["spec"]["template"]["spec"]["containers"]
        return str(container["image"])

    def rights(self, account: str, namespace: str) -> dict[str, list[str]]:
        """What an account may do in a namespace, by resource, beyond what every account may: to ask who it is."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        who = f"system:serviceaccount:{NAME}:{account}"
        groups = [f"--as-group=system:serviceaccounts:{NAME}", "--as-group=system:authenticated"]
        words = ("create", "--validate=false", "-f", "-", "-o", "json", "--as", who, *groups)
        rights: dict[str, list[str]] = {}
        for rule in json.loads(self.kube(*words, stdin=json.dumps(review)))["status"]["resourceRules"]:
            if not {"authentication.k8s.io", "authorization.k8s.io"} & set(rule["apiGroups"]):
                for resource in rule["resources"]:
                    rights[resource] = sorted({*rights.get(resource, []), *rule["verbs"]})
        return rights

    def try_as(self, account: str, body: Any) -> "subprocess.CompletedProcess[str]":
        """Creates an object with an account's own token, as whoever takes over its pod could."""
        token = self.kube("-n", NAME, "create", "token", account).strip()
        config = yaml.safe_load(self.kube.kubeconfig.read_text())
        for entry in config["users"]:
            entry["user"] = {"token": token}
        file = self.folder / f"{account}.kubeconfig"
        file.write_text(yaml.safe_dump(config))
        return Kube(file, here=False).run(
            "create", "--validate=false", "-f", "-", stdin=yaml.safe_dump(body), check=False
        )

    def can(self, account: str, verb: str, resource: str, namespace: str) -> bool:
        who = f"system:serviceaccount:{NAME}:{account}"
        return self.kube.run("auth", "can-i", verb, resource, "-n", namespace, "--as", who, check=False).returncode == 0


@pytest.fixture(scope="module")
def place(kube: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if kube.exists("namespace", "default", NAME):  # left by an interrupted run
        kube.shiplift("uninstall", "--namespace", NAME, "--data")
    place = Place(kube, tmp_path_factory.mktemp("install"), small_values(NAME, None, gateway=False))
    place.install()
    yield place
    kube.shiplift("uninstall", "--namespace", NAME, "--data", check=False)


def test_everything_runs_when_install_returns(place: Place) -> None:
    for name, replicas in (("mlflow", 1), ("receiver", 2), ("operator", 1), ("reconciler", 1)):
        status = place.kube.get("deployment", NAME, name)["status"]
        assert (status["availableReplicas"], status["updatedReplicas"]) == (replicas, replicas)
    names = {template["metadata"]["name"] for template in place.kube.get("workflowtemplate", NAME)}
    assert {"release", "rollback", "conclude", "git-push"} <= names
    receiver = f"http://{place.kube.service(NAME, 'receiver')}"
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/webhooks/mlflow", 405)):
        assert httpx.get(receiver + path, trust_env=False).status_code == status
    assert httpx.post(f"{receiver}/webhooks/mlflow", json={}, trust_env=False).status_code == 401


def test_mlflow_announces_new_versions_to_the_receiver(place: Place) -> None:
    def webhooks() -> list[Any]:
        return list(place.mlflow("/api/2.0/mlflow/webhooks").json().get("webhooks", []))

    (webhook,) = until(webhooks, seconds=60)
    assert webhook["url"] == f"http://receiver.{NAME}.svc/webhooks/mlflow"
    at = f"/api/2.0/mlflow/webhooks/{webhook['webhook_id']}/test"
    result = until(lambda: _passed(place, at), seconds=60)  # its secret may reach the receivers' files a minute later
    assert result["response_status"] == 200


def _passed(place: Place, at: str) -> Any:
    result = place.mlflow(at, "POST", json={}).json().get("result", {})
    return result if result.get("success") else None


def revision(**package: Any) -> Any:
    fields = {"model": "digits", "version": 1, "repository": {"sha256": "0" * 64}, **package}
    spec = {"artifactsUri": "mlflow-artifacts://mlflow:5000/0/shiplift", "package": fields}
    meta = {"name": "digits-1-00000000", "namespace": SERVING}
    return {"apiVersion": "shiplift.dev/v1alpha1", "kind": "TritonRevision", "metadata": meta, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"revision": "x"}, "spec.model: Required value"),
        ({"model": "m", "revision": "x", "replicas": 0}, "should be greater than or equal to 1"),
        ({"model": "m", "revision": "x", "rollout": {"canaryPercent": [50, 10]}}, "each share must be larger"),
        ({"model": "m", "revision": "x", "rollout": {"canaryPercent": [10, 10]}}, "each share must be larger"),
        ({"model": "m", "revision": "x", "rollout": {"canaryPercent": [100]}}, "should be less than or equal to 99"),
    ],
)
def test_a_service_that_makes_no_sense_is_refused_when_it_is_written(place: Place, spec: Any, message: str) -> None:
    meta = {"name": "digits", "namespace": SERVING}
    body = {"apiVersion": "shiplift.dev/v1alpha1", "kind": "TritonService", "metadata": meta, "spec": spec}
    done = place.kube.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(body), check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_revision_keeps_its_package_and_kubectl_explains_the_fields(place: Place) -> None:
    place.kube.apply(revision())
    changed = revision(repository={"sha256": "1" * 64})
    done = place.kube.run("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(changed), check=False)
    assert "a revision keeps its package" in done.stderr
    assert place.kube.get("tr", SERVING)[0]["spec"]["package"]["repository"]["sha256"] == "0" * 64
    more = revision()
    more["spec"]["otherGroups"] = [{"package": {**more["spec"]["package"], "target": "slow"}}]
    done = place.kube.run("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(more), check=False)
    assert "a revision keeps its groups' packages" in done.stderr
    place.kube("-n", SERVING, "delete", "tr", "digits-1-00000000")
    assert "from the smallest to the largest" in place.kube("explain", "tritonservice.spec.rollout.canaryPercent")


def test_another_host_s_name_is_refused_by_mlflow(place: Place) -> None:
    assert place.mlflow("/api/2.0/mlflow/webhooks", headers={"Host": "evil.example.org"}).status_code == 403
    assert place.mlflow("/api/2.0/mlflow/webhooks", headers={"Host": f"mlflow.{NAME}.svc:5000"}).status_code == 200


def test_a_second_installation_changes_nothing(place: Place) -> None:
    before = place.versions()
    assert place.changes() == {}
    assert place.versions() == before


def test_a_dry_run_says_what_would_change_and_changes_nothing(place: Place) -> None:
    before = place.versions()
    assert place.changes("--dry-run", receiver={"replicas": 3}) == {f"Deployment {NAME}/receiver": "configured"}
    done = place.install("--dry-run", receiver={"replicas": 3})
    printed = list(yaml.safe_load_all(done.stdout))
    (receiver,) = (body for body in printed if (body["kind"], body["metadata"]["name"]) == ("Deployment", "receiver"))
    assert receiver["spec"]["replicas"] == 3
    assert f"would be configured: Deployment {NAME}/receiver" in done.stderr
    assert place.versions() == before
    assert place.kube.get("deployment", NAME, "receiver")["spec"]["replicas"] == 2


def test_rendered_files_are_what_the_cluster_has(place: Place, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(place.values))
    place.kube.shiplift("render", str(tmp_path / "out"), "--values", str(tmp_path / "values.yaml"))
    place.kube("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", str(tmp_path / "out"))
    assert "Opaque" not in "".join(file.read_text() for file in (tmp_path / "out").iterdir())


def test_pods_have_no_privileges_and_write_nowhere_but_to_their_volumes(place: Place) -> None:
    pods = place.kube.get("pods", NAME, selector="app.kubernetes.io/part-of=shiplift")
    assert len(pods) >= 4
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        for container in pod["spec"]["containers"]:
            context = container["securityContext"]
            assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
            assert context["capabilities"] == {"drop": ["ALL"]}
    inside = ("-n", NAME, "exec", "deploy/mlflow", "--")
    assert place.kube(*inside, "id", "-u").strip() == "10001"
    for path in ("/x", "/opt/shiplift/x", "/etc/x"):
        refused = place.kube.run(*inside, "touch", path, check=False)
        assert refused.returncode != 0
        assert "Read-only file system" in refused.stderr
    place.kube(*inside, "touch", "/tmp/x", "/data/x")
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    assert place.kube.run(*inside, "test", "-e", token, check=False).returncode == 1


@pytest.mark.parametrize("namespace", [NAME, SERVING])
def test_a_pod_with_privileges_is_not_admitted(place: Place, namespace: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root", "namespace": namespace},
        "spec": {"containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}]},
    }
    done = place.kube.run("apply", "-f", "-", stdin=yaml.safe_dump(body), check=False)
    assert "violates PodSecurity" in done.stderr


def test_each_account_may_do_what_its_part_needs_and_no_more(place: Place) -> None:
    may = [
        ("shiplift-executor", "patch", "workflowtaskresults", NAME),
        ("shiplift-release", "create", "deployments", SERVING),
        ("shiplift-release", "patch", "tritonservices.shiplift.dev", SERVING),
        ("shiplift-operator", "patch", "tritonservices.shiplift.dev", SERVING),  # its notes: a policy holds the spec
        ("shiplift-operator", "patch", "httproutes.gateway.networking.k8s.io", SERVING),
        ("shiplift-operator", "create", "deployments", SERVING),
        ("shiplift-release", "get", "workflows", NAME),
        ("shiplift-receiver", "create", "workflows", NAME),
        ("shiplift-reconciler", "list", "pods", NAME),
    ]
    never = [
        ("shiplift-step", "get", "pods", NAME),
        ("shiplift-step", "create", "deployments", SERVING),
        ("shiplift-mlflow", "get", "secrets", NAME),
        ("shiplift-executor", "get", "secrets", NAME),
        ("shiplift-release", "get", "secrets", SERVING),
        ("shiplift-release", "create", "deployments", NAME),
        ("shiplift-release", "create", "pods", SERVING),
        ("shiplift-release", "patch", "httproutes.gateway.networking.k8s.io", SERVING),
        ("shiplift-operator", "create", "tritonservices.shiplift.dev", SERVING),
        ("shiplift-operator", "create", "pods", SERVING),
        ("shiplift-operator", "get", "secrets", SERVING),
        ("shiplift-operator", "list", "pods", NAME),
        ("shiplift-receiver", "create", "deployments", SERVING),
        ("shiplift-receiver", "delete", "workflows", NAME),
        ("shiplift-receiver", "get", "secrets", NAME),
        ("shiplift-reconciler", "create", "deployments", SERVING),
        ("shiplift-reconciler", "list", "pods", SERVING),
    ]
    assert [rights for rights in may if not place.can(*rights)] == []
    assert [rights for rights in never if place.can(*rights)] == []


# --- accounts of the registry, and what the API server lets the pipeline's accounts create ---------------------------

MOVE = {"name": "digits", "alias": "champion", "version": "2"}


@pytest.mark.parametrize(
    ("namespace", "labels"),
    [("default", {}), (SERVING, {"app.kubernetes.io/name": "triton"}), (NAME, {"app.kubernetes.io/name": "receiver"})],
)
def test_without_an_account_no_pod_reads_or_moves_champion(place: Place, namespace: str, labels: Any) -> None:
    registered = "/api/2.0/mlflow/registered-models"
    if place.mlflow(f"{registered}/get", params={"name": "digits"}).status_code == 404:
        place.mlflow(f"{registered}/create", "POST", json={"name": "digits"})
        for _ in range(2):
            version = {"name": "digits", "source": "s3://nowhere/x"}
            assert place.mlflow("/api/2.0/mlflow/model-versions/create", "POST", json=version).is_success
        champion = {**MOVE, "version": "1"}
        assert place.mlflow(f"{registered}/alias", "POST", json=champion).is_success
    assert place.ask(namespace, "POST", f"{registered}/alias", MOVE, labels=labels) == 401
    assert place.ask(namespace, "GET", f"{registered}/search", labels=labels) == 401
    model = place.mlflow(f"{registered}/get", params={"name": "digits"}).json()["registered_model"]
    assert [(alias["alias"], alias["version"]) for alias in model["aliases"]] == [("champion", "1")]


def test_what_a_serving_pod_gets_reads_and_moves_nothing(place: Place) -> None:
    reader = place.kube.credentials(SERVING, REGISTRY_READER)
    assert reader == place.kube.credentials(NAME, REGISTRY_READER)
    assert place.mlflow("/api/2.0/mlflow/registered-models/search", auth=reader).status_code == 200
    assert place.mlflow("/api/2.0/mlflow/registered-models/alias", "POST", auth=reader, json=MOVE).status_code == 403


def test_a_person_gets_an_account_of_their_own(place: Place) -> None:
    password = place.kube.account(NAME, "ana")
    path = "/api/2.0/mlflow/registered-models"
    assert place.mlflow(f"{path}/create", "POST", auth=("ana", password), json={"name": "ana's"}).status_code == 200
    assert place.mlflow(f"{path}/alias", "POST", auth=("ana", password), json=MOVE).status_code == 403


def a_deployment(place: Place, **pod: Any) -> Any:
    """What a release creates in the serving namespace, or with changes in its pod, what it should not."""
    cluster = Cluster(namespace=NAME, serving_namespace=SERVING, server_image="localhost/shiplift-server:dev")
    body = deployment(cluster, package(), "mlflow-artifacts://mlflow:5000/0/shiplift", name="x", replicas=0, extra={})
    body["metadata"]["namespace"] = SERVING
    spec = body["spec"]["template"]["spec"]
    container = {**spec["containers"][0], **pod.pop("container", {})}
    more = {"volumes": [*spec["volumes"], *pod.pop("volumes", [])], "containers": [container]}
    spec.update(pod, **more)
    return body


FOREIGN = {"name": "stolen", "secret": {"secretName": "foreign"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"volumes": [FOREIGN]}, "may only mount empty folders: no Secret"),
        ({"volumes": [{"name": "x", "projected": {"sources": [{"secret": {"name": "foreign"}}]}}]}, "no Secret"),
        ({"container": {"envFrom": [{"secretRef": {"name": "foreign"}}]}}, "servers here may not have credentials"),
        (
            {"container": {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "foreign", "key": "x"}}}]}},
            "may not take variables from a Secret",
        ),
        ({"container": {"image": "example.org/evil:1"}}, "may not run the image example.org/evil:1 here"),
        ({"serviceAccountName": "other"}, "may not have an account or a token"),
        ({"automountServiceAccountToken": True}, "may not have an account or a token"),
    ],
)
@pytest.mark.parametrize("account", ["shiplift-release", "shiplift-operator"])
def test_no_account_creates_a_pod_that_could_take_a_secret(
    place: Place, account: str, change: dict[str, Any], message: str
) -> None:
    refused = place.try_as(account, a_deployment(place, **change))
    assert refused.returncode != 0
    assert "denied" in refused.stderr
    assert message in refused.stderr


@pytest.mark.parametrize("account", ["shiplift-release", "shiplift-operator"])
def test_what_a_release_and_the_operator_create_is_admitted(place: Place, account: str) -> None:
    done = place.try_as(account, a_deployment(place))
    assert done.returncode == 0, done.stderr
    place.kube("-n", SERVING, "delete", "deployment", "x", "--ignore-not-found")  # the operator may have been quicker


def test_a_receiver_starts_our_templates_and_defines_no_pod(place: Place) -> None:
    def workflow(**spec: Any) -> Any:
        return {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"name": "x", "namespace": NAME},
            "spec": spec,
        }

    own = workflow(entrypoint="x", templates=[{"name": "x", "container": {"image": "x", "command": ["x"]}}])
    refused = place.try_as("shiplift-receiver", own)
    assert "name a WorkflowTemplate and its arguments" in refused.stderr
    patched = workflow(
        workflowTemplateRef={"name": "release"}, podSpecPatch='{"serviceAccountName": "shiplift-release"}'
    )
    assert "name a WorkflowTemplate and its arguments" in place.try_as("shiplift-receiver", patched).stderr
    foreign = workflow(workflowTemplateRef={"name": "other"})
    assert "may only start the WorkflowTemplates" in place.try_as("shiplift-receiver", foreign).stderr


WATCH, WRITE = ["get", "list", "watch"], ["create", "patch", "delete"]
# Every right of every account in our namespaces. A new one is a decision.
RIGHTS: dict[str, dict[str, dict[str, list[str]]]] = {
    "shiplift-mlflow": {},
    "shiplift-step": {},
    "shiplift-executor": {NAME: {"workflowtaskresults": ["create", "patch"]}},
    "shiplift-tune": {SERVING: {"pods": ["get", "create", "delete"]}},
    "shiplift-receiver": {NAME: {"workflows": ["get", "list", "create", "patch"], "workflowtemplates": ["get"]}},
    "shiplift-reconciler": {
        NAME: {
            "workflows": ["get", "list", "create", "patch"],
            "workflowtemplates": ["get"],
            "pods": ["get", "list"],
            "events": ["get", "list"],
        },
        SERVING: {"tritonservices": ["list"], "configmaps": ["get", "patch"]},
    },
    "shiplift-release": {
        NAME: {"workflows": ["get", "patch"]},
        SERVING: {
            "deployments": [*WATCH, *WRITE],
            "services": [*WATCH, *WRITE],
            "poddisruptionbudgets": [*WATCH, *WRITE],
            "tritonservices": [*WATCH, *WRITE],
            "tritonrevisions": ["get", "list", "create", "patch", "delete"],
            "grpcroutes": ["get"],
            "leases": ["get", "create", "update"],
            "events": ["get", "list"],
            "pods": ["get", "list", "delete"],
        },
    },
    "shiplift-operator": {
        "default": {"nodes": ["list"]},
        "kube-system": {"nodes": ["list"]},
        NAME: {"nodes": ["list"], "pods": ["get"]},
        SERVING: {
            "nodes": ["list"],
            "configmaps": [*WATCH, *WRITE],
            "horizontalpodautoscalers": [*WATCH, *WRITE],
            "scaledobjects": [*WATCH, *WRITE],
            "podmonitors": [*WATCH, *WRITE],
            "prometheusrules": [*WATCH, *WRITE],
            "tritonservices": [*WATCH, "patch"],  # its notes: an admission policy keeps the spec as it is
            "tritonrevisions": [*WATCH, "delete"],
            "tritonservices/status": ["get", "patch"],
            "deployments": [*WATCH, *WRITE],
            "services": [*WATCH, *WRITE],
            "poddisruptionbudgets": [*WATCH, *WRITE],
            "endpointslices": [*WATCH, *WRITE],
            "endpointslices/restricted": ["create"],
            "httproutes": [*WATCH, *WRITE],
            "grpcroutes": [*WATCH, *WRITE],
            "gateways": ["get"],
            "backendtrafficpolicies": [*WATCH, *WRITE],
            "pods": [*WATCH, "patch", "delete"],
            "events": ["create", "patch"],
            "leases": ["get", "create", "update"],
        },
    },
}


@pytest.mark.parametrize("account", RIGHTS)
def test_an_account_has_these_rights_and_no_other(place: Place, account: str) -> None:
    for namespace in (NAME, SERVING, "default", "kube-system"):
        expected = {key: sorted(verbs) for key, verbs in RIGHTS[account].get(namespace, {}).items()}
        assert place.rights(account, namespace) == expected


def test_a_cluster_that_is_not_there_has_its_own_exit_code(kube: Kube, tmp_path: Path) -> None:
    body = yaml.safe_load(kube.kubeconfig.read_text())
    body["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    (tmp_path / "config").write_text(yaml.safe_dump(body))
    nowhere = Kube(tmp_path / "config", here=False)
    for words in (("install",), ("uninstall",)):
        assert nowhere.shiplift(*words, check=False).returncode == ClusterUnreachable.exit_code


def test_what_is_not_installed_can_not_be_removed(kube: Kube) -> None:
    done = kube.shiplift("uninstall", "--namespace", "nowhere", check=False)
    assert done.returncode == NotFound.exit_code
    assert "is not installed in the namespace 'nowhere'" in done.stderr


# --- upgrades: each continues from the one before, since each replaces pods ------------------------------------------


def secrets_of(place: Place) -> dict[str, dict[str, str]]:
    names = ("shiplift-ledger", "shiplift-webhooks", "shiplift-mlflow", "shiplift-registry-admin")
    return {name: place.kube.get("secret", NAME, name)["data"] for name in names}


def test_an_upgrade_changes_what_it_reports_and_neither_reveals_nor_regenerates_a_secret(place: Place) -> None:
    before = secrets_of(place)
    file = place.write(
        repositories=[{"name": "team/models", "host": "github", "url": "https://git.example.org/x"}],
        serving=place.values["serving"] | {"quota": {"pods": "50"}},
    )
    done = place.kube.shiplift("install", "--values", str(file), "--timeout", "200")
    assert f"created: ResourceQuota {SERVING}/shiplift" in done.stderr
    assert f"configured: Deployment {NAME}/receiver" in done.stderr
    assert f"Deployment {NAME}/mlflow" not in done.stderr
    assert f"created: ConfigMap {NAME}/shiplift-git-commits" in done.stderr
    for name, answer in (("shiplift-git-commits", "yes"), ("shiplift-config", "no")):
        words = ("auth", "can-i", "patch", f"configmap/{name}", "-n", NAME)
        who = f"system:serviceaccount:{NAME}:shiplift-reconciler"
        assert place.kube.run(*words, "--as", who, check=False).stdout.strip() == answer
    after = secrets_of(place)
    assert set(after["shiplift-webhooks"]) == {"mlflow", "github"}  # a key that was missing
    assert all(after[name].items() >= before[name].items() for name in before)
    visible = done.stdout + done.stderr
    visible += "".join(str(deployment["spec"]) for deployment in place.kube.get("deployment", NAME))
    hidden = {key: value for keys in after.values() for key, value in keys.items() if key != accounts.USERNAME}
    assert not any(base64.b64decode(value).decode() in visible for value in hidden.values())


def test_an_image_that_does_not_exist_is_reported_and_obsolete_objects_are_deleted(place: Place) -> None:
    file = place.write(images={**place.values["images"], "pipeline": "localhost/nowhere:none"})
    done = place.kube.shiplift("install", "--values", str(file), "--timeout", "15", check=False)
    assert done.returncode == ServerFailed.exit_code
    assert "is not ready after 15 s" in done.stderr
    assert "localhost/nowhere:none" in done.stderr
    assert f"deleted: ResourceQuota {SERVING}/shiplift" in done.stderr
    assert not place.kube.exists("resourcequota", SERVING, "shiplift")
    assert place.kube.get("deployment", NAME, "receiver")["status"]["availableReplicas"] == 2  # the old ones


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


@pytest.fixture
def postgresql(kube: Kube) -> Iterator[str]:
    """The URI of a database in a PostgreSQL on this machine, which pods reach at the node's address."""
    address = kube("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[0].address}")
    if not of_this_machine(address):
        pytest.skip("pods of another machine don't reach a database here")
    programs = _postgresql_programs()
    at, port, password = Path(tempfile.mkdtemp()), free_port(), secrets.token_hex(16)
    shutil.chown(at, "postgres", "postgres")
    (at / "password").write_text(password)
    (at / "password").chmod(0o644)
    folder = at / "data"
    _as_postgres(programs / "initdb", "-D", folder, "-A", "scram-sha-256", "--pwfile", at / "password")
    with (folder / "pg_hba.conf").open("a") as rules:
        rules.write("host all all 0.0.0.0/0 scram-sha-256\n")
    control = (programs / "pg_ctl", "-D", folder, "-l", at / "log", "-w", "-t", "60")
    _as_postgres(*control, "-o", f"-h {address} -p {port} -k {at}", "start")
    try:
        environment = {**os.environ, "PGPASSWORD": password}
        where = ["-h", address, "-p", str(port), "-U", "postgres"]
        subprocess.run([programs / "createdb", *where, "mlflow"], check=True, env=environment, timeout=60)
        yield f"postgresql://postgres:{password}@{address}:{port}/mlflow"
    finally:
        _as_postgres(*control, "-m", "immediate", "stop")
        shutil.rmtree(at)


def _as_postgres(*words: str | Path) -> None:
    done = subprocess.run(
        ["runuser", "-u", "postgres", "--", *words], stdout=subprocess.DEVNULL, check=False, timeout=90, cwd="/"
    )
    assert done.returncode == 0, f"{words[0]} failed"


def _postgresql_programs() -> Path:
    def installed() -> list[Path]:
        return sorted(Path("/usr/lib/postgresql").glob("*/bin"))

    if not installed() and shutil.which("apt-get"):
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"],
                env=quiet,
                check=False,
                timeout=180,
                capture_output=True,
            )
    if not installed():
        pytest.skip("PostgreSQL is not here and can't be installed")
    return installed()[-1]


@pytest.mark.slow
def test_mlflow_on_postgresql_outlives_its_pod(place: Place, postgresql: str) -> None:
    host, _, port = postgresql.rpartition("@")[2].split("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "pg", "namespace": NAME},
        "stringData": {"uri": postgresql},
    }
    place.kube.apply(body)
    database = {"kind": "postgresql", "secret": "pg", "port": int(port)}
    mlflow = place.values["mlflow"] | {"database": database}
    assert place.changes(mlflow=mlflow)[f"Deployment {NAME}/mlflow"] == "configured"
    created = place.mlflow("/api/2.0/mlflow/registered-models/create", "POST", json={"name": "kept"})
    assert created.status_code == 200
    place.kube("-n", NAME, "delete", "pod", "-l", "app.kubernetes.io/name=mlflow", "--wait=true")
    place.kube("-n", NAME, "rollout", "status", "deployment/mlflow", "--timeout=150s")
    model = until(lambda: _model(place, "kept"), seconds=60)
    assert model["name"] == "kept"
    password = httpx.URL(postgresql).password
    assert password not in str(place.kube.get("pods", NAME))
    assert password not in place.kube("-n", NAME, "logs", "deployment/mlflow")


def _model(place: Place, name: str) -> Any:
    with contextlib.suppress(httpx.HTTPError):
        return place.mlflow("/api/2.0/mlflow/registered-models/get", params={"name": name}).json()["registered_model"]
    return None


# --- uninstall -----------------------------------------------------------------------------------------------------


def test_uninstall_keeps_data_and_secrets_and_with_data_removes_everything(place: Place) -> None:
    secret = place.kube.get("secret", NAME, "shiplift-ledger")["data"]
    removed = json.loads(place.kube.shiplift("uninstall", "--namespace", NAME, "--json").stdout)
    assert f"Secret {NAME}/shiplift-ledger" in removed["kept"]
    assert not place.kube.exists("namespace", "default", SERVING)
    left = place.kube.get("all,configmap,role,rolebinding,networkpolicy,workflowtemplate", NAME)
    assert [body["metadata"]["name"] for body in left if body["metadata"]["name"] != "kube-root-ca.crt"] == []
    again = json.loads(place.install("--dry-run", "--json").stdout)["objects"]
    assert {"object": f"Secret {NAME}/shiplift-ledger", "change": "unchanged"} in again
    assert place.kube.get("secret", NAME, "shiplift-ledger")["data"] == secret
    place.kube.shiplift("uninstall", "--namespace", NAME, "--data")
    for name in (NAME, SERVING):
        assert not place.kube.exists("namespace", "default", name)
