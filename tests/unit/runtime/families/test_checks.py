"""What a site and a spec allow for Python models, for pipelines, and for graphs that may fall back."""

from pathlib import Path

import pytest

from shiplift.runtime.admission import policy
from shiplift.runtime.base.errors import NotAdmitted, PolicyRefused, SpecInvalid
from shiplift.runtime.families import table
from shiplift.runtime.families.pipeline.family import PipelineFamily
from shiplift.runtime.families.python.checks import check_python
from shiplift.runtime.records.model import Obstacle
from shiplift.runtime.records.site import Cluster, SitePolicy
from shiplift.runtime.spec.document import parse
from tests.unit.examples import inspected, site


def test_the_default_spec_is_fine_on_a_machine_and_on_a_cluster_whose_owner_named_an_index(tmp_path: Path) -> None:
    check_python(site(tmp_path), parse(""))
    cluster = Cluster(namespace="a", serving_namespace="b", server_image="c")
    there = site(tmp_path).model_copy(update={"place": cluster})
    with pytest.raises(NotAdmitted, match=r"the index that `policy.package_index` names, and it names none"):
        check_python(there, parse(""))
    named = SitePolicy(package_index="https://index.example/simple")
    check_python(there.model_copy(update={"policy": named}), parse("targets: [{name: other, server: nvidia}]"))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("export: {outputs: [a]}", "export.outputs"),
        ("export: {postprocess: softmax}", "export.postprocess"),
        ("export: {torchscript: true}", "export.torchscript"),
        ("serving: {sequence_batching: {states: {a: b}}}", "serving.sequence_batching"),
        ("targets: [{name: gpu, accelerator: nvidia, server: nvidia}]", "target gpu"),
        ("targets: [{name: own, engine: openvino}]", "target own"),
    ],
)
def test_what_only_graphs_have_is_refused_by_name(tmp_path: Path, spec: str, named: str) -> None:
    with pytest.raises(SpecInvalid, match=named):
        check_python(site(tmp_path), parse(spec))


@pytest.mark.parametrize("kind", ["text", "image"])
def test_fronts_run_on_either_server_but_not_with_pytorch_nor_on_arm(tmp_path: Path, kind: str) -> None:
    family = next(each for each in table.FAMILIES if each.kind == kind)
    for target in ("server: nvidia", "accelerator: nvidia, server: nvidia, engine: tensorrt", "engine: openvino"):
        family.check(site(tmp_path), parse(f"targets: [{{name: a, {target}}}]"), inspected())
    for target, reason in (
        ("server: nvidia, engine: pytorch, precisions: [fp32]", "target a has `engine: pytorch`"),
        ("server: nvidia, accelerator: cpu-arm64", "target a has Arm"),
        ("server: nvidia, accelerator: nvidia, engine: vllm, precisions: [fp16]", "for models that generate text"),
    ):
        spec = parse(f"export: {{torchscript: true}}\ntargets: [{{name: a, {target}}}]")
        with pytest.raises(SpecInvalid, match=reason):
            family.check(site(tmp_path), spec, inspected())


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("serving: {version_policy: {latest: 2}}", "`serving.version_policy` is set, but a pipeline has no graph"),
        ("serving: {lengths: {pad: {ids: 0}}}", "`serving.lengths` is set"),
        ("targets: [{name: a}, {name: b}]", "the spec has 2 targets"),
    ],
)
def test_what_a_pipeline_has_not_is_refused_by_name(tmp_path: Path, spec: str, reason: str) -> None:
    family, pipeline = PipelineFamily(), inspected("shiplift_pipeline")
    family.check(site(tmp_path), parse(""), pipeline)
    with pytest.raises(SpecInvalid, match=reason):
        family.check(site(tmp_path), parse(spec), pipeline)


def test_the_site_may_refuse_python_whatever_the_spec_says() -> None:
    spec = parse("admission: {python: sandbox}")
    policy.check(SitePolicy(), spec)
    with pytest.raises(PolicyRefused, match=r"admission\.python is 'sandbox', `policy\.python` allows refuse"):
        policy.check(SitePolicy(python=("refuse",)), spec)


def test_a_fallback_to_the_model_s_own_code_needs_the_word_that_admits_it() -> None:
    with pytest.raises(SpecInvalid, match=r"with `admission\.python: sandbox`"):
        parse("export: {fallback: python}")
    assert parse("{export: {fallback: python}, admission: {python: sandbox}}").export.fallback == "python"


def test_a_graph_that_may_fall_back_has_to_be_possible_as_python_too(tmp_path: Path) -> None:
    spec = parse("{export: {fallback: python, outputs: [a]}, admission: {python: sandbox}}")
    forest, graph = inspected("sklearn"), inspected("onnx")
    with pytest.raises(SpecInvalid, match=r"`export\.outputs` is set, but a Python model has no graph"):
        table.recognised(forest).check(site(tmp_path), spec, forest)
    table.recognised(graph).check(site(tmp_path), spec, graph)
    table.recognised(forest).check(site(tmp_path), parse("export: {outputs: [a]}"), forest)  # auto: the graph alone
    unread = inspected("sklearn", no_python=Obstacle(what="it has no requirements.txt", do="Log it again."))
    either = parse("{export: {fallback: python}, admission: {python: sandbox}}")
    with pytest.raises(NotAdmitted, match=r"it has no requirements\.txt, and `export\.fallback` is python"):
        table.recognised(unread).check(site(tmp_path), either, unread)
