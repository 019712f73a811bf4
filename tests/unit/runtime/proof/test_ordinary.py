from typing import Any

import numpy as np

from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.ordinary import with_usual, with_usual_far
from shiplift.runtime.proof.questions.question import Questions


def asked(rows: Any, origin: str, weights: Any) -> tuple[Questions, Answers]:
    inputs = np.asarray(rows, dtype=np.float64)
    return Questions(inputs={"x": inputs}, origins=(origin,) * len(inputs)), Answers.of({"y": inputs @ weights})


def off_by(right: Answers, rows: list[int], difference: float) -> Answers:
    outputs = {"y": right.outputs["y"].copy()}
    outputs["y"][rows] += difference
    return Answers.of(outputs)


def test_far_fetched_rows_do_not_decide_what_an_ordinary_row_may_be_off() -> None:
    rng, weights = np.random.default_rng(3), np.array([1.0, -2.0])
    sets = {
        "example": asked(rng.normal(size=(8, 2)), "example", weights),
        "questions-0": asked(rng.normal(size=(50, 2)) * 1e6, "sentinel", weights),
        "mixed": (
            Questions(inputs={"x": np.array([[0.5, 0.5], [2e6, 1e6]])}, origins=("validation", "edge")),
            Answers.of({"y": np.array([-0.5, 1e-3])}),  # the terms of the second row cancel
        ),
    }
    answers = with_usual(sets)
    mixed = answers["mixed"]
    assert not compare(mixed, off_by(mixed, [0], 0.05), ["validation", "edge"]).same
    assert compare(mixed, off_by(mixed, [1], 0.05), ["validation", "edge"]).same  # in FP32 it can't be better
    assert compare(mixed.take([1]), off_by(mixed.take([1]), [0], 0.05), ["edge"]).same  # also by itself
    example = answers["example"]
    assert not compare(example, off_by(example, [3], 0.01), ["example"] * 8).same
    assert compare(example, off_by(example, [3], 1e-5), ["example"] * 8).same


def test_a_far_fetched_row_is_never_compared_more_loosely_than_by_all_rows() -> None:
    weights = np.array([1.0, 1.0])
    sets = {
        "example": asked([[1, 1], [2, 1]], "example", weights),
        "questions-0": (
            Questions(inputs={"x": np.array([[1e30, 0], [np.inf, 1.0]])}, origins=("edge", "infinite")),
            Answers.of({"y": np.array([3.0, 2.0])}),  # a tree's leaves
        ),
    }
    right = with_usual(sets)["questions-0"]
    assert not compare(right, off_by(right, [0], 0.01), ["edge", "infinite"]).same
    assert not compare(right, off_by(right, [1], 0.01), ["edge", "infinite"]).same


def test_outputs_whose_shape_depends_on_the_row_are_relative_to_themselves() -> None:
    short, long = np.ones((2, 3)), np.ones((2, 5))
    sets = {
        "example": (Questions(inputs={"x": short}, origins=("example",) * 2), Answers.of({"y": short})),
        "questions-0": (Questions(inputs={"x": long}, origins=("length",) * 2), Answers.of({"y": long})),
    }
    answers = with_usual(sets)
    assert answers["example"].usual["y"].shape == (2, 3)
    assert "y" not in answers["questions-0"].usual


def test_rows_that_took_too_long_and_texts_are_left_out() -> None:
    inputs = {"x": np.arange(4.0)[:, None], "t": np.array(["a"] * 4, dtype=object)[:, None]}
    answers = Answers(outputs={"y": np.ones((2, 1))}, errors=("", "raises"))
    sets = {"questions-0": (Questions(inputs=inputs, origins=("range",) * 4), answers)}
    assert with_usual(sets)["questions-0"].usual["y"].shape == (2, 1)


def test_rows_far_from_all_others_may_be_off_by_last_places_but_not_by_an_overflow() -> None:
    known = Answers.of({"y": np.ones((4, 2))})
    far = with_usual_far(Answers.of({"y": np.array([[1e30, 0.0], [0.0, 1.0]])}), known, {})
    origins = ["far", "far"]
    assert compare(far, Answers.of({"y": np.array([[1e30, 1e25], [1e-3, 1.0]])}), origins).same
    for wrong in ([[1e30, np.inf], [0.0, 1.0]], [[1e30, 0.0], [1.0, 1.0]], [[np.nan, 0.0], [0.0, 1.0]]):
        assert not compare(far, Answers.of({"y": np.array(wrong)}), origins).same


def test_a_row_far_from_all_others_may_be_off_by_what_its_original_is_itself() -> None:
    known = Answers.of({"y": np.ones((4, 1))})
    right = Answers.of({"y": np.array([[3.0], [3.0]])})
    far = with_usual_far(right, known, {"y": np.array([5.0, 0.0])})

    found = compare(far, Answers.of({"y": np.zeros((2, 1))}), ["first", "second"])

    assert [each.origin for each in found.wrong] == ["second"]


def spectrum(times: float, seed: int) -> tuple[Any, Answers]:
    """Rows so many times as large as ordinary ones: a sum, what only rounding makes of zero, and a share in 0 to 1."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(40, 2)) * times
    columns = [inputs.sum(axis=1) * 10, rng.normal(size=40) * 1e-6 * times, 1 / (1 + np.exp(-inputs[:, 0] / times))]
    noise = np.array([1e-6, 2e-6, 1e-7])
    return inputs, Answers(outputs={"y": np.stack(columns, axis=1)}, errors=("",) * 40, noise={"y": noise})


def test_a_column_of_nothing_but_rounding_is_compared_as_one_of_zeros_in_rows_of_any_size() -> None:
    for times, off, too_far in ((1.0, 1e-6, 1e-3), (7.0, 3e-5, 1e-2), (1e6, 5e-4, 1e-2)):
        sets = {}
        for name, origin, size, seed in (("example", "example", 1.0, 0), ("questions-0", "several", times, 1)):
            inputs, right = spectrum(size, seed)
            sets[name] = (Questions(inputs={"x": inputs}, origins=(origin,) * 40), right)
        right = with_usual(sets)["questions-0"]
        origins = ["several"] * 40
        for column, difference, same in ((1, off, True), (1, too_far, False), (2, 0.01, False)):
            served = {"y": right.outputs["y"].copy()}
            served["y"][3, column] += difference
            assert compare(right, Answers.of(served), origins).same == same, (times, column, difference)
