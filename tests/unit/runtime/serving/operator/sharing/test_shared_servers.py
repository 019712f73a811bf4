"""The shared servers of a namespace, against an API server that keeps objects in memory."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shiplift.runtime.serving.kubernetes.objects.names import hosted_label
from shiplift.runtime.serving.operator.cluster.observing import Observer
from shiplift.runtime.serving.operator.evidence import Evidence
from shiplift.runtime.serving.operator.resources import (
    CapacitySpec,
    RevisionSpec,
    ServiceSpec,
    revision_object,
    service_object,
)
from shiplift.runtime.serving.operator.sharing.shared_servers import SharedServers
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import package
from tests.unit.runtime.serving.operator.world import cluster

Object = dict[str, Any]
MODELS = ("ada", "bob")


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def put(server: ApiServer, plural: str, body: Object) -> None:
    name = body["metadata"]["name"]
    server.objects[plural][name] = {**body, "metadata": {**body["metadata"], "uid": f"uid-{name}", "generation": 1}}


def serve(server: ApiServer, model: str) -> None:
    """A service that has been ready for a minute, with the placement `shared`."""
    spec = RevisionSpec(
        artifacts_uri="s3://models",
        package=package(model=model).model_dump(mode="json"),
        capacity=CapacitySpec(peak_per_second=10, within_slo_per_second=5, memory_mebibytes=100),
    )
    put(server, "tritonrevisions", revision_object(f"{model}-1", "models", spec))
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": ago(60)}
    status = {"revision": f"{model}-1", "weights": [{"revision": f"{model}-1", "percent": 100}], "conditions": [ready]}
    body = service_object(model, "models", ServiceSpec(model=model, revision=f"{model}-1", placement="shared"))
    put(server, "tritonservices", {**body, "status": status})


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as server:
        for model in MODELS:
            serve(server, model)
        yield server


class Operator:
    """Looks and keeps, as the operator does every ten seconds."""

    def __init__(self, server: ApiServer) -> None:
        self.server, self.api = server, server.api("models")
        self.observer, self.servers = Observer(self.api, cluster()), SharedServers(self.api, cluster())

    def keep(self) -> dict[str, str]:
        self.observer.assigned = self.servers.keep(self.observer.everything())
        return dict(self.observer.assigned)

    def made(self) -> str:
        """The server that it makes for both services, a minute old."""
        self.keep()
        (name,) = self.deployments()
        self.server.objects["deployments"][name]["metadata"]["creationTimestamp"] = ago(61)
        return name

    def deployments(self) -> list[str]:
        return list(self.server.objects["deployments"])

    def lead(self, *models: str, to: str) -> None:
        """Makes the services of these models lead to a server."""
        for model in models:
            labels = {"shiplift.dev/model": model, "shiplift.dev/package": f"{model}-1"}
            selector = {hosted_label(f"{model}-1"): to}
            body = {"metadata": {"name": f"{model}-1", "labels": labels}, "spec": {"selector": selector}}
            self.server.objects["services"][f"{model}-1"] = body


@pytest.fixture
def operator(server: ApiServer) -> Operator:
    return Operator(server)


def test_services_that_may_share_get_a_server_that_they_all_own(operator: Operator, server: ApiServer) -> None:
    name = operator.made()
    body = server.objects["deployments"][name]
    assert {owner["name"] for owner in body["metadata"]["ownerReferences"]} == set(MODELS)
    assert set(server.objects["poddisruptionbudgets"]) == {name}
    assert operator.keep() == {"ada-1": name, "bob-1": name}
    observed = operator.observer.observed(operator.observer.alone("ada"), "ada", Evidence())
    assert observed is not None
    assert (observed.assigned["ada-1"], set(observed.servers)) == (name, {name})


def test_a_server_that_is_as_it_should_be_is_not_written_again(operator: Operator, server: ApiServer) -> None:
    operator.made()
    server.asked.clear()
    operator.keep()
    assert {method for method, _ in server.asked} == {"GET"}


def test_changes_of_a_server_from_outside_are_undone(operator: Operator, server: ApiServer) -> None:
    name = operator.made()
    server.objects["deployments"][name]["spec"]["replicas"] = 0
    server.objects["poddisruptionbudgets"].clear()
    operator.keep()
    assert server.objects["deployments"][name]["spec"]["replicas"] == 1
    assert set(server.objects["poddisruptionbudgets"]) == {name}


def test_a_server_is_removed_once_it_has_been_unused_for_a_while(
    operator: Operator, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = operator.made()
    operator.lead(*MODELS, to=name)
    for model in MODELS:
        server.objects["tritonservices"][model]["spec"]["placement"] = "own"
    assert operator.keep() == {"ada-1": "", "bob-1": ""}
    monkeypatch.setattr("shiplift.runtime.serving.operator.sharing.shared_servers._UNUSED_S", 0.0)
    operator.keep()
    assert operator.deployments() == [name]  # requests still go there
    server.objects["services"].clear()
    operator.keep()
    assert operator.deployments() == []
    assert not server.objects["poddisruptionbudgets"]


def test_a_server_whose_pods_never_start_is_given_up_and_its_set_not_tried_again(
    operator: Operator, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiplift.runtime.serving.operator.sharing.shared_servers._UNUSED_S", 0.0)
    name = operator.made()
    server.objects["deployments"][name]["metadata"]["creationTimestamp"] = ago(cluster().ready_timeout_s + 5)
    assert operator.keep() == {"ada-1": "", "bob-1": ""}
    operator.keep()
    operator.keep()
    assert operator.deployments() == []
