import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shiplift.runtime.base.errors import SpecInvalid
from shiplift.runtime.spec import pipeline
from shiplift.runtime.spec.pipeline import PipelineSpec, parse
from tests.unit.pipelines_of_models import CASCADE, OCR, STATIC


@pytest.mark.parametrize("text", [STATIC, CASCADE, OCR])
def test_an_example_survives_json(text: str) -> None:
    spec = parse(text).spec
    assert PipelineSpec.model_validate_json(spec.model_dump_json()) == spec


def test_parts_are_known_by_their_lines() -> None:
    written = parse(OCR)
    assert OCR.splitlines()[written.line("steps.crop.python") - 1].strip() == "python: crop.py"
    assert written.line("steps.crop.inputs.heat") == written.line("steps.crop.inputs")
    assert written.line("steps.crop.nothing.here") == written.line("steps.crop")
    assert written.line("nothing") == 0


def changed(text: str, path: str, value: Any) -> str:
    """A definition with one part replaced, added, or (None) removed."""
    body = yaml.safe_load(text)
    *parents, last = path.split(".")
    at = body
    for name in parents:
        at = at.setdefault(name, {})
    if value is None:
        del at[last]
    else:
        at[last] = value
    return yaml.safe_dump(body)


@pytest.mark.parametrize(
    ("text", "path", "value", "message"),
    [
        (STATIC, "name", "No Name", "name: string should match"),
        (STATIC, "steps.embed.input", {}, "steps.embed.input: there is no such field; did you mean 'inputs'?"),
        (STATIC, "steps.embed.member", None, "needs a `member` or a `python` file"),
        (STATIC, "steps.embed.python", "embed.py", "needs a `member` or a `python` file"),
        (STATIC, "steps.embed.function", "f", "`function` is for Python steps"),
        (STATIC, "steps.embed.outputs.features", {"datatype": "FP32", "shape": [1]}, "write only a name"),
        (STATIC, "steps.embed.otherwise", {"embedding": "x"}, "this one always runs"),
        (STATIC, "steps.embed.defaults", {"embedding": 0}, "`defaults` are for `on_error: default`"),
        (STATIC, "steps.embed.on_error", "default", "needs a value for 'embedding'"),
        (STATIC, "steps.embed.for_each", {"over": "embedding", "max": 3}, "not a tensor in the step's `inputs`"),
        (STATIC, "steps.embed.for_each", {"over": "x", "max": 0}, "greater than or equal to 1"),
        (STATIC, "steps.embed.timeout_s", 0, "greater than or equal to 0.01"),
        (STATIC, "steps.embed.timeout_s", True, "must not be true"),
        (STATIC, "steps", {}, "at least 1 item"),
        (STATIC, "inputs.x.shape", [-1, 0], "has a dimension of 0"),
        (STATIC, "inputs.x.shape", [], "at least 1 item"),
        (STATIC, "inputs.x.datatype", "FP31", "inputs.x.datatype"),
        (STATIC, "outputs.bundle", {"datatype": "BYTES", "shape": [1]}, "can't be called 'bundle'"),
        (STATIC, "members.encode.version", 2, "`follow: champion` excludes a `version`"),
        (STATIC, "members.encode.alias", "challenger", "`follow: champion` excludes `alias: challenger`"),
        (STATIC, "members.classify.alias", "challenger", "leave out one of the two"),
        (CASCADE, "steps.think.when.at_least", 0.1, "exactly one of"),
        (CASCADE, "steps.think.when.below", None, "exactly one of"),
        (CASCADE, "steps.think.when.below", float("nan"), "finite"),
        (CASCADE, "steps.think.otherwise", {"quick": "score"}, "not a tensor in the step's `outputs`"),
        (OCR, "steps.crop.python", "../crop.py", "inside"),
        (OCR, "steps.crop.python", "crop.so", "is not a `.py` file"),
        (OCR, "steps.crop.outputs", {"lines": "lines"}, "needs a `datatype` and a `shape`"),
        (OCR, "steps.crop.for_each", {"over": "image", "max": 3}, "`for_each` is for members"),
        (OCR, "admission.python", "anywhere", "admission.python"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, path: str, value: Any, message: str) -> None:
    with pytest.raises(SpecInvalid) as raised:
        parse(changed(text, path, value))
    assert message in raised.value.what
    assert raised.value.what.startswith("line ")


def test_all_mistakes_come_at_once() -> None:
    text = changed(changed(STATIC, "inputs.x.datatype", "FP31"), "steps.rank.timeout_s", -1)
    with pytest.raises(SpecInvalid) as raised:
        parse(text)
    assert len(raised.value.what.splitlines()) == 2


@pytest.mark.parametrize("text", ["a: &x 1\nb: *x", "[1]", "a: [", "x: !!python/name:os.system", "a: " + "[" * 40])
def test_what_is_no_plain_mapping_is_refused(text: str) -> None:
    with pytest.raises(SpecInvalid, match="the pipeline"):
        parse(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.sampled_from([STATIC, CASCADE, OCR]), st.data())
def test_whatever_is_written_somewhere_is_accepted_or_refused_as_a_spec(text: str, data: st.DataObject) -> None:
    body = yaml.safe_load(text)
    at: Any = body
    while True:
        key = data.draw(st.sampled_from(sorted(at)))
        if not isinstance(at[key], dict) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(_JSON)
    with contextlib.suppress(SpecInvalid):
        assert parse(yaml.safe_dump(body)).spec.steps


def test_the_schema_is_the_schema_promised(golden: Any) -> None:
    golden("pipeline.schema.json", json.dumps(pipeline.schema(), indent=2) + "\n")


def test_the_schema_accepts_the_examples() -> None:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    validator = Draft202012Validator(pipeline.schema())
    for text in (STATIC, CASCADE, OCR):
        assert not list(validator.iter_errors(yaml.safe_load(text)))
