"""Questions made of what was read from a model find a copy of it that is wrong in one place."""

from typing import Any

import lightgbm
import numpy as np
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from shiplift.runtime.model.reading.recording import facts_of
from shiplift.runtime.proof.questions.asking import questions
from shiplift.runtime.proof.questions.question import Budget, KnownRows
from shiplift.runtime.records.tensor import TensorSpec

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(600, 8))
VALUES = ROWS[:, 0] * 2 + ROWS[:, 2] * ROWS[:, 3]


def _asked(model: Any, rows: Any) -> Any:
    specs = (TensorSpec(name="x", datatype="FP64", shape=(-1, 8)),)
    known = KnownRows(example={"x": rows[:3]}, validation={"x": rows[3:300]})
    return questions(facts_of(model, specs), known, Budget(rows=2_000), 0).questions[0].inputs["x"]


def test_a_threshold_that_moved_by_the_smallest_step_is_found() -> None:
    for scaler in ((), (StandardScaler(),)):
        model = make_pipeline(*scaler, GradientBoostingRegressor(n_estimators=30)).fit(ROWS, VALUES)
        asked = _asked(model, ROWS)
        right, found, trees = model.predict(asked), [], model[-1].estimators_.ravel()
        for at in range(30):
            tree = trees[at].tree_
            node = RNG.choice(np.flatnonzero(tree.children_left >= 0))
            threshold = tree.threshold[node]
            step = np.float32(np.inf if at % 2 else -np.inf)
            tree.threshold[node] = np.nextafter(np.nextafter(np.float32(threshold), step), step)
            found.append((model.predict(asked) != right).any())
            tree.threshold[node] = threshold
        assert np.mean(found) >= 0.95


def test_a_copy_that_does_not_take_zero_for_missing_is_found() -> None:
    rows = np.where(RNG.random((600, 8)) < 0.3, 0.0, ROWS + 3)
    options = {"objective": "regression", "zero_as_missing": True, "num_threads": 1, "verbose": -1}
    model = lightgbm.train(options, lightgbm.Dataset(rows, rows[:, 0] + (rows[:, 1] == 0)), 10)
    asked = _asked(model, np.where(rows == 0, 1.0, rows))  # no known row has a zero
    beside = np.where(asked == 0, 1e-30, asked)
    assert (np.abs(model.predict(asked) - model.predict(beside)) > 1e-3).sum() > 20
