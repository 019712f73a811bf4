from collections.abc import Callable
from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.edges import edges
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.questions.question import NONE, Questions

KNOWN: Arrays = {"x": np.array([[1.0, -2.0], [0.5, 1.0]], np.float32), "ids": np.array([[1], [2]])}
FAR: Arrays = {"x": np.array([[3e38, 0.5], [-1e30, 1e30], [1e10, 1.0], [np.nan, 1e38]], np.float32)}


def found(function: Callable[[Any], Any], most: int | None = None) -> Questions:
    """The rows beside the edges of a function; then `most` rows are answered at a time."""

    def ask(inputs: Arrays, most: int | None = most) -> Answers:
        with np.errstate(all="ignore"):
            return answers_to(lambda rows: {"y": function(rows["x"])}, {"x": inputs["x"][:most]}, batches=True)

    rows = FAR | {"ids": np.array([[1], [2], [3], [4]])}
    return edges(ask, rows, ask(rows, None), KNOWN)


def test_rows_are_on_both_sides_of_the_magnitude_that_overflows() -> None:
    rows = found(lambda x: (x * x).sum(axis=1)).inputs["x"].astype(np.float64)

    squares, most = (rows**2).sum(axis=1), float(np.finfo(np.float32).max)
    below, above = squares < most, squares > most
    assert below.any()
    assert above.any()
    assert squares[below].max() > 0.8 * most
    assert squares[above].min() < 1.3 * most


def test_known_numbers_and_whole_ones_of_a_row_stay() -> None:
    rows = found(lambda x: (x * x).sum(axis=1)).inputs

    assert set(rows["ids"].ravel().tolist()) == {1, 2}  # of the rows that overflow
    assert np.all(rows["x"][rows["ids"].ravel() == 1, 1] == 0.5)


def test_there_are_none_without_an_edge_or_without_time() -> None:
    assert found(np.tanh) == NONE
    assert found(lambda x: (x * x).sum(axis=1), most=1) == NONE
