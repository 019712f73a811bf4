"""Rows that are asked again: what has another type than the first answer is no answer, whichever row comes first."""

import numpy as np

from shiplift.runtime.admission.python_answers import again
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.settings import alone


def owes(inputs: Arrays) -> Arrays:
    """A text for each row; a number, if the name is missing."""
    (name,) = inputs["name"]
    return {"text": np.array([f"{name} owes"], object) if name else np.array([1.5])}


def test_rows_of_another_type_are_the_same_errors_in_any_order() -> None:
    rows: Arrays = {"name": np.array(["Ada", "", "Bob"], object)}
    right = alone(owes, rows)
    assert right.answered.tolist() == [True, False, True]
    for order in ([1, 0, 2], [2, 1, 0], [1]):
        seen = again(owes, {"name": rows["name"][order]}, right)
        assert seen.answered.tolist() == right.answered[order].tolist()
        assert seen.outputs["text"][seen.answered].tolist() == right.outputs["text"][order][seen.answered].tolist()


def test_where_no_row_had_an_answer_none_has_to_be_like_it() -> None:
    def fails(_: Arrays) -> Arrays:
        raise ValueError("no")

    rows: Arrays = {"name": np.array(["Ada"], object)}
    assert again(owes, rows, alone(fails, rows)).answered.tolist() == [True]
