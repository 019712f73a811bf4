"""How rows are asked, and what is found out so, of functions that misbehave in known ways."""

from typing import Any
from unittest.mock import Mock

import numpy as np

from shiplift.runtime.guest.python.values import MISSING
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.oracle import answers_to, examine
from shiplift.runtime.proof.settings import alone, from_threads, joined, together, with_neighbours

X = {"x": np.arange(12, dtype=np.float32).reshape(6, 2) - 5}
ORIGINS = [f"row {row}" for row in range(6)]


def double(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"] * 2}


def centred(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"] - inputs["x"].mean(axis=0)}


def picky(inputs: Arrays) -> Arrays:
    if (inputs["x"][:, 0] == -1).any():
        raise KeyError("-1 is not a category")
    return double(inputs)


class Remembering:
    """Answers with the sum of all that it was asked."""

    def __init__(self) -> None:
        self.total = np.zeros(2, np.float32)

    def __call__(self, inputs: Arrays) -> Arrays:
        self.total = self.total + inputs["x"].sum(axis=0)
        return {"y": inputs["x"] + self.total}


def test_a_row_that_raises_does_so_by_itself() -> None:
    seen = alone(picky, X)
    assert seen.errors == ("", "", "KeyError: '-1 is not a category'", "", "", "")
    np.testing.assert_array_equal(seen.outputs["y"][seen.answered], np.delete(X["x"] * 2, 2, axis=0))
    assert all("KeyError" in error for error in together(picky, X).errors)
    assert from_threads(picky, X, 3).errors == seen.errors
    assert not with_neighbours(picky, X, seen, ORIGINS)


def test_what_is_no_answer_is_an_error() -> None:
    cases: list[tuple[Any, str]] = [
        ({"y": None}, "type object"),
        ({"y": np.zeros((5, 2))}, "is not a batch"),
        ({"y": 1.0}, "is not a batch"),
        ({"y": np.zeros(6, complex)}, "type complex128"),
        ({"y": [None] * 6}, "type object"),
        ({}, "no output"),
        (None, "AttributeError"),
    ]
    for answer, said in cases:
        assert said in together(Mock(return_value=answer), X).errors[0], answer

    def moody(inputs: Arrays) -> Arrays:
        return {"y": np.array(["a"]) if inputs["x"][0, 0] > 0 else np.array([0.5])}

    assert [bool(error) for error in alone(moody, X).errors] == [False, False, False, True, True, True]


def test_a_row_that_changes_with_its_neighbours_is_found_with_the_neighbour() -> None:
    found = with_neighbours(centred, X, alone(centred, X), ORIGINS)
    assert found
    assert (found.row, found.origin, found.setting) == (0, "row 0", "in a batch with row 1")
    assert with_neighbours(double, X, alone(double, X), ORIGINS) is None

    def first_matters(inputs: Arrays) -> Arrays:
        """Right in the order that is asked, wrong where row 2 comes first in a batch of several."""
        bad = inputs["x"][0, 0] == -1 and len(inputs["x"]) > 2
        return {"y": inputs["x"] * 2 + bad}

    found = with_neighbours(first_matters, X, alone(first_matters, X), ORIGINS)
    assert found
    assert found.setting == "in a batch of 3"


def test_an_original_is_examined() -> None:
    rng = np.random.default_rng(0)
    stable = examine(double, X, ORIGINS, seconds=9)
    assert (stable.unstable, stable.mixes) == (None, None)
    assert examine(centred, X, ORIGINS, seconds=9).mixes
    dropout = examine(lambda inputs: {"y": inputs["x"] * rng.random(2)}, X, ORIGINS, seconds=9).unstable
    assert dropout
    assert dropout.setting == "asked again"
    assert examine(Remembering(), X, ORIGINS, seconds=9).unstable


def test_a_slow_original_is_asked_less() -> None:
    now, sizes = [0.0], []

    def slow(inputs: Arrays) -> Arrays:
        now[0] += 10 * len(inputs["x"])
        sizes.append(len(inputs["x"]))
        return double(inputs)

    assert not examine(slow, X, ORIGINS, seconds=5, clock=lambda: now[0]).mixes
    assert sum(sizes) <= 10
    assert len(answers_to(slow, X, batches=False, seconds=25, clock=lambda: now[0]).errors) == 3
    assert len(answers_to(slow, X, batches=True, seconds=1, clock=lambda: now[0]).errors) == 6


def test_a_batch_with_an_error_is_asked_row_by_row() -> None:
    assert answers_to(picky, X, batches=True).errors == alone(picky, X).errors


def test_rows_keep_their_places_where_a_whole_batch_raises() -> None:
    rows = {"x": np.arange(60, dtype=np.float32)[:, None]}

    def ask(inputs: Arrays) -> Arrays:
        if ((inputs["x"] >= 8) & (inputs["x"] < 24)).any():
            raise ValueError("missing")
        return {"y": inputs["x"] * 2, "t": np.array(["a"] * len(inputs["x"]))}

    answers = answers_to(ask, rows, batches=True)
    assert [bool(error) for error in answers.errors] == [8 <= row < 24 for row in range(60)]
    right = np.flatnonzero(answers.answered)
    assert np.array_equal(answers.outputs["y"][right, 0], right * 2.0)
    assert len(answers.outputs["t"]) == 60


def test_rows_that_differ_only_in_what_is_missing_have_one_type() -> None:
    """Python answers a whole number or None, and so on, row by row: only all rows show the type of an output."""
    nan, exact = [np.nan], 2**53
    cases: list[tuple[list[list[Any]], list[Any]]] = [
        ([[1], nan, [3]], [1.0, np.nan, 3.0]),
        ([nan, [1], [2.5]], [np.nan, 1.0, 2.5]),
        ([["a"], nan, ["b"]], ["a", MISSING, "b"]),
        ([nan, ["a"]], [MISSING, "a"]),
        ([[True], nan, [False]], [1.0, np.nan, 0.0]),
        ([nan, nan], [np.nan, np.nan]),
        ([[exact], [exact + 1]], [exact, exact + 1]),
    ]
    for rows, expected in cases:
        parts = [Answers.of({"y": np.array(row, object if isinstance(row[0], str) else None)}) for row in rows]
        seen = joined(parts)
        assert seen.answered.all(), rows
        assert str(seen.outputs["y"].tolist()) == str(expected)


def test_rows_that_say_more_than_one_type_holds_are_errors() -> None:
    cases: tuple[list[list[Any]], ...] = (
        [[-1], [2**64 - 1]],
        [["a"], [1.0]],
        [[True], [1.5]],
        [[True], [1]],
        [[1.5], [2**53 + 1]],
    )
    for rows in cases:
        parts = [Answers.of({"y": np.array(row, object if isinstance(row[0], str) else None)}) for row in rows]
        assert joined(parts).answered.tolist() == [True, False], rows
