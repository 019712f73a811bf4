"""The rule by which answers are the same, on answers written by hand."""

from dataclasses import replace
from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import AnswerComparison, compare, with_row
from shiplift.runtime.records.proof import RowsAsked

LARGE = np.array([[3e5, 80.0], [2e5, 60.0], [4e5, 90.0]])


def compared(original: Any, served: Any) -> AnswerComparison:
    left, right = (Answers.of({"y": np.asarray(each)}) for each in (original, served))
    return compare(left, right, ["example"] * len(left.errors))


def test_answers_are_the_same_or_not() -> None:
    nan, inf = np.nan, np.inf
    texts = np.array(["a", "b"], dtype=object)
    cases: list[tuple[str, Any, Any, bool]] = [
        ("labels are equal", [1, 2], [1, 2], True),
        ("a label differs", [1, 2], [1, 3], False),
        ("widths of integers are the engine's", np.array([1, 2], np.int32), np.array([1, 2], np.int64), True),
        ("labels are no floats", [1, 2], [1.0, 2.0], False),
        ("texts are equal", texts, np.array([b"a", b"b"], dtype=object), True),
        ("a text differs", texts, np.array(["a", "B"], dtype=object), False),
        ("a boolean differs", [True, False], [True, True], False),
        ("a column may lack its axis", [1.0, 2.0], [[1.0], [2.0]], True),
        ("another shape", np.ones((2, 3)), np.ones((2, 2)), False),
        ("transposed", np.ones((2, 2, 3)), np.ones((2, 3, 2)), False),
        ("NaN is NaN", [[nan, 1.0]], [[nan, 1.0]], True),
        ("NaN is not a number", [[nan, 1.0]], [[0.0, 1.0]], False),
        ("a number is not a NaN", [[2.0, 1.0]], [[nan, 1.0]], False),
        ("infinities are equal", [[inf, -inf]], [[inf, -inf]], True),
        ("infinities have a sign", [[inf, 1.0]], [[-inf, 1.0]], False),
        ("too large for FP32", [[1e52], [-1e52]], np.array([[inf], [-inf]], np.float32), True),
        ("too small for FP32", [[9e-46], [7e-45]], np.zeros((2, 1), np.float32), True),
        ("rounded to FP32", LARGE, LARGE.astype(np.float32), True),
        ("a small column is lost beside a large one", LARGE, LARGE * [1, 0], False),
        ("a small column is off by a percent", LARGE, LARGE * [1, 1.01], False),
        ("a small value in a column of large ones", [[1000.0], [0.01], [900.0]], [[1000.0], [0.02], [900.0]], True),
        ("labels near 0.004", [[0.004], [0.005]], [[0.0], [0.0]], False),
        ("what the other class leaves", [[1.0, 1e-12], [0.7, 0.3]], [[1.0, 0.0], [0.7, 0.3]], True),
        ("another probability", [[0.99, 0.01], [0.7, 0.3]], [[0.98, 0.02], [0.7, 0.3]], False),
        ("no probabilities", [[1.0, 1e-6], [3.0, 2e-6]], [[1.0, 0.0], [3.0, 2e-6]], False),
        ("zeros and dust", [[0.0, 1.0]], [[1e-9, 1.0]], True),
        ("zeros and more", [[0.0, 1.0]], [[1e-3, 1.0]], False),
        ("FP16 is coarse", np.array([0.1], np.float16), np.array([0.1001], np.float32), True),
        ("and not that coarse", np.array([0.1], np.float16), np.array([0.101], np.float32), False),
    ]
    for name, original, served, same in cases:
        assert compared(original, served).same is same, name


def test_numbers_in_json_may_be_off_by_the_noise_of_their_output_and_nothing_else() -> None:
    original = '[{"word": "Zürich", "score": 0.5}]'
    for noise, served, same in (
        (None, original.replace("0.5", "0.500001"), False),
        (1e-3, original, True),
        (1e-3, original.replace("0.5", "0.507"), True),
        (1e-3, original.replace("0.5", "0.51"), False),
        (1e-3, original.replace("Zürich", "Zurich"), False),
        (1e-3, "0.5", False),
    ):
        left, right = (Answers.of({"y": np.array([[text]], dtype=object)}) for text in (original, served))
        known = left if noise is None else replace(left, noise={"y": np.array([noise])})
        assert compare(known, right, ["example"]).same is same, served


def test_the_original_s_noise_is_what_its_column_may_be_off() -> None:
    off = Answers.of({"y": LARGE * [1 + 3e-4, 1]})
    for noise, same in (([0.0, 50.0], False), ([50.0, 0.0], True)):
        original = replace(Answers.of({"y": LARGE}), noise={"y": np.array(noise)})
        assert compare(original, off, ["example"] * 3).same is same


def test_the_first_difference_and_the_worst_column_are_named() -> None:
    served = LARGE.copy()
    served[1, 1], served[2, 0] = 61.0, 9e5
    left, right = (Answers.of({"labels": np.arange(3), "y": each}) for each in (LARGE, served))
    result = compare(left, right, ["example", "validation", "validation"], setting="in a batch of 3")
    assert result.first
    assert (result.first.row, result.first.origin, result.first.output, result.first.column) == (
        1,
        "validation",
        "y",
        1,
    )
    assert str(result.first) == (
        "to row 1 of the validation rows (in a batch of 3) the original answers 60.0 for 'y', column 1, "
        "the served form answers 61.0: 1 off, 0.0148 allowed"
    )
    assert result.worst
    assert (result.worst.column, result.worst.difference) == (0, 5e5)
    assert result.wrong == (RowsAsked(origin="validation", rows=2),)


def test_outputs_are_paired_by_name() -> None:
    a, b = np.array([1.0]), np.array([2.0])
    original = Answers.of({"a": a, "b": b})
    assert compare(original, Answers.of({"b": b, "a": a}), ["example"]).same
    assert not compare(original, Answers.of({"a": b, "b": a}), ["example"]).same
    lacking = compare(original, Answers.of({"a": a}), ["example"]).first
    assert lacking
    assert (lacking.output, lacking.original, lacking.served) == ("b", "has it", "lacks it")


def test_an_error_is_an_answer() -> None:
    x = np.array([1.0, 2.0])
    raises = Answers(outputs={"y": x}, errors=("", "KeyError: 'x'"))
    assert compare(raises, Answers(outputs={"y": x * [1, 5]}, errors=("", "out of range")), ["example"] * 2).same
    first = compare(raises, Answers.of({"y": x}), ["example"] * 2).first
    assert first
    assert (first.row, first.original, first.served) == (1, "raises KeyError: 'x'", "answers")
    nothing = Answers(outputs={}, errors=("bad", "bad"))
    assert compare(nothing, nothing, ["example"] * 2).same
    assert not compare(Answers.of({"y": x}), nothing, ["example"] * 2).same


def test_a_counterexample_shows_its_row_shortly() -> None:
    found = compare(Answers.of({"y": np.array([1, 2])}), Answers.of({"y": np.array([1, 3])}), ["a", "b"]).first
    rows: Arrays = {"x": np.array([[1.0], [np.nan]]), "v": np.eye(2), "s": np.array([[b"a"], ["\u00fc" * 300]], object)}
    told = str(with_row(found, rows))
    assert '; the row is {"x": NaN, "v": [0.0, 1.0], "s": "\u00fc' in told
    assert told.endswith("...")
    assert len(told) < 450
    assert with_row(None, rows) is None
