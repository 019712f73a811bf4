"""The definitions of the custom resources: the same fields as the records, and what Kubernetes' tools show of them."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from shiplift.pipelines.installation import manifests
from shiplift.pipelines.installation.install import DEFINITION
from shiplift.pipelines.installation.values import Values
from shiplift.runtime.serving.kubernetes import kinds
from shiplift.runtime.serving.operator import resources
from shiplift.runtime.serving.operator.resources import (
    CapacitySpec,
    ConditionType,
    GroupSpec,
    GroupStatus,
    HeartbeatSpec,
    Reason,
    RevisionSpec,
    RolloutSpec,
    ScalingSpec,
    ServiceSpec,
    ServiceStatus,
    SloSpec,
    StatusCondition,
    Weight,
)


def definitions() -> dict[str, Any]:
    return {body["spec"]["names"]["kind"]: body["spec"] for body in manifests.part_of(Values(), "resources")}


def schema(kind: str, *path: str) -> Any:
    (version,) = definitions()[kind]["versions"]
    part = version["schema"]["openAPIV3Schema"]
    for name in path:
        part = part["items"] if name == "[]" else part["properties"][name]
    return part


SERVICE = "TritonService"
SAME: list[tuple[type[BaseModel], tuple[str, ...]]] = [
    (ServiceSpec, (SERVICE, "spec")),
    (RolloutSpec, (SERVICE, "spec", "rollout")),
    (HeartbeatSpec, (SERVICE, "spec", "heartbeat")),
    (ScalingSpec, (SERVICE, "spec", "scaling")),
    (SloSpec, (SERVICE, "spec", "slo")),
    (ServiceStatus, (SERVICE, "status")),
    (Weight, (SERVICE, "status", "weights", "[]")),
    (StatusCondition, (SERVICE, "status", "conditions", "[]")),
    (RevisionSpec, ("TritonRevision", "spec")),
    (CapacitySpec, ("TritonRevision", "spec", "capacity")),
    (GroupSpec, ("TritonRevision", "spec", "otherGroups", "[]")),
    (CapacitySpec, ("TritonRevision", "spec", "otherGroups", "[]", "capacity")),
    (GroupStatus, (SERVICE, "status", "groups", "[]")),
]


@pytest.mark.parametrize(("record", "path"), SAME, ids=[record.__name__ for record, _ in SAME])
def test_schema_and_record_have_the_same_fields_required_ones_and_defaults(
    record: type[BaseModel], path: tuple[str, ...]
) -> None:
    part = schema(*path)
    fields = {str(field.alias): field for field in record.model_fields.values()}
    assert set(part["properties"]) == set(fields)
    if path[1] == "spec":
        assert {name for name, field in fields.items() if field.is_required()} == set(part.get("required", []))
        for name, field in fields.items():
            if field.default is None:  # absent means something
                assert "default" not in part["properties"][name]
            elif not field.is_required() and not isinstance(field.default, BaseModel):
                default = list(field.default) if isinstance(field.default, tuple) else field.default
                assert part["properties"][name]["default"] == default


def test_bounds_and_enumerations_are_those_of_the_records() -> None:
    spec = schema(SERVICE, "spec")["properties"]
    assert (spec["replicas"]["minimum"], spec["replicas"]["maximum"]) == (1, 1000)
    for wrong in (0, 1001):
        with pytest.raises(ValueError, match="replicas"):
            ServiceSpec(model="m", revision="r", replicas=wrong)
    for wrong in (4, 5):
        with pytest.raises(ValueError, match=f"scaling.maxReplicas is 3, less than the {wrong} pods"):
            ServiceSpec(model="m", revision="r", replicas=wrong, scaling=ScalingSpec(max_replicas=3))
    with pytest.raises(ValueError, match="less than the 3 pods"):
        ServiceSpec(model="m", revision="r", production=True, scaling=ScalingSpec(max_replicas=2))
    condition = schema(SERVICE, "status", "conditions", "[]")["properties"]
    assert condition["type"]["enum"] == [str(kind) for kind in ConditionType]
    assert condition["reason"]["enum"] == [str(reason) for reason in Reason]


def described(part: Any, path: str = "") -> Iterator[str]:
    """The fields of a schema without a description for `kubectl explain`."""
    for name, field in part.get("properties", {}).items():
        if path or name in ("spec", "status"):
            if "description" not in field:
                yield f"{path}.{name}"
            yield from described(field, f"{path}.{name}")
            yield from described(field.get("items", {}), f"{path}.{name}[]")


@pytest.mark.parametrize("kind", ["TritonService", "TritonRevision"])
def test_kubectl_explains_every_field(kind: str) -> None:
    assert schema(kind)["description"]
    assert list(described(schema(kind))) == []


def test_kubectl_shows_waits_for_and_scales_a_service() -> None:
    (version,) = definitions()[SERVICE]["versions"]
    columns = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert columns == ["Ready", "Available", "Revision", "Weight", "Replicas", "P99", "Age"]
    assert set(version["subresources"]) == {"status", "scale"}
    conditions = schema(SERVICE, "status", "conditions")
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])
    assert definitions()[SERVICE]["names"]["shortNames"] == ["ts", "tsvc"]
    assert definitions()["TritonRevision"]["names"]["shortNames"] == ["tr"]


def test_the_clients_kinds_are_those_that_are_defined() -> None:
    for kind in (kinds.TRITON_SERVICE, kinds.TRITON_REVISION):
        spec = definitions()[kind.name]
        assert spec["names"]["plural"] == kind.plural
        assert f"{spec['group']}/{spec['versions'][0]['name']}" == kind.version == resources.API_VERSION
        assert kind.namespaced


# An installation leaves definitions with a higher number in place, so every change of the schema needs the next number.
LATEST = ("7", "27567afc1109d04c")


def test_a_changed_definition_has_the_next_number() -> None:
    bodies = manifests.part_of(Values(), "resources")
    numbers = {body["metadata"]["annotations"].pop(DEFINITION) for body in bodies}
    digest = hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()[:16]
    assert (numbers, digest) == ({LATEST[0]}, LATEST[1]), (
        f"raise {DEFINITION} in resources.yaml.j2, and write the new number and {digest} into LATEST"
    )
