import json

import pytest

from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline
from shiplift.runtime.serving.bundles import graph
from shiplift.runtime.serving.bundles.names import members_by_name
from shiplift.runtime.serving.triton.config import parse as parse_config
from shiplift.runtime.serving.triton.config import render
from shiplift.runtime.spec.pipeline import PipelineSpec, parse
from tests.unit.examples import Golden
from tests.unit.pipelines_of_models import CASCADE, OCR, SOURCES, STATIC, members


def sound(text: str) -> tuple[PipelineSpec, CheckedPipeline]:
    """A definition and its check; the digest is one that stays."""
    written, known = parse(text), members()
    checked = check(written, {name: known[name] for name in written.spec.members}, SOURCES)
    assert checked.problems == ()
    return written.spec, checked.model_copy(update={"digest": "0123456789ab"})


def test_the_ensemble_is_the_one_promised(golden: Golden) -> None:
    spec, checked = sound(STATIC)
    golden("pipeline.ranked.config.pbtxt", render(graph.ensemble(spec, checked)))
    golden("pipeline.ranked.witness.config.pbtxt", render(graph.witness(spec, checked)))


@pytest.mark.parametrize("text", [CASCADE, OCR])
def test_the_model_in_bls_and_its_plan_are_the_ones_promised(text: str, golden: Golden) -> None:
    spec, checked = sound(text)
    golden(f"pipeline.{spec.name}.config.pbtxt", render(graph.bls(spec)))
    golden(f"pipeline.{spec.name}.json", json.dumps(graph.plan(spec, checked), indent=1, sort_keys=True) + "\n")
    if spec.functions:
        golden(f"pipeline.{spec.name}.pool.config.pbtxt", render(graph.pool(spec, checked)))
        golden(f"pipeline.{spec.name}.pool.json", json.dumps(graph.pooled(spec), indent=1, sort_keys=True) + "\n")


def test_an_ensemble_calls_each_member_under_its_name_and_version_in_the_bundle() -> None:
    spec, checked = sound(STATIC)
    steps = parse_config(render(graph.ensemble(spec, checked))).ensemble_scheduling.step
    called = {step.model_name: step.model_version for step in steps}
    expected = {name: package.version for name, package in members_by_name(checked).items()}
    assert called == expected | {"ranked-bundle--0123456789ab": 1}


def test_two_members_at_one_version_are_one_model_and_at_two_versions_two() -> None:
    _, checked = sound(STATIC)
    first, second = checked.members
    same = checked.model_copy(update={"members": (first, first.model_copy(update={"name": "again"}))})
    assert len(members_by_name(same)) == 1
    newer = first.package.model_copy(update={"version": 9})
    both = checked.model_copy(update={"members": (first, second.model_copy(update={"package": newer}))})
    assert set(members_by_name(both)) == {"encoder-2--0123456789ab", "encoder-9--0123456789ab"}


def test_the_outputs_come_from_the_witness_alone_after_all_steps() -> None:
    spec, checked = sound(STATIC)
    *steps, witness = graph.ensemble(spec, checked).ensemble_scheduling.step
    inner = {tensor for step in steps for tensor in step.output_map.values()}
    assert not inner & {*spec.outputs, *spec.inputs}
    assert set(witness.input_map.values()) == {"step/label"} <= inner
    assert dict(witness.output_map) == {"label": "label", "bundle": "bundle"}
    assert [tensor.name for tensor in graph.witness(spec, checked).input] == ["step/label"]
