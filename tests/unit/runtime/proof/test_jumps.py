from typing import Any

import numpy as np

from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.jumps import jumps
from shiplift.runtime.proof.questions.question import Questions
from shiplift.runtime.proof.settings import Ask

ROWS = {"x": np.random.default_rng(0).normal(size=(40, 2)), "city": np.array([["a"], ["b"]] * 20, dtype=object)}


def found(ask: Ask, rows: Arrays = ROWS, **settings: Any) -> Questions:
    return jumps(ask, rows, Answers.of(ask(rows)), **{"narrow": False, "seconds": 10.0, **settings})


def step(inputs: Arrays) -> Arrays:
    scaled = (inputs["x"].astype(np.float64) - 0.123) / 0.377
    return {"y": np.where(scaled[:, 0] > 0.5, 3.0, 1.0), "label": scaled[:, 0] > 0.5}


def test_both_sides_of_a_threshold_behind_a_scaler_are_found_with_no_value_between_them() -> None:
    for dtype in (np.float64, np.float32):
        asked = found(step, narrow=dtype is np.float32)
        below, above = np.split(asked.inputs["x"][:, 0].astype(dtype), 2)
        assert len(below) > 10
        assert set(asked.origins) == {"jump"}
        assert (np.nextafter(below, above) == above).all()
        answers = [step({"x": np.column_stack([side, side])})["y"] for side in (below, above)]
        assert (answers[0] != answers[1]).all()


def test_rows_with_missing_values_are_no_place_to_look() -> None:
    rows = {"x": np.vstack([ROWS["x"], [[np.nan, 1.0], [2.0, np.inf]]])}
    assert len(found(step, rows).origins) > 10


def test_a_smooth_model_has_no_jumps_and_one_without_floats_is_not_asked() -> None:
    def smooth(inputs: Arrays) -> Arrays:
        margin = inputs["x"].sum(axis=1)
        return {"label": margin > 0, "y": 1 / (1 + np.exp(-margin))}

    assert found(smooth).origins == ()
    assert found(lambda inputs: {"label": inputs["x"][:, 0] > 0}).origins == ()
    texts = {"city": ROWS["city"]}
    assert found(lambda inputs: {"y": (inputs["city"] == "a").astype(float)}, texts).origins == ()


def test_a_model_that_raises_on_the_way_or_takes_too_long_has_none() -> None:
    times = iter(range(100))
    assert found(step, seconds=2.5, clock=lambda: float(next(times))).origins == ()

    def picky(inputs: Arrays) -> Arrays:
        if not np.isin(inputs["x"], ROWS["x"]).all():
            raise ValueError("a value that training never saw")
        return step(inputs)

    assert found(picky).origins == ()
