"""What models say about their columns besides thresholds, through pipelines and by column."""

from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import xgboost
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)
from sklearn.tree import DecisionTreeClassifier

from shiplift.runtime.model.reading.recording import facts_of
from shiplift.runtime.records.facts import ColumnFacts, ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(200, 3))
LABELS = (ROWS[:, 0] > 0.25).astype(int)
MATRIX = (TensorSpec(name="x", datatype="FP64", shape=(-1, 3)),)


def _column(model: Any, at: int = 0, rows: Any = ROWS, labels: Any = LABELS) -> ColumnFacts:
    facts = facts_of(model.fit(rows, labels), MATRIX)
    return next(column for column in facts.columns if column.index == at)


def test_parameters_name_sentinels() -> None:
    rows = np.where(ROWS > 1, -999.0, ROWS)
    zeros = np.where(ROWS > 1, 0.0, ROWS)
    assert _column(make_pipeline(SimpleImputer(missing_values=-999.0), LogisticRegression()), rows=rows).sentinels == (
        -999.0,
    )
    assert _column(xgboost.XGBClassifier(n_estimators=2, n_jobs=1, missing=-999.0), rows=rows).sentinels == (-999.0,)
    ignoring = _column(lightgbm.LGBMClassifier(n_estimators=2, n_jobs=1, zero_as_missing=True, verbose=-1), rows=zeros)
    assert ignoring.sentinels == (0.0,)
    assert {float(np.float32(1e-35)), -float(np.float32(1e-35))} <= set(ignoring.thresholds)
    assert _column(xgboost.XGBClassifier(n_estimators=2, n_jobs=1)).sentinels == ()


def test_whether_missing_values_and_infinities_are_taken() -> None:
    imputed = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression())
    cases: list[tuple[Any, bool, bool]] = [
        (LogisticRegression(), False, False),
        (make_pipeline(StandardScaler(), LogisticRegression()), False, False),
        (imputed, True, False),
        (HistGradientBoostingClassifier(max_iter=2), True, False),
        (xgboost.XGBClassifier(n_estimators=2, n_jobs=1), True, False),
        (lightgbm.LGBMClassifier(n_estimators=2, n_jobs=1, verbose=-1), True, True),
    ]
    for model, missing, infinite in cases:
        column = _column(model)
        assert (column.missing, column.infinite) == (missing, infinite), model
        for taken, value in ((missing, np.nan), (infinite, np.inf)):
            if taken:
                model.predict(np.full((1, 3), value))


def test_edges_of_bins_and_a_binarizer_s_threshold() -> None:
    bins = make_pipeline(KBinsDiscretizer(4, quantile_method="averaged_inverted_cdf"), LogisticRegression())
    for edge in _column(bins).thresholds:
        codes = bins[0].transform([[edge, 0, 0], [np.nextafter(edge, 9), 0, 0]]).toarray()
        assert (codes[0] != codes[1]).any()
    assert len(_column(bins).thresholds) == 3
    assert _column(make_pipeline(Binarizer(threshold=0.3), LogisticRegression())).thresholds == (0.3,)


def test_models_within_models_are_read() -> None:
    tree = DecisionTreeClassifier(max_depth=1)
    for model in (
        GridSearchCV(tree, {"max_depth": [1]}),
        CalibratedClassifierCV(tree),
        VotingClassifier([("tree", tree), ("line", LogisticRegression())]),
        make_pipeline(FeatureUnion([("same", "passthrough"), ("scaled", StandardScaler())]), tree),
        make_pipeline(SelectKBest(k=2), tree),
        make_pipeline(FunctionTransformer(np.exp), tree),
    ):
        assert 0.2 < max(_column(model).thresholds) < 0.3, model


def test_numbers_beside_categories_of_histogram_boosting_are_read() -> None:
    rows = np.column_stack([ROWS[:, :2], RNG.integers(0, 4, 200)])
    model = HistGradientBoostingClassifier(max_iter=2, categorical_features=[2])
    assert any(0.2 < threshold < 0.3 for threshold in _column(model, rows=rows).thresholds)


FRAME = pd.DataFrame(
    {
        "age": ROWS[:, 0] * 10 + 50,
        "city": RNG.choice(["Köln", "Bonn", ""], 200),
        "size": RNG.choice([3, 5], 200),
        "note": RNG.choice(["naïve cat", "the dog"], 200),
    }
)
COLUMNS = (
    TensorSpec(name="age", datatype="FP64", shape=(-1, 1)),
    TensorSpec(name="city", datatype="BYTES", shape=(-1, 1)),
    TensorSpec(name="size", datatype="INT64", shape=(-1, 1)),
    TensorSpec(name="note", datatype="BYTES", shape=(-1, 1)),
)


def test_each_column_of_a_frame_has_its_own_facts() -> None:
    columns = ColumnTransformer(
        [
            ("note", TfidfVectorizer(), "note"),
            ("city", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age"]),
            ("size", OrdinalEncoder(), ["size"]),
        ]
    )
    model = make_pipeline(columns, DecisionTreeClassifier(max_depth=3)).fit(FRAME, LABELS)
    facts = facts_of(model, COLUMNS)
    told = {column.input: column for column in facts.columns}
    assert 52 < max(told["age"].thresholds) < 53
    assert told["age"].missing
    assert told["city"].categories == ("", "Bonn", "Köln")
    assert told["size"].categories == (3, 5)
    assert told["note"].words == ("naïve", "cat", "dog", "the")
    assert not told["city"].thresholds
    last = told["age"].thresholds[0]
    either_side = FRAME.iloc[[0, 0]].assign(age=[last, np.nextafter(last, np.inf)])
    assert len(set(columns.transform(either_side)[:, -2].astype(np.float32).tolist())) == 2


def test_columns_are_matched_by_name() -> None:
    model = DecisionTreeClassifier(max_depth=1).fit(FRAME[["size", "age"]], LABELS)
    facts = facts_of(model, (COLUMNS[0], COLUMNS[2]))
    assert {column.input for column in facts.columns if column.thresholds} == {"age"}


def test_categories_that_are_known_otherwise_are_kept() -> None:
    facts = facts_of(object(), COLUMNS, {"city": ["Bonn", "Köln", None, float("nan"), "\ud800", "a\0"], "other": ["x"]})
    assert [(column.input, column.categories) for column in facts.columns] == [("city", ("Bonn", "Köln"))]


def test_a_matrix_of_unknown_width_has_no_columns() -> None:
    model = DecisionTreeClassifier(max_depth=1).fit(ROWS, LABELS)
    assert not facts_of(model, (TensorSpec(name="x", datatype="FP64", shape=(-1, -1)),)).columns


class _Raises(BaseEstimator):  # type: ignore[misc]
    def __sklearn_tags__(self) -> Any:
        raise RuntimeError("no tags")


def test_what_is_not_known_or_raises_has_no_facts() -> None:
    assert facts_of(object(), MATRIX) == ModelFacts(inputs=MATRIX)
    raising = facts_of(_Raises(), MATRIX)
    assert raising == ModelFacts(inputs=MATRIX, notes=("_Raises could not be read: no tags.",))
    behind = facts_of(make_pipeline(PCA(2), RandomForestClassifier(2)).fit(ROWS, LABELS), MATRIX)
    assert not any(column.thresholds for column in behind.columns)
    assert not behind.boxes
    assert behind.notes == ("What the model does behind PCA was not read.",)
