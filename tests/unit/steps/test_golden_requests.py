"""Golden requests: which answers count as the same. A stand-in for the client's `ask` answers."""

import math
from typing import Any, cast

import numpy as np
import pytest

from shiplift.runtime.base.errors import GoldenMismatch
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.serving.triton.client import ALONE, SequenceStep, TritonClient, check_golden
from shiplift.runtime.serving.triton.repository import golden_arrays
from tests.unit.examples import tensor


class Answers:
    """Answers each row with what is planned for it, and keeps what it was asked."""

    def __init__(self, planned: Any) -> None:
        self.planned = list(planned)
        self.rows: list[Arrays] = []
        self.steps: list[SequenceStep] = []

    def infer(
        self,
        model: str,
        signature: Signature,
        inputs: Arrays,
        *,
        version: int | None = None,
        step: SequenceStep = ALONE,
    ) -> Arrays:
        self.rows.append(inputs)
        self.steps.append(step)
        return {"y": np.asarray(self.planned[len(self.rows) - 1])[None]}


def checked(expected: Any, got: Any, *, tolerance: float = 1e-3, datatype: Any = "FP32") -> Answers:
    answers = Answers(got)
    signature = Signature(inputs=(tensor("x", -1, 2),), outputs=(tensor("y", -1, 2, datatype=datatype),))
    golden = golden_arrays({"x": np.zeros((len(expected), 2), np.float32)}, {"y": np.asarray(expected)})
    check_golden(cast("TritonClient", answers), "digits", signature, golden, tolerance=tolerance)
    assert len(answers.rows) == min(len(expected), 8)
    return answers


ROWS = [[1.0, -10.0], [2.0, 0.5]]


def test_the_same_answers_pass_and_every_sample_is_asked_by_itself() -> None:
    answers = checked(ROWS, ROWS)
    assert [row["x"].shape for row in answers.rows] == [(1, 2), (1, 2)]


def test_no_more_than_eight_samples_are_asked() -> None:
    assert len(checked([[1.0, 2.0]] * 20, [[1.0, 2.0]] * 20).rows) == 8


@pytest.mark.parametrize(("off", "right"), [(0.009, True), (0.011, False), (-0.011, False)])
def test_a_difference_is_judged_against_the_largest_value(off: float, right: bool) -> None:
    got = [[1.0 + off, -10.0], ROWS[1]]
    if right:
        assert checked(ROWS, got).rows
    else:
        with pytest.raises(GoldenMismatch, match=r"'y' is off by .*, more than the 0\.001 allowed"):
            checked(ROWS, got)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_answer_that_is_no_number_is_wrong(bad: float) -> None:
    with pytest.raises(GoldenMismatch):
        checked(ROWS, [[1.0, bad], ROWS[1]])


def test_infinities_that_are_wanted_are_right() -> None:
    """Masked scores are minus infinity."""
    masked = [[1.0, -math.inf], [2.0, math.inf]]
    checked(masked, masked)
    with pytest.raises(GoldenMismatch):
        checked(masked, [[1.0, math.inf], [2.0, math.inf]])
    with pytest.raises(GoldenMismatch):
        checked(masked, [[1.5, -math.inf], [2.0, math.inf]])


def test_answers_that_are_all_zero_are_judged_by_the_difference_itself() -> None:
    checked([[0.0, 0.0]], [[1e-4, 0.0]])
    with pytest.raises(GoldenMismatch):
        checked([[0.0, 0.0]], [[0.1, 0.0]])


def test_answers_of_another_size_are_wrong() -> None:
    with pytest.raises(GoldenMismatch):
        checked([[1.0, 2.0]], [[1.0, 2.0, 3.0]])


def test_classes_must_be_equal_but_for_the_few_that_a_tolerance_allows() -> None:
    expected = [[n, n] for n in range(8)]
    checked(expected, expected, datatype="INT64")
    one_off = [[9, 0], *expected[1:]]
    with pytest.raises(GoldenMismatch):
        checked(expected, one_off, datatype="INT64")
    checked(expected, one_off, datatype="INT64", tolerance=0.1)


def test_texts_must_be_equal_however_they_are_given() -> None:
    expected = [["ä", "b"]]
    checked(expected, [np.array(["ä".encode(), b"b"], dtype=object)], datatype="BYTES")
    with pytest.raises(GoldenMismatch):
        checked(expected, [np.array([b"x", b"b"], dtype=object)], datatype="BYTES")
