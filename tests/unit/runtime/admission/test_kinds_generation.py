"""A model that generates text is refused before time is spent on it, where it can't be served, with the reason."""

from typing import Any

import pytest

from shiplift.runtime.admission import kinds
from shiplift.runtime.admission.kinds import check_generation
from shiplift.runtime.base.errors import MissingTool, NotAdmitted, SpecInvalid
from shiplift.runtime.records.site import Cluster, Machine
from shiplift.runtime.spec.document import parse


class Where:
    def __init__(self, place: Any) -> None:
        self.place = place


MACHINE: Any = Where(Machine(http="h:1", grpc="h:2", metrics="http://h:3"))
CLUSTER: Any = Where(Cluster(namespace="a", serving_namespace="b", server_image="c"))


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: name)


def test_a_plain_spec_on_one_machine_is_taken() -> None:
    check_generation(MACHINE, parse(""))


def test_a_cluster_serves_none_yet() -> None:
    with pytest.raises(NotAdmitted, match="served on one machine, not on a cluster yet"):
        check_generation(CLUSTER, parse(""))


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    with pytest.raises(MissingTool, match="openvino_genai is not installed here") as raised:
        check_generation(MACHINE, parse(""))
    assert "shiplift[generation]" in raised.value.do


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("export: {postprocess: softmax}", "`export.postprocess` is set"),
        ("serving: {response_cache: true}", "`serving.response_cache` is set"),
        ("serving: {tensors: true}", "`serving.tensors` is set"),
        ("load: {protocol: http}", "text is streamed over gRPC"),
        ("targets: [{name: a, engine: onnxruntime}]", "target a can't serve a model that generates text"),
        ("targets: [{name: a, precisions: [int8]}]", "in fp32"),
    ],
)
def test_what_such_a_model_has_not_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(SpecInvalid, match=reason):
        check_generation(MACHINE, parse(spec))
