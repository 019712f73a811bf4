from typing import Any

import pytest
import yaml

from shiplift.runtime.composition.check import check
from shiplift.runtime.composition.checked import CheckedPipeline, Unusable
from shiplift.runtime.spec.pipeline import parse
from tests.unit.examples import config, tensor
from tests.unit.pipelines_of_models import CASCADE, OCR, SOURCES, STATIC, member, members


def checked(text: str, **changes: Any) -> CheckedPipeline:
    """The check of a definition, with some members replaced."""
    written = parse(text)
    known = {**members(), **changes}
    return check(written, {name: known[name] for name in written.spec.members if name in known}, SOURCES)


def whats(result: CheckedPipeline) -> list[str]:
    return [f"{problem.path}: {problem.what}" for problem in result.problems]


def replaced(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "way", "order"),
    [
        (STATIC, "ensemble", ("embed", "rank")),
        (CASCADE, "bls", ("guess", "think")),
        (OCR, "bls", ("find", "crop", "read", "vote")),
    ],
)
def test_the_examples_are_sound(text: str, way: str, order: tuple[str, ...]) -> None:
    result = checked(text)
    assert whats(result) == []
    assert (result.way, result.order) == (way, order)
    assert len(result.digest) == 12


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ("  rank:\n", "  again: {member: encode, inputs: {input: x}, outputs: {features: more}}\n  rank:\n"),
            "embed and again can run at the same time, and Triton's ensembles lose requests when one fails",
        ),
        (("name: ranked", "name: ranked\ntimeout_s: 3"), "the pipeline has a time limit"),
        (("member: encode", "timeout_s: 3\n    member: encode"), "embed has a time limit"),
    ],
)
def test_what_triton_s_ensembles_can_t_do_runs_in_bls(change: tuple[str, str], reason: str) -> None:
    text = replaced(STATIC, *change)
    if "features: more" in text:
        text = replaced(text, "outputs: {label: {", "outputs: {more: {datatype: FP32, shape: [-1, 8]}, label: {")
    result = checked(text)
    assert (result.problems, result.way, result.reasons) == ((), "bls", (reason,))


def test_edges_have_the_shape_that_both_ends_know() -> None:
    shapes = {(edge.tensor, edge.giver, edge.taker): edge.shape for edge in checked(OCR).edges}
    assert shapes == {
        ("image", "", "find"): (1, -1, -1, 3),
        ("image", "", "crop"): (1, -1, -1, 3),
        ("heat", "find", "crop"): (1, 1, -1, -1),
        ("lines", "crop", "read"): (-1, 3, 48, 320),
        ("logits", "read", "vote"): (-1, -1, 97),
        ("text", "vote", ""): (1, 1),
    }


