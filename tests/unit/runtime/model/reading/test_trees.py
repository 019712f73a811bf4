"""What is read of trees is where their answers jump: exactly there, whatever library and whatever scaler."""

from collections.abc import Callable
from typing import Any

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from shiplift.runtime.model.reading.recording import facts_of
from shiplift.runtime.records.facts import MAX_BOXES, MAX_THRESHOLDS, MAX_VALUES, ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(300, 4)) * [1, 10, 0.1, 1000]
VALUES = ROWS[:, 0] + ROWS[:, 1] / 10 * ROWS[:, 2] + RNG.normal(size=300) / 5
TREE: dict[str, Callable[[], Any]] = {
    "decision tree": lambda: DecisionTreeRegressor(max_depth=5),
    "extra tree": lambda: ExtraTreesRegressor(1, max_depth=5),
    "forest": lambda: RandomForestRegressor(1, max_depth=5),
    "gradient boosting": lambda: GradientBoostingRegressor(n_estimators=1, max_depth=4),
    "histogram boosting": lambda: HistGradientBoostingRegressor(max_iter=1, learning_rate=1, min_samples_leaf=5),
    "bagging": lambda: BaggingRegressor(DecisionTreeRegressor(max_depth=4), 1, max_features=3),
    "behind a scaler": lambda: make_pipeline(StandardScaler(), DecisionTreeRegressor(max_depth=5)),
    "behind two": lambda: make_pipeline(MinMaxScaler(), RobustScaler(), RandomForestRegressor(1, max_depth=5)),
    "lightgbm": lambda: lightgbm.LGBMRegressor(n_estimators=1, learning_rate=1, n_jobs=1, verbose=-1),
    "xgboost": lambda: xgboost.XGBRegressor(n_estimators=1, max_depth=4, learning_rate=1, n_jobs=1),
    "catboost": lambda: catboost.CatBoostRegressor(iterations=1, learning_rate=1, verbose=0, allow_writing_files=False),
}


def _matrix(datatype: Any = "FP64") -> tuple[TensorSpec, ...]:
    return (TensorSpec(name="x", datatype=datatype, shape=(-1, 4)),)


@pytest.mark.parametrize("name", TREE)
def test_all_rows_of_a_box_get_one_answer_and_beyond_its_bounds_others(name: str) -> None:
    model = TREE[name]().fit(ROWS, VALUES)
    facts = facts_of(model, _matrix())
    assert len(facts.boxes) > 5
    jumps = []
    for box in facts.boxes:
        inside, beyond = ROWS[:9].copy(), ROWS[:9].copy()
        for at, low, high in box:
            column = facts.columns[at].index
            assert column is not None
            above = None if low is None else np.nextafter(low, np.inf)
            ends = [end for end in (above, high) if end is not None]
            inside[:, column] = np.resize(ends, 9)
            beyond[:, column] = ends[-1]
        first, low, high = box[0]
        beyond[:, facts.columns[first].index] = low if high is None else np.nextafter(high, np.inf)
        answers = model.predict(inside)
        assert len(set(answers.tolist())) == 1
        jumps.append(model.predict(beyond)[0] != answers[0])
    assert np.mean(jumps) > 0.9  # neighbours may have the same value


def test_bounds_behind_a_scaler_are_exact_in_float32_too() -> None:
    rows = ROWS.astype(np.float32)
    model = make_pipeline(StandardScaler(), DecisionTreeRegressor(max_depth=1)).fit(rows, VALUES)
    (column,) = (column for column in facts_of(model, _matrix("FP32")).columns if column.thresholds)
    last = np.float32(column.thresholds[0])
    asked = np.zeros((2, 4), np.float32)
    asked[:, column.index or 0] = [last, np.nextafter(last, np.float32(np.inf))]
    assert len(set(model.predict(asked).tolist())) == 2


def test_a_large_model_has_facts_of_limited_size_and_notes_say_so() -> None:
    rows = RNG.normal(size=(4000, 4))
    facts = facts_of(IsolationForest(n_estimators=300, max_samples=600).fit(rows), _matrix())
    assert len(facts.boxes) <= MAX_BOXES
    assert all(len(column.thresholds) <= MAX_THRESHOLDS for column in facts.columns)
    assert sum(len(column.thresholds) for column in facts.columns) <= MAX_VALUES
    assert len(facts.model_dump_json()) < 2_000_000
    assert any("leaves of 300 trees" in note for note in facts.notes)
    assert any("thresholds" in note for note in facts.notes)
    assert ModelFacts.model_validate_json(facts.model_dump_json()) == facts
