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

from shiplift.runtime.base.errors import ClusterUnreachable, NotFound, ServerFailed
from shiplift.runtime.host.processes import free_port
from tests.cluster.conftest import Kube, of_this_machine, small_values, until

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

    def mlflow(self, path: str, **options: Any) -> httpx.Response:
        at = f"http://{self.kube.service(NAME, 'mlflow')}:5000{path}"
        return httpx.get(at, trust_env=False, timeout=30, **options)

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
    for name, replicas in (("mlflow", 1), ("receiver", 2), ("reconciler", 1)):
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
    at = f"http://{place.kube.service(NAME, 'mlflow')}:5000/api/2.0/mlflow/webhooks/{webhook['webhook_id']}/test"
    result = until(lambda: _passed(at), seconds=60)  # its secret may reach the receivers' files a minute later
    assert result["response_status"] == 200


def _passed(at: str) -> Any:
    result = httpx.post(at, json={}, trust_env=False, timeout=30).json().get("result", {})
    return result if result.get("success") else None


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
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root", "namespace": namespace},
        "spec": {"containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}]},
    }  # fmt: skip
    done = place.kube.run("apply", "-f", "-", stdin=yaml.safe_dump(body), check=False)
    assert "violates PodSecurity" in done.stderr


def test_each_account_may_do_what_its_part_needs_and_no_more(place: Place) -> None:
    may = [
        ("shiplift-executor", "patch", "workflowtaskresults", NAME),
        ("shiplift-release", "create", "deployments", SERVING),
        ("shiplift-release", "patch", "httproutes.gateway.networking.k8s.io", SERVING),
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
        ("shiplift-receiver", "create", "deployments", SERVING),
        ("shiplift-receiver", "delete", "workflows", NAME),
        ("shiplift-receiver", "get", "secrets", NAME),
        ("shiplift-reconciler", "create", "deployments", SERVING),
        ("shiplift-reconciler", "list", "pods", SERVING),
    ]
    assert [rights for rights in may if not place.can(*rights)] == []
    assert [rights for rights in never if place.can(*rights)] == []


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
    assert "is not in the namespace 'nowhere'" in done.stderr


# --- upgrades: each continues from the one before, since each replaces pods ------------------------------------------


def secrets_of(place: Place) -> dict[str, dict[str, str]]:
    names = ("shiplift-ledger", "shiplift-webhooks", "shiplift-mlflow")
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
    after = secrets_of(place)
    assert set(after["shiplift-webhooks"]) == {"mlflow", "github"}  # a key that was missing
    assert all(after[name].items() >= before[name].items() for name in before)
    visible = done.stdout + done.stderr
    visible += "".join(str(deployment["spec"]) for deployment in place.kube.get("deployment", NAME))
    assert not any(base64.b64decode(value).decode() in visible for keys in after.values() for value in keys.values())


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
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "postgresql"], env=quiet, check=False,
                timeout=180, capture_output=True,
            )  # fmt: skip
    if not installed():
        pytest.skip("PostgreSQL is not here and can't be installed")
    return installed()[-1]


def test_mlflow_on_postgresql_outlives_its_pod(place: Place, postgresql: str) -> None:
    host, _, port = postgresql.rpartition("@")[2].split("/")[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=5):
        pass
    body = {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pg", "namespace": NAME},
        "stringData": {"uri": postgresql},
    }  # fmt: skip
    place.kube.apply(body)
    database = {"kind": "postgresql", "secret": "pg", "port": int(port)}
    mlflow = place.values["mlflow"] | {"database": database}
    assert place.changes(mlflow=mlflow)[f"Deployment {NAME}/mlflow"] == "configured"
    created = httpx.post(
        f"http://{place.kube.service(NAME, 'mlflow')}:5000/api/2.0/mlflow/registered-models/create",
        json={"name": "kept"}, trust_env=False, timeout=60,
    )  # fmt: skip
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