def test_a_number_per_sample_is_a_column() -> None:
    (edge,) = [edge for edge in checked(STATIC).edges if edge.tensor == "label"]
    assert (edge.datatype, edge.shape) == ("INT64", (-1, 1))


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (
            STATIC,
            "inputs: {input: x}",
            "inputs: {input: label}",
            "steps.embed: the steps wait for each other: embed -> rank -> embed",
        ),
        (
            STATIC,
            "{features: embedding}\n    outputs",
            "{features: embeding}\n    outputs",
            "steps.rank.inputs.features: no step gives the tensor 'embeding'; did you mean 'embedding'?",
        ),
        (
            STATIC,
            "outputs: {features: embedding}",
            "outputs: {features: label}",
            "steps.rank.outputs.label: the tensor 'label' is also given by embed",
        ),
        (
            STATIC,
            "inputs: {x: {",
            "inputs: {y: {datatype: FP32, shape: [1]}, x: {",
            "inputs.y: no step takes the tensor 'y'",
        ),
        (
            STATIC,
            "outputs: {label: {",
            "outputs: {x: {datatype: FP32, shape: [-1, 4]}, label: {",
            "outputs.x: 'x' is an input, which the client already has",
        ),
        (
            STATIC,
            "x: {datatype: FP32, shape: [-1, 4]}",
            "x: {datatype: FP32, shape: [-1, 5]}",
            "steps.embed.inputs.input: x is FP32[-1, 5], but embed takes FP32[-1, 4]",
        ),
        (
            STATIC,
            "x: {datatype: FP32, shape: [-1, 4]}",
            "x: {datatype: UINT8, shape: [-1, 4]}",
            "steps.embed.inputs.input: x is UINT8[-1, 4], but embed takes FP32[-1, 4]",
        ),
        (
            STATIC,
            "label: {datatype: INT64, shape: [-1, 1]}",
            "label: {datatype: INT64, shape: [-1]}",
            "outputs.label: label is INT64[-1, 1], but the output takes INT64[-1]",
        ),
        (
            STATIC,
            "x: {datatype: FP32, shape: [-1, 4]}",
            "x: {datatype: FP32, shape: [9, 4]}",
            "steps.embed.inputs.input: x has 9 rows, and encode takes at most 8 in a request",
        ),
        (
            STATIC,
            "inputs: {input: x}",
            "inputs: {inputs: x}",
            "steps.embed.inputs.inputs: there is no 'inputs': encode takes input FP32[-1, 4]",
        ),
        (
            STATIC,
            "inputs: {input: x}",
            "inputs: {inputs: x}",
            "steps.embed.inputs: 'input' is missing: encode takes input FP32[-1, 4]",
        ),
        (
            STATIC,
            "outputs: {features: embedding}",
            "outputs: {feature: embedding}",
            "steps.embed.outputs.feature: there is no 'feature': encode gives features FP32[-1, 8]",
        ),
        (
            STATIC,
            "member: encode",
            "member: encod",
            "steps.embed.member: there is no member 'encod'; did you mean 'encode'?",
        ),
        (STATIC, "member: encode", "member: encod", "members.encode: no step runs the member 'encode'"),
        (
            CASCADE,
            "otherwise: {score: quick}",
            "otherwise: {score: confidence}",
            "steps.think.otherwise.score: confidence is FP32[1, 1], but stands in for score, which is FP32[1, 3]",
        ),
        (CASCADE, "below: 0.8", "equals: high", "steps.think.when.equals: 'high' is not FP32"),
        (CASCADE, "otherwise: {score: quick}", "otherwise: {}", "steps.guess.outputs.score: no step takes the tensor"),
        (
            OCR,
            "admission: {python: sandbox}",
            "admission: {}",
            "steps.crop.python: crop.py is code, which is refused by default",
        ),
        (OCR, "    for_each: {over: lines, max: 64}\n", "", ""),
        (OCR, "{value: 0, shape: [1, 40, 97]}", "0", "steps.read.defaults.logits: the output is FP32[-1, -1, 97]"),
        (OCR, "{value: 0, shape: [1, 40, 97]}", "{value: 0, shape: [1, 97]}", "does not fit FP32[-1, -1, 97]"),
        (OCR, "{value: 0, shape: [1, 40, 97]}", "{value: a, shape: [1, 40, 97]}", "'a' is not FP32"),
        (OCR, "inputs: {logits: logits}\n", "inputs: {log its: logits}\n", "can't be the name of a parameter"),
        (OCR, "python: crop.py", "python: 7.py", "can't be the name of a function"),
    ],
)
def test_a_mistake_is_found(text: str, old: str, new: str, message: str) -> None:
    result = checked(replaced(text, old, new))
    assert any(message in what for what in whats(result)) if message else not result.problems
    assert bool(result.digest) is not bool(result.problems)
    assert all(problem.line and problem.do for problem in result.problems)


def test_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    text = replaced(replaced(OCR, "python: sandbox", "python: refuse"), "{x: lines}", "{x: line}").replace(
        "over: lines", "over: line"
    )
    result = checked(text, recognise=Unusable(what="it was refused", do="Name another."))
    assert [problem.path for problem in result.problems] == [
        "members.recognise",
        "steps.crop.python",
        "steps.crop.outputs.lines",
        "steps.read.inputs.x",
        "steps.vote.python",
    ]


