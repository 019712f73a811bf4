from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.jumps import jumps
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask

ROWS = {"x": np.random.default_rng(0).normal(size=(40, 2)), "city": np.array([["a"], ["b"]] * 20, dtype=object)}


def found(ask: Ask, rows: Arrays = ROWS, **settings: Any) -> Questions:
    return jumps(ask, rows, Answers.of(ask(rows)), **{"coarse": False, "seconds": 60.0, **settings})


def step(inputs: Arrays) -> Arrays:
    scaled = (inputs["x"].astype(np.float64) - 0.123) / 0.377
    return {"y": np.where(scaled[:, 0] > 0.5, 3.0, 1.0), "label": scaled[:, 0] > 0.5}


def test_both_sides_of_a_threshold_behind_a_scaler_are_found_with_no_value_between_them() -> None:
    for dtype in (np.float64, np.float32):
        asked = found(step, coarse=dtype is np.float32)
        assert set(asked.origins) == {"jump"}
        scores = step(asked.inputs)["y"]
        values = asked.inputs["x"][:, 0].astype(dtype)
        below, above = values[scores == 1.0].max(), values[scores == 3.0].min()
        assert np.nextafter(below, above) == above


def test_rows_with_missing_values_are_no_place_to_look() -> None:
    rows = {"x": np.vstack([ROWS["x"], [[np.nan, 1.0], [2.0, np.inf]]])}
    assert len(found(step, rows).origins) > 10


def test_a_smooth_model_of_ordinary_numbers_has_no_jumps_and_one_of_texts_is_not_asked() -> None:
    def smooth(inputs: Arrays) -> Arrays:
        margin = inputs["x"].sum(axis=1)
        return {"label": margin > 0, "y": 1 / (1 + np.exp(-margin))}

    assert found(smooth).origins == ()
    texts = {"city": ROWS["city"]}
    assert found(lambda inputs: {"y": (inputs["city"] == "a").astype(float)}, texts).origins == ()


def test_a_model_that_raises_on_the_way_or_takes_too_long_has_none() -> None:
    times = iter(range(100))
    assert found(step, seconds=0.0, clock=lambda: float(next(times))).origins.count("jump") <= 96

    def picky(inputs: Arrays) -> Arrays:
        if not np.isin(inputs["x"], ROWS["x"]).all():
            raise ValueError("a value that training never saw")
        return step(inputs)

    assert found(picky).origins == ()


TIMES = 1.7e12 + np.random.default_rng(1).integers(0, 10_000_000, (60, 1)).astype(np.float64)
LARGE: Arrays = {"x": np.hstack([TIMES, ROWS["x"][:30].repeat(2, axis=0)])}


def of_times(inputs: Arrays) -> Arrays:
    margin = (inputs["x"][:, 0] - 1.7e12 - 5e6) / 3e6 + inputs["x"][:, 1]
    return {"label": np.where(margin > 0, "late", "early").astype(object), "p": 1 / (1 + np.exp(-margin))}


def rounded(inputs: Arrays) -> Arrays:
    return {name: array.astype(np.float32).astype(np.float64) for name, array in inputs.items()}


def test_labels_that_fp32_puts_on_the_other_side_of_a_boundary_are_asked_if_they_are_clear() -> None:
    for ask in (of_times, lambda inputs: {"label": of_times(inputs)["label"]}):
        asked = found(ask, LARGE).inputs
        moved = of_times(asked)["label"] != of_times(rounded(asked))["label"]
        assert moved.sum() > 10
        assert np.abs(of_times(asked)["p"][moved] - 0.5).max() > 1e-5
        if ask is of_times:
            assert np.abs(of_times(asked)["p"] - 0.5).min() > 1e-7, "the original itself is sure"


def test_whole_numbers_that_fp32_takes_for_one_are_asked_where_answers_jump() -> None:
    rows: Arrays = {"id": (2**25 + np.arange(60) * 7).reshape(-1, 1)}

    def lookup(inputs: Arrays) -> Arrays:
        return {"y": (inputs["id"] > 2**25 + 200).astype(np.float64)}

    asked = found(lookup, rows).inputs["id"]
    assert {2**25 + 200, 2**25 + 201} <= set(asked.ravel().tolist())


def test_a_column_that_refuses_what_it_never_saw_stays_as_it_is_while_others_change() -> None:
    def picky(inputs: Arrays) -> Arrays:
        if not np.isin(inputs["x"][:, 1], ROWS["x"]).all():
            raise ValueError("a value that training never saw")
        return step(inputs)

    asked = found(picky)
    assert len(asked.origins) > 10
    assert np.isin(asked.inputs["x"][:, 1], ROWS["x"]).all()
