"""The Kubernetes client against a real API server: applying, deleting, and each kind of refusal."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import certifi
import pytest
import yaml

from shiplift.runtime.base.errors import ClusterRefused, ClusterUnreachable
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.serving.kubernetes import diagnosis, kinds
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.kubernetes.diagnosis import Diagnosis, Prospect
from tests.cluster.conftest import Kube, until


@pytest.fixture(scope="module")
def namespace(kube: Kube) -> Iterator[str]:
    name = f"client-{uuid.uuid4().hex[:8]}"
    kube("create", "namespace", name)
    yield name
    kube("delete", "namespace", name, "--wait=false")


@pytest.fixture
def client(namespace: str) -> KubernetesClient:
    return KubernetesClient(namespace)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"a": "b"}}, "data": data}


def test_applying_is_idempotent_and_leaves_what_others_own_alone(
    kube: Kube, client: KubernetesClient, namespace: str
) -> None:
    first = client.apply(config_map("applied", ours="1"))
    assert client.apply(config_map("applied", ours="1"))["metadata"] == first["metadata"]
    kube("patch", "configmap", "applied", "-n", namespace, "--type=merge", "-p", '{"data": {"theirs": "2"}}')
    assert client.apply(config_map("applied", ours="3"), dry_run=True)["data"] == {"ours": "3", "theirs": "2"}
    assert (client.get(kinds.CONFIG_MAP, "applied") or {})["data"] == {"ours": "1", "theirs": "2"}
    assert client.apply(config_map("applied", ours="3"))["data"] == {"ours": "3", "theirs": "2"}
    assert client.apply(config_map("applied"))["data"] == {"theirs": "2"}


def test_what_is_not_there_is_none(client: KubernetesClient) -> None:
    assert client.get(kinds.CONFIG_MAP, "nowhere") is None
    assert client.merge(kinds.CONFIG_MAP, "nowhere", {"data": {"a": "b"}}) is None
    assert client.delete(kinds.CONFIG_MAP, "nowhere") is False
    assert client.find(kinds.CONFIG_MAP, "a=nothing") == []
    assert KubernetesClient("no-such-namespace").find(kinds.CONFIG_MAP) == []


def test_a_second_creation_and_a_late_write_are_conflicts(client: KubernetesClient) -> None:
    created = client.create(config_map("claimed", by="first"))
    with pytest.raises(Conflict):
        client.create(config_map("claimed", by="second"))
    client.replace({**created, "data": {"by": "third"}})
    with pytest.raises(Conflict):
        client.replace({**created, "data": {"by": "fourth"}})
    late = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}, "data": {"by": "fifth"}}
    with pytest.raises(Conflict):
        client.merge(kinds.CONFIG_MAP, "claimed", late)
    with pytest.raises(Conflict):
        client.delete(kinds.CONFIG_MAP, "claimed", uid=str(uuid.uuid4()))
    assert (client.get(kinds.CONFIG_MAP, "claimed") or {})["data"] == {"by": "third"}
    assert client.delete(kinds.CONFIG_MAP, "claimed", uid=created["metadata"]["uid"])


def test_a_long_list_comes_in_pages(client: KubernetesClient) -> None:
    names = [f"page-{number}" for number in range(7)]
    for name in names:
        client.apply({**config_map(name), "metadata": {"name": name, "labels": {"paged": "yes"}}})
    listed = list(client.each(kinds.CONFIG_MAP, "paged=yes", page=3))
    assert [name_of(body) for body in listed] == [f"ConfigMap {client.namespace}/{name}" for name in names]


def test_kinds_that_the_table_lacks_are_discovered(client: KubernetesClient, namespace: str) -> None:
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "x"}, "spec": {"limits": []}}
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": namespace},
        "value": 7,
    }
    for body in (limits, priority):
        client.apply(body)
        there = client.get(*client.locate(body))
        assert there is not None
        assert there["metadata"].get("namespace", "") == (namespace if body is limits else "")
        assert client.delete(*client.locate(body))
    assert client.serves(kinds.WORKFLOW)
    with pytest.raises(ClusterRefused, match=r"does not know the kind Gizmo \(example.org/v1\)"):
        client.apply({"apiVersion": "example.org/v1", "kind": "Gizmo", "metadata": {"name": "x"}})


def test_every_kind_of_the_table_is_where_the_table_says(client: KubernetesClient) -> None:
    for kind in kinds.KNOWN.values():
        served = client._discover(kind.version, kind.name)
        if served is not None:  # the Gateway API and metrics are not everywhere
            assert (served.plural, served.namespaced) == (kind.plural, kind.namespaced), kind


def test_a_refusal_has_the_words_of_the_cluster(client: KubernetesClient) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": {"containers": []}}
    with pytest.raises(ClusterRefused, match=r"refused changing Pod client-.*/bad \(422\): .*containers"):
        client.apply(pod)
    with pytest.raises(ClusterRefused, match=r"creating configmaps in no-such-namespace failed: .*not found"):
        client.create({**config_map("x"), "metadata": {"name": "x", "namespace": "no-such-namespace"}})


def test_an_account_without_rights_gets_an_error_that_names_what_is_forbidden(
    kube: Kube, client: KubernetesClient, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube("create", "serviceaccount", "limited", "-n", namespace)
    token = kube("create", "token", "limited", "-n", namespace).strip()
    limited = _with(kube, tmp_path, monkeypatch, namespace, user={"token": token})
    with pytest.raises(
        ClusterRefused, match=f"forbids reading Secret {namespace}/x: .*limited.*cannot get.*Use a kube"
    ):
        limited.get(kinds.SECRET, "x")
    with pytest.raises(ClusterRefused, match=f"forbids changing ConfigMap {namespace}/x"):
        limited.apply(config_map("x"))
    assert limited.serves(kinds.DEPLOYMENT)  # anybody may ask this
    stranger = _with(kube, tmp_path, monkeypatch, namespace, user={"token": "made-up"})
    with pytest.raises(ClusterRefused, match="forbids reading nodes in the cluster: Unauthorized"):
        stranger.find(kinds.NODE)


@pytest.mark.parametrize("change", ["port", "authority", "name"])
def test_a_kubeconfig_that_leads_to_no_api_server_is_no_cluster(
    kube: Kube, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    changes: dict[str, dict[str, Any]] = {
        "port": {"server": f"https://127.0.0.1:{free_port()}"},
        "authority": {
            "certificate-authority-data": None,
            "certificate-authority": certifi.where(),
        },
        "name": {"server": "https://no-such-host.invalid:6443"},
    }
    nowhere = _with(kube, tmp_path, monkeypatch, namespace, cluster=changes[change])
    with pytest.raises(ClusterUnreachable, match=r"does not answer: .*Check KUBECONFIG"):
        nowhere.get(kinds.NAMESPACE, namespace)


def _with(
    kube: Kube, folder: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, *, user: Any = None, cluster: Any = None
) -> KubernetesClient:
    """A client whose kubeconfig has another user or another cluster."""
    body = yaml.safe_load(kube.kubeconfig.read_text())
    if user:
        body["users"][0]["user"] = user
    at = body["clusters"][0]["cluster"]
    at.update(cluster or {})
    body["clusters"][0]["cluster"] = {key: value for key, value in at.items() if value is not None}
    (folder / "config").write_text(yaml.safe_dump(body))
    monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
    return KubernetesClient(namespace)


# --- why a pod does not run ---


@pytest.mark.parametrize(
    ("pod", "container", "prospect", "sentence"),
    [
        ({}, {}, Prospect.RETRY, "image localhost/nobody-has-this:1 of container main can't be pulled"),
        ({}, {"image": "UPPER//case"}, Prospect.NOTHING, "has an invalid name (InvalidImageName)"),
        ({}, {"imagePullPolicy": "Never"}, Prospect.NOTHING, "must not be pulled (ErrImageNeverPull)"),
        ({"nodeSelector": {"no": "such"}}, {}, Prospect.NODE, "the pod asks for a node with no=such: "),
        ({}, {"resources": {"requests": {"cpu": "9999"}}}, Prospect.ROOM, "Insufficient cpu"),
        ({"schedulingGates": [{"name": "example.org/x"}]}, {}, Prospect.TIME, "its scheduling gates (SchedulingGated)"),
    ],
)
def test_a_pod_that_does_not_run_is_diagnosed(
    client: KubernetesClient, pod: Any, container: Any, prospect: Prospect, sentence: str
) -> None:
    name = f"pod-{uuid.uuid4().hex[:8]}"
    containers = [{"name": "main", "image": "localhost/nobody-has-this:1", **container}]
    client.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers} | pod}
    )

    def why() -> Diagnosis | None:
        current = diagnosis.of_pod(client.get(kinds.POD, name) or {})
        return current if current and current.prospect is prospect else None

    assert sentence in until(why, seconds=60).sentence
    client.delete(kinds.POD, name)