def test_a_problem_is_a_sentence_with_its_place() -> None:
    member, step = map(str, checked(replaced(STATIC, "member: encode", "member: encod")).problems)
    assert member == "line 6, members.encode: no step runs the member 'encode'. Leave it out, or use it in a step."
    assert step.endswith("did you mean 'encode'? List it in `members`.")


def test_an_unusable_member_is_one_problem_and_no_cascade() -> None:
    result = checked(STATIC, encode=Unusable(what="version 2 of 'encoder' is refused", do="Name another."))
    assert whats(result) == ["members.encode: version 2 of 'encoder' is refused"]


def test_a_member_twice_at_different_versions_is_two_members() -> None:
    text = """
name: twice
inputs: {x: {datatype: FP32, shape: [-1, 4]}}
outputs: {old: {datatype: FP32, shape: [-1, 4]}, new: {datatype: FP32, shape: [-1, 4]}}
members: {before: {model: same, version: 1, follow: pinned}, after: {model: same}}
steps:
  one: {member: before, inputs: {a: x}, outputs: {b: old}}
  two: {member: after, inputs: {a: x}, outputs: {b: new}}
"""
    same = {
        name: member("same", [tensor("a", -1, 4)], [tensor("b", -1, 4)], version=version)
        for name, version in (("before", 1), ("after", 2))
    }
    result = checked(text, **same)
    assert whats(result) == []
    assert [(each.name, each.package.version) for each in result.members] == [("before", 1), ("after", 2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequences": True}, "keeps states between requests"),
        ({"server": "nvidia"}, "the members are for different servers"),
    ],
)
def test_a_member_that_does_not_fit_in_is_a_problem(changes: dict[str, Any], message: str) -> None:
    package = members()["encode"].model_copy(update=changes)
    assert any(message in what for what in whats(checked(STATIC, encode=package)))


def test_a_member_of_one_row_at_a_time_needs_a_loop() -> None:
    alone = members()["recognise"].model_copy(update={"config": config(max_batch=1)})
    without = replaced(OCR, "    for_each: {over: lines, max: 64}\n", "")
    (problem,) = checked(without, recognise=alone).problems
    assert "lines has any number of rows, and recognise takes at most 1" in problem.what
    assert "for_each: {over: lines" in problem.do
    assert not checked(OCR, recognise=alone).problems


def test_a_source_that_can_t_be_read_is_a_problem() -> None:
    written, known = parse(OCR), members()
    result = check(
        written,
        {name: known[name] for name in written.spec.members},
        {**SOURCES, "crop.py": Unusable(what="crop.py can't be read", do="Put it there.")},
    )
    assert whats(result) == ["steps.crop.python: crop.py can't be read"]


def test_a_step_that_may_not_run_gives_any_number_of_rows() -> None:
    text = replaced(CASCADE, "otherwise: {score: quick}\n", "otherwise: {}\n")
    text = replaced(text, "{score: quick, confidence", "{confidence")
    (edge,) = [edge for edge in checked(text).edges if (edge.tensor, edge.taker) == ("score", "")]
    assert edge.shape == (1, 3)  # the output wants one row: without the step it has none, which fails the request
    body = yaml.safe_load(text)
    body["outputs"]["score"]["shape"] = [-1, 3]
    (edge,) = [edge for edge in checked(yaml.safe_dump(body)).edges if (edge.tensor, edge.taker) == ("score", "")]
    assert edge.shape == (-1, 3)


@pytest.mark.parametrize("change", ["spec", "member", "source"])
def test_the_digest_names_everything_that_answers(change: str) -> None:
    written, known = parse(OCR), {name: members()[name] for name in ("detect", "recognise")}
    before = check(written, known, SOURCES).digest
    assert check(written, known, SOURCES).digest == before
    if change == "spec":
        after = check(parse(replaced(OCR, "max: 64", "max: 65")), known, SOURCES)
    elif change == "member":
        other = known["detect"].repository.model_copy(update={"sha256": "f" * 64})
        after = check(written, {**known, "detect": known["detect"].model_copy(update={"repository": other})}, SOURCES)
    else:
        after = check(written, known, {**SOURCES, "crop.py": b"def crop(image, heat): return {}"})
    assert after.digest not in ("", before)
