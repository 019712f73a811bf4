from typing import Any

import numpy as np
import pytest

from shiplift.runtime.admission.verification import _case
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.records.model import ParityCase
from tests.unit.examples import signature

EXAMPLE = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


class Running:
    """A session that answers what it was told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def get_outputs(self) -> list[Any]:
        from types import SimpleNamespace

        return [SimpleNamespace(name="output")]

    def run(self, names: list[str], feeds: dict[str, Any]) -> list[Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [np.asarray(self.answer)]


def compared(expected: Any, got: Any) -> ParityCase:
    answers = Answers(outputs={"output": np.asarray(expected)}, errors=("", ""))
    return _case(Running(got), {"input": EXAMPLE[:2]}, answers, signature(), "example")


def test_a_difference_is_the_largest_of_any_value() -> None:
    case = compared([[1.0, 2.0, 4.0]] * 2, [[1.0, 2.0, 4.0], [1.0, 2.5, 4.0]])
    assert (case.max_abs, case.max_rel, case.problem) == (0.5, 0.125, "")


@pytest.mark.parametrize(
    ("expected", "got", "problem"),
    [
        ([[1.0, 2.0]], [[1.0]], "with shape"),
        ([[np.nan]], [[1.0]], "the original gives NaN in 'output'"),
        ([[np.nan]], [[np.nan]], "the original gives NaN in 'output'"),
        ([[1.0]], [[np.nan]], "the exported model gives NaN in 'output'"),
        ([[1]], [[2]], "'output' differs where it must be equal"),
    ],
)
def test_where_there_is_nothing_to_compare_the_case_says_what_is_wrong(expected: Any, got: Any, problem: str) -> None:
    case = compared(expected, got)
    assert case.max_abs == np.inf
    assert problem in case.problem


def test_a_model_that_does_not_answer_a_batch_is_told_which() -> None:
    with pytest.raises(ExportFailed, match="does not answer a batch of 2: odd shape"):
        compared([[1.0]], RuntimeError("odd shape"))
