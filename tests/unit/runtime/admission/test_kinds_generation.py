"""A model that generates text is refused before time is spent on it, where it can't be served, with the reason."""

import pytest

from shiplift.runtime.admission import kinds
from shiplift.runtime.admission.kinds import check_generation
from shiplift.runtime.base.errors import MissingTool, SpecInvalid
from shiplift.runtime.spec.document import parse


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: name)


def test_a_plain_spec_is_taken() -> None:
    check_generation(parse(""))


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    with pytest.raises(MissingTool, match="openvino_genai is not installed here") as raised:
        check_generation(parse(""))
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
        check_generation(parse(spec))
