"""A model that generates text is refused early, with the reason, where it can't be served."""

from pathlib import Path

import pytest

from shiplift.runtime.base.errors import MissingTool, SpecInvalid
from shiplift.runtime.families.generation import checks
from shiplift.runtime.families.generation.checks import check_generation, check_target
from shiplift.runtime.families.graph.family import GraphFamily
from shiplift.runtime.records.model import Datasets
from shiplift.runtime.spec.document import parse
from shiplift.runtime.spec.model import Data, Quantization
from shiplift.runtime.spec.target import Target
from shiplift.steps.quantize import quantize
from tests.unit.examples import exported, inspected, site


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: name)


def test_a_plain_spec_is_taken() -> None:
    check_generation(parse(""))


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(MissingTool, match="openvino_genai is not installed here") as raised:
        check_generation(parse(""))
    assert "shiplift[generation]" in raised.value.do


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("export: {postprocess: softmax}", "`export.postprocess` is set"),
        ("serving: {response_cache: true}", "`serving.response_cache` is set"),
        ("serving: {tensors: true}", "`serving.tensors` is set"),
        ("serving: {version_policy: all}", "`serving.version_policy` is set"),
        ("load: {protocol: http}", "text is streamed over gRPC"),
        ("targets: [{name: a, engine: onnxruntime}]", "target a can't serve a model that generates text"),
        ("targets: [{name: a, precisions: [int8]}]", "in fp32"),
    ],
)
def test_what_such_a_model_has_not_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(SpecInvalid, match=reason):
        check_generation(parse(spec))


_VLLM = "targets: [{name: a, accelerator: nvidia, server: nvidia, engine: vllm, precisions: [bf16]}]"


def test_a_target_with_an_engine_for_text_serves_what_generates_text_and_nothing_else(tmp_path: Path) -> None:
    check_generation(parse(_VLLM))
    graphs = GraphFamily()
    with pytest.raises(SpecInvalid, match="target a has `engine: vllm`, which is for models that generate text"):
        graphs.check(site(tmp_path), parse(_VLLM), inspected())
    graphs.check(site(tmp_path), parse(""), inspected())
    (target,) = parse(_VLLM).targets
    assert isinstance(target, Target)
    with pytest.raises(SpecInvalid, match="for models that generate text"):  # by a name in the site's catalogue
        quantize(site(tmp_path), target, exported(), Datasets(), Data(), Quantization())


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("accelerator: nvidia, server: nvidia, engine: vllm", "needs `precisions` with one of fp32, fp16 and bf16"),
        ("accelerator: nvidia, server: nvidia, engine: tensorrt-llm, precisions: [int8]", "with one of fp32"),
        ("engine: vllm, precisions: [fp32]", "other engines are for `accelerator: nvidia`"),
    ],
)
def test_an_engine_for_text_needs_a_gpu_and_one_precision_that_it_has(target: str, reason: str) -> None:
    with pytest.raises(SpecInvalid, match=reason):
        parse(f"targets: [{{name: a, {target}}}]")


@pytest.mark.parametrize("target", [Target(), Target(engine="openvino", precisions=("fp32", "int8"))])
def test_the_bundled_server_on_an_x86_cpu_generates(target: Target) -> None:
    check_target(target)


@pytest.mark.parametrize(
    "target",
    [
        Target(server="nvidia"),
        Target(accelerator="nvidia", server="nvidia"),
        Target(precisions=("int8",)),
        Target(engine="onnxruntime"),
        Target(accelerator="cpu-arm64"),
    ],
)
def test_other_targets_do_not(target: Target) -> None:
    with pytest.raises(SpecInvalid, match="can't serve a model that generates text"):
        check_target(target)
