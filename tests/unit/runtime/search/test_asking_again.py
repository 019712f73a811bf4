"""Rows that are asked again: which they are, and where a form differs from what the original answered."""

import threading
import time

import numpy as np
import pytest

from shiplift.runtime.base.errors import UsageError
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.served import JudgedForm
from shiplift.runtime.proof.settings import Ask
from shiplift.runtime.search.asking_again import ask_form, found_rows

X = np.arange(6, dtype=np.float32).reshape(3, 2)
LOSSLESS, LOSSY = JudgedForm(), JudgedForm(lossy=5e-2)


def double(inputs: Arrays) -> Arrays:
    return {"y": 2 * inputs["x"]}


def mixing(inputs: Arrays) -> Arrays:
    return {"y": 2 * inputs["x"] + (len(inputs["x"]) > 1)}


class Crowded:
    """A server that answers wrongly while it answers somebody else."""

    def __init__(self) -> None:
        self.lock, self.running = threading.Lock(), 0

    def __call__(self, inputs: Arrays) -> Arrays:
        with self.lock:
            self.running += 1
        time.sleep(0.001)
        answer = {"y": 2 * inputs["x"] + np.float32(self.running > 1)}
        with self.lock:
            self.running -= 1
        return answer


def differences(ask: Ask, form: JudgedForm, *, rows: int = 3, clients: int = 1, most: int = 8) -> list[str]:
    questions = Questions(inputs={"x": X[:rows]}, origins=("example",) * rows)
    right = Answers.of(double({"x": X[:rows]}))
    return [each.difference for each in ask_form(ask, questions, right, form, clients, most)]


def test_rows_are_numbered_through_all_sets() -> None:
    sets = {"0": {"x": X}, "1": {"x": np.zeros((2, 5), np.float32)}}
    answers = {name: Answers.of(double(each)) for name, each in sets.items()}
    file = in_file(sets, answers, {"0": ("example",) * 3, "1": ("range",) * 2})
    questions, right = found_rows(file, [2, 0])
    np.testing.assert_array_equal(questions.inputs["x"], X[[2, 0]])
    np.testing.assert_array_equal(right.outputs["y"], 2 * X[[2, 0]])
    assert found_rows(file, [4])[0].origins == ("range",)
    for rows, said in (([5], "no row 5: the release asked 5 rows"), ([0, 3], "rows below and from 3 are of different")):
        with pytest.raises(UsageError, match=said):
            found_rows(file, rows)


def test_a_difference_is_told_where_it_is_seen() -> None:
    for ask, form, options, said in (
        (double, LOSSLESS, {}, ""),
        (double, LOSSLESS, {"clients": 4}, ""),
        (lambda inputs: {"y": 3 * inputs["x"] + 1}, LOSSLESS, {}, "(alone) the original answers"),
        (mixing, LOSSLESS, {}, "(among others)"),
        (mixing, LOSSLESS, {"most": 1}, ""),
        (mixing, LOSSLESS, {"rows": 1}, ""),
        (mixing, LOSSY, {}, "(among others)"),
        (lambda inputs: {"y": 2.1 * inputs["x"]}, LOSSY, {}, ""),
        (Crowded(), LOSSLESS, {"clients": 8}, "(among others)"),
    ):
        found = differences(ask, form, **options)
        assert all((said in each) if said else not each for each in found), (said, found)


def test_a_row_that_the_original_refuses_has_to_be_refused() -> None:
    questions = Questions(inputs={"x": X[:1]}, origins=("validation",))
    right = Answers(outputs={}, errors=("ValueError: unknown",))
    (again,) = ask_form(double, questions, right, LOSSLESS, 1, 8)
    assert "the original raises ValueError: unknown, the served form answers" in again.difference
