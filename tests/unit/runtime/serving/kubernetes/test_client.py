"""The client against an API server that fails on demand; tests/cluster has its tests on a real one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shiplift.runtime.base.errors import ClusterRefused, ClusterUnreachable, Temporary
from shiplift.runtime.host.processes import free_port
from shiplift.runtime.serving.kubernetes import client as client_module
from shiplift.runtime.serving.kubernetes import connection, transport
from shiplift.runtime.serving.kubernetes.client import KubernetesClient, name_of
from shiplift.runtime.serving.kubernetes.connection import Conflict
from shiplift.runtime.serving.kubernetes.kinds import (
    DEPLOYMENT,
    GATEWAY,
    KNOWN,
    NODE,
    POD,
    SERVICE,
    WORKFLOW,
    WORKFLOW_TEMPLATE,
    ResourceKind,
)
from tests.unit.api_server import ApiServer, running

SAMPLE: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"a": 1}}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as api_server:
        yield api_server


@pytest.fixture
def client(server: ApiServer) -> KubernetesClient:
    return server.api()


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig, and no pod around; `pointed_at` fills it in."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(transport, "_ACCOUNT", tmp_path)
    monkeypatch.setattr(transport, "_PAUSE_S", 0.01)
    return tmp_path / "config"


def pointed_at(kubeconfig: Path, port: int) -> KubernetesClient:
    entry = {"name": "it", "context": {"cluster": "it", "user": "it"}}
    cluster = {"name": "it", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    body = {"clusters": [cluster], "contexts": [entry], "users": [{"name": "it", "user": {}}], "current-context": "it"}
    kubeconfig.write_text(yaml.safe_dump(body))
    return KubernetesClient("shiplift")


# --- objects ---


def test_an_object_is_made_read_changed_and_deleted(client: KubernetesClient, server: ApiServer) -> None:
    assert client.get(POD, "x") is None
    assert client.create(SAMPLE)["metadata"]["uid"] == "uid-of-x"
    assert client.merge(POD, "x", {"spec": {"a": None, "b": 2}}) == server.objects["pods"]["x"]
    assert (client.get(POD, "x") or {})["spec"] == {"b": 2}
    assert client.apply(SAMPLE)["spec"] == {"a": 1, "b": 2}
    assert [client.delete(POD, "x"), client.delete(POD, "x")] == [True, False]
    assert client.merge(POD, "x", {}) is None


def test_a_change_by_another_writer_is_a_conflict(client: KubernetesClient) -> None:
    client.create(SAMPLE)
    with pytest.raises(Conflict):
        client.create(SAMPLE)
    with pytest.raises(Conflict):
        client.delete(POD, "x", uid="another")
    assert client.delete(POD, "x", uid="uid-of-x")


def test_a_list_is_read_page_by_page_and_its_items_say_what_they_are(
    client: KubernetesClient, server: ApiServer
) -> None:
    for number in range(7):
        labels = {"even": "yes"} if number % 2 == 0 else {}
        server.objects["pods"][f"p{number}"] = {"metadata": {"name": f"p{number}", "labels": labels}}
    assert [pod["metadata"]["name"] for pod in client.each(POD, page=3)] == [f"p{number}" for number in range(7)]
    assert len(server.asked) == 3
    even = client.find(POD, "even=yes")
    assert [name_of(pod) for pod in even] == ["Pod p0", "Pod p2", "Pod p4", "Pod p6"]
    assert {pod["apiVersion"] for pod in even} == {"v1"}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"kind": "Pod", "metadata": {"name": "x"}}, "/api/v1/namespaces/shiplift/pods/x"),
        ({"kind": "Pod", "metadata": {"name": "x", "namespace": "y"}}, "/api/v1/namespaces/y/pods/x"),
        ({"kind": "Namespace", "metadata": {"name": "x"}}, "/api/v1/namespaces/x"),
        ({"kind": "PersistentVolume", "metadata": {"name": "x"}}, "/api/v1/persistentvolumes/x"),
    ],
)
def test_an_object_goes_where_it_says_else_to_the_client_s_namespace(
    client: KubernetesClient, server: ApiServer, body: dict[str, Any], path: str
) -> None:
    client.apply({"apiVersion": "v1", **body})
    assert server.asked == [("PATCH", path)]


def test_a_kind_in_namespaces_is_never_read_over_all_of_them() -> None:
    with pytest.raises(ValueError, match="a Pod belongs to a namespace"):
        POD.path()
    assert NODE.path() == "/api/v1/nodes"
    assert DEPLOYMENT.path("a", "b") == "/apis/apps/v1/namespaces/a/deployments/b"


# --- watches ---


def test_a_watch_tells_what_happens_until_it_ends(client: KubernetesClient, server: ApiServer) -> None:
    events = [{"type": kind, "object": {"metadata": {"name": "x"}}} for kind in ("ADDED", "MODIFIED", "DELETED")]
    for event in (*events, None):
        server.happened["pods"].put(event)
    assert list(client.watch(POD, since="5", seconds=10)) == events
    assert server.watched == [("pods", "5")]
    assert server.asked == [("GET", "/api/v1/namespaces/shiplift/pods")]


def test_a_watch_that_can_t_begin_says_why_at_once(client: KubernetesClient, server: ApiServer) -> None:
    for fault, error, message in (
        (403, ClusterRefused, "forbids reading pods in shiplift"),
        (404, ClusterRefused, r"does not know the kind Pod"),
        (410, Temporary, "failed with status 410"),
        (0, Temporary, "does not answer"),
    ):
        server.faults = [fault]
        with pytest.raises(error, match=message):
            client.watch(POD, seconds=10)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ({"type": "ERROR", "object": {"code": 410, "message": "too old"}}, Temporary),
        ({"type": "ERROR", "object": {"code": 403, "message": "no"}}, ClusterRefused),
        ({"type": "ERROR", "object": {}}, Temporary),
        ({"type": "ADDED", "object": 3}, Temporary),
        ({"object": {"metadata": {}}}, Temporary),
        ({}, Temporary),
    ],
)
def test_an_error_within_a_watch_is_one_of_ours(
    client: KubernetesClient, server: ApiServer, event: dict[str, Any], error: type[Exception]
) -> None:
    server.happened["pods"].put(event)
    with pytest.raises(error):
        list(client.watch(POD, seconds=10))
    server.happened["pods"].put(None)


def test_a_watch_that_is_silent_for_longer_than_it_lasts_has_failed(
    client: KubernetesClient, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_GRACE_S", 0.05)
    with pytest.raises(Temporary, match="timed out"):
        list(client.watch(POD, seconds=0))
    server.happened["pods"].put(None)


# --- kinds ---


def test_a_kind_that_is_not_in_the_table_is_asked_of_the_cluster_once(
    client: KubernetesClient, server: ApiServer
) -> None:
    server.kinds["/apis/example.org/v1"] = [
        {"name": "gizmos", "kind": "Gizmo", "namespaced": True},
        {"name": "gizmos/status", "kind": "Gizmo", "namespaced": True},
        {"name": "worlds", "kind": "World", "namespaced": False},
    ]
    for kind in ("Gizmo", "World", "Gizmo"):
        client.apply({"apiVersion": "example.org/v1", "kind": kind, "metadata": {"name": "x"}})
    assert server.asked == [
        ("GET", "/apis/example.org/v1"),
        ("PATCH", "/apis/example.org/v1/namespaces/shiplift/gizmos/x"),
        ("PATCH", "/apis/example.org/v1/worlds/x"),
        ("PATCH", "/apis/example.org/v1/namespaces/shiplift/gizmos/x"),
    ]


def test_a_kind_that_the_cluster_does_not_know_is_named_with_what_brings_it(
    client: KubernetesClient, server: ApiServer
) -> None:
    with pytest.raises(ClusterRefused, match=r"does not know the kind Gizmo \(example.org/v1\). Install its"):
        client.apply({"apiVersion": "example.org/v1", "kind": "Gizmo", "metadata": {"name": "x"}})
    server.kinds["/apis/argoproj.io/v1alpha1"] = [{"name": "workflows", "kind": "Workflow", "namespaced": True}]
    assert [client.serves(kind) for kind in (WORKFLOW, WORKFLOW_TEMPLATE, GATEWAY)] == [True, False, False]
    server.faults = [404]
    with pytest.raises(ClusterRefused, match=r"the kind Workflow .* Install Argo Workflows 4.0 or newer"):
        client.find(WORKFLOW)


def test_the_table_has_each_kind_once() -> None:
    assert len(KNOWN) == len({(kind.version, kind.plural) for kind in KNOWN.values()})
    assert KNOWN["v1", "Service"] is SERVICE
    assert isinstance(SERVICE, ResourceKind)


# --- errors ---


@pytest.mark.parametrize("status", [0, 408, 410, 429, 500, 502, 503, 504])
def test_what_may_pass_is_temporary(client: KubernetesClient, server: ApiServer, status: int) -> None:
    server.faults = [status]
    with pytest.raises(Temporary):
        client.get(POD, "x")


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (401, "the cluster forbids changing Pod shiplift/x: as the test wants"),
        (403, "the cluster forbids changing Pod shiplift/x: as the test wants"),
        (404, "the cluster does not know the kind Pod (v1)"),
        (422, "the cluster refused changing Pod shiplift/x (422): as the test wants"),
    ],
)
def test_what_only_a_person_can_change_is_refused(
    client: KubernetesClient, server: ApiServer, status: int, what: str
) -> None:
    server.faults = [status]
    with pytest.raises(ClusterRefused) as error:
        client.apply(SAMPLE)
    assert error.value.what == what


@pytest.mark.parametrize(("in_pod", "do"), [(False, "Use a kubeconfig"), (True, "Run `shiplift install`")])
def test_a_refusal_says_what_helps_there(
    client: KubernetesClient, server: ApiServer, monkeypatch: pytest.MonkeyPatch, in_pod: bool, do: str
) -> None:
    monkeypatch.setattr(connection, "in_pod", lambda: in_pod)
    server.faults = [403]
    with pytest.raises(ClusterRefused) as error:
        client.find(POD)
    assert error.value.what.startswith("the cluster forbids reading pods in shiplift")
    assert error.value.do.startswith(do)


def test_a_deleted_pods_token_is_refused_for_a_moment_only(
    client: KubernetesClient, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "in_pod", lambda: True)
    server.faults = [401]
    with pytest.raises(Temporary, match="reading pods in shiplift failed: this pod's token is not valid"):
        client.find(POD)


def test_an_unreachable_cluster_is_an_error_with_a_kubeconfig_and_temporary_in_a_pod(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pointed_at(kubeconfig, free_port())
    with pytest.raises(ClusterUnreachable, match="does not answer"):
        client.find(POD)
    monkeypatch.setattr(connection, "in_pod", lambda: True)
    with pytest.raises(Temporary, match="does not answer"):
        client.find(POD)


@pytest.mark.parametrize("text", ["", "{", "- a", "{clusters: [], contexts: [], users: [], current-context: x}"])
def test_a_kubeconfig_that_is_none_says_what_to_set(kubeconfig: Path, text: str) -> None:
    kubeconfig.write_text(text)
    with pytest.raises(ClusterUnreachable, match=r"no usable cluster configuration.*Set KUBECONFIG"):
        KubernetesClient("x").find(POD)
    kubeconfig.unlink()
    with pytest.raises(ClusterUnreachable, match=r"no usable cluster configuration.*Set KUBECONFIG"):
        KubernetesClient("x").find(POD)


# --- what is sent again ---


@pytest.mark.parametrize("fault", [0, 429, 503])
def test_a_request_that_may_be_repeated_is(kubeconfig: Path, server: ApiServer, fault: int) -> None:
    client = pointed_at(kubeconfig, server.server_port)
    for act in (lambda: client.find(POD), lambda: client.apply(SAMPLE), lambda: client.delete(POD, "x")):
        server.faults = [fault, fault]
        act()
        assert server.faults == []
    server.faults = [fault] * 9
    with pytest.raises(Temporary):
        client.find(POD)
    assert len(server.faults) == 5


def test_a_creation_is_not(kubeconfig: Path, server: ApiServer) -> None:
    client = pointed_at(kubeconfig, server.server_port)
    server.faults = [0]
    with pytest.raises(Temporary):
        client.create(SAMPLE)
    assert server.objects["pods"] == {}
    assert len(server.asked) == 1
