"""What serves, as clients look it up."""

import json
from collections.abc import Iterator

import pytest

from shiplift.runtime.records.site import IngressRef
from shiplift.runtime.serving.discovery import CONFIG_MAP_NAME, PublishedModel
from shiplift.runtime.serving.operator.cluster.observing import Observer
from shiplift.runtime.serving.operator.cluster.publishing import Publisher
from shiplift.runtime.serving.operator.resources import RevisionSpec, ServiceSpec, revision_object, service_object
from tests.unit.api_server import ApiServer, running
from tests.unit.examples import package, signature
from tests.unit.runtime.serving.operator.cluster.test_cluster import put
from tests.unit.runtime.serving.operator.world import cluster, name_of


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as server:
        spec = RevisionSpec(artifacts_uri="s3://models", package=package(version=1).model_dump(mode="json"))
        put(server, "tritonrevisions", revision_object(name_of(1), "models", spec))
        service = service_object("digits", "models", ServiceSpec(model="digits", revision=name_of(1)))
        put(server, "tritonservices", service | {"status": {"revision": name_of(1), "version": 1}})
        listeners = [{"name": "http", "port": 80}, {"name": "grpc", "port": 81}]
        gateway = {
            "metadata": {"name": "shiplift"},
            "spec": {"listeners": listeners},
            "status": {"addresses": [{"value": "10.0.0.1"}]},
        }
        server.objects["gateways"]["shiplift"] = gateway
        yield server


def publish(server: ApiServer) -> bool:
    api = server.api("models")
    return Publisher(api, cluster()).publish(Observer(api, cluster()).everything())


def published(server: ApiServer) -> dict[str, PublishedModel]:
    data = server.objects["configmaps"][CONFIG_MAP_NAME]["data"]
    return {name: PublishedModel.model_validate_json(text) for name, text in data.items()}


def test_a_model_that_serves_has_an_address_inside_and_outside(server: ApiServer) -> None:
    assert publish(server)
    entry = published(server)["digits"]
    assert (entry.version, entry.revision) == (1, name_of(1))
    inside, outside = entry.seen_from(inside=True), entry.seen_from(inside=False)
    assert inside is not None
    assert outside is not None
    assert (inside.grpc, inside.http, inside.host) == ("digits.models:8001", "http://digits.models:8000", "")
    assert (outside.grpc, outside.http, outside.host) == ("10.0.0.1:81", "http://10.0.0.1:80", "digits.models")
    assert (outside.signature, outside.path) == (signature(), f"/v2/models/{outside.name}")


def test_behind_an_ingress_each_model_has_its_own_grpc_host(server: ApiServer) -> None:
    ingress = IngressRef(class_name="nginx", host="models.example.org", tls_secret="tls")
    place = cluster().model_copy(update={"gateway": None, "ingress": ingress})
    api = server.api("models")
    Publisher(api, place).publish(Observer(api, place).everything())
    outside = published(server)["digits"].seen_from(inside=False)
    assert outside is not None
    assert (outside.grpc, outside.http) == ("digits.models.example.org:443", "https://models.example.org")
    assert (outside.host, outside.secure) == ("", True)


def test_it_is_written_only_when_it_says_something_else(server: ApiServer) -> None:
    assert publish(server)
    assert not publish(server)
    server.objects["configmaps"][CONFIG_MAP_NAME]["data"]["stranger"] = "{}"
    assert publish(server)
    assert set(published(server)) == {"digits"}
    server.objects["tritonservices"]["digits"]["status"] |= {"version": 0, "revision": ""}
    assert publish(server)
    assert published(server) == {}


def test_a_service_that_can_t_be_read_hides_no_other(server: ApiServer) -> None:
    broken = {"metadata": {"name": "broken", "namespace": "models"}, "spec": {"model": 3}, "status": {"revision": "x"}}
    put(server, "tritonservices", broken)
    publish(server)
    assert set(published(server)) == {"digits"}


def test_a_client_ignores_what_a_newer_operator_says(server: ApiServer) -> None:
    publish(server)
    entry = published(server)["digits"]
    newer = json.dumps(json.loads(entry.model_dump_json()) | {"colour": "blue"})
    assert PublishedModel.model_validate_json(newer) == entry
