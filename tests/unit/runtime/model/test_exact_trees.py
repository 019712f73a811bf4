"""Exact trees answer what their author's model does, on thresholds and beside them; what would not is refused."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import onnxruntime
import pytest
import sklearn.ensemble as sk
import treelite
import xgboost
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from shiplift.runtime.admission.exact_trees import checked
from shiplift.runtime.model.conversion import exact_trees
from shiplift.runtime.model.conversion.boosting import LightGbm, XGBoost
from shiplift.runtime.model.conversion.forests import NotExactError
from shiplift.runtime.model.conversion.loaders import Sklearn
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import Arrays, load_npz
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import TreesForm
from tests.unit.examples import tensor

_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(400, 6)).astype(np.float32).round(1)  # of few values, so that votes tie
X[:, 5] = _RNG.integers(0, 8, 400)  # categories
HOLES = np.where(_RNG.random(X.shape) < 0.05, np.float32(np.nan), X)
VALUE = X[:, :5].sum(axis=1)
BINARY, CLASSES = VALUE > 0, np.array([-5, 2, 7])[np.digitize(VALUE, [-1, 1])]
COUNTED = np.digitize(VALUE, [-1, 1])
TARGETS = np.column_stack([VALUE * 300_000, X[:, 0] * 80])
COUNTS = np.abs(VALUE) + 0.1


def original_of(model: Any) -> Original:
    """The model as it would be loaded."""
    kind: type[Any] = Sklearn
    if type(model).__module__.startswith("lightgbm"):
        kind = LightGbm
    elif type(model).__module__.startswith("xgboost"):
        kind = XGBoost
    made: Original = object.__new__(kind)
    made.__dict__.update({"model": model, "columns": None, "spec": tensor("x", -1, 6), "specs": (tensor("x", -1, 6),)})
    return made


def signature_of(answers: Arrays) -> Signature:
    """As its graph would have."""
    outputs = [
        tensor(name, -1, *array.shape[1:], datatype="INT64") if name == "label" else tensor(name, -1, array[0].size)
        for name, array in answers.items()
    ]
    return Signature(inputs=(tensor("x", -1, 6),), outputs=tuple(outputs))


def written(model: Any, to: Path) -> tuple[TreesForm, Signature]:
    original = original_of(model)
    forest = original.forest()
    assert forest is not None
    signature = signature_of(original.answer({"x": X[:4]}))
    return exact_trees.write(forest, signature, {"x": X}, original.answer, to, splits=None, seed=1), signature


def boosted(target: Any, data: Any = HOLES, **parameters: Any) -> Any:
    dataset = lightgbm.Dataset(data.astype(np.float64), target, categorical_feature=[5])
    return lightgbm.train({"verbose": -1, "num_threads": 1, "min_data_in_leaf": 5, **parameters}, dataset, 8)


def extreme(target: Any, **parameters: Any) -> Any:
    return xgboost.train({"nthread": 1, "max_depth": 4, **parameters}, xgboost.DMatrix(HOLES, target), 8)


def fitted(kind: Callable[..., Any], target: Any, data: Any = HOLES, **parameters: Any) -> Any:
    return kind(random_state=0, **parameters).fit(data, target)


EXACT: dict[str, Callable[[], Any]] = {
    "forest": lambda: fitted(sk.RandomForestClassifier, CLASSES, n_estimators=8),
    "forest with mixed leaves": lambda: fitted(sk.RandomForestClassifier, BINARY, n_estimators=9, max_depth=3),
    "extra trees": lambda: fitted(sk.ExtraTreesClassifier, CLASSES, n_estimators=8, max_depth=5),
    "forest in a pipeline": lambda: make_pipeline(fitted(sk.RandomForestClassifier, CLASSES, n_estimators=4)),
    "forest of targets": lambda: fitted(sk.RandomForestRegressor, TARGETS, n_estimators=7, max_depth=5),
    "extra regression": lambda: fitted(sk.ExtraTreesRegressor, VALUE, n_estimators=8),
    "gradient": lambda: fitted(sk.GradientBoostingRegressor, VALUE, X, n_estimators=6, loss="huber"),
    "gradient classes": lambda: fitted(sk.GradientBoostingClassifier, CLASSES, X, n_estimators=6),
    "gradient binary": lambda: fitted(sk.GradientBoostingClassifier, BINARY, X, n_estimators=6, init="zero"),
    "exponential": lambda: fitted(sk.GradientBoostingClassifier, BINARY, X, n_estimators=6, loss="exponential"),
    "stopped early": lambda: fitted(
        sk.GradientBoostingClassifier, BINARY, X, n_estimators=40, n_iter_no_change=1, learning_rate=0.9
    ),
    "isolation": lambda: sk.IsolationForest(n_estimators=9, random_state=0, contamination=0.1).fit(X),
    "isolation of features": lambda: sk.IsolationForest(n_estimators=9, random_state=0, max_features=3).fit(X),
    "histogram": lambda: fitted(sk.HistGradientBoostingRegressor, COUNTS, max_iter=8, loss="poisson"),
    "histogram binary": lambda: fitted(sk.HistGradientBoostingClassifier, BINARY, max_iter=8),
    "lightgbm": lambda: boosted(VALUE),
    "lightgbm poisson": lambda: boosted(COUNTS, objective="poisson"),
    "lightgbm cross entropy": lambda: boosted(BINARY, objective="cross_entropy"),
    "lightgbm dart": lambda: boosted(BINARY, objective="binary", boosting="dart"),
    "lightgbm forest": lambda: boosted(VALUE, boosting="rf", bagging_freq=1, bagging_fraction=0.7),
    "lightgbm classes": lambda: lightgbm.LGBMClassifier(n_estimators=6, verbose=-1, n_jobs=1).fit(HOLES, CLASSES),
    "lightgbm one against all": lambda: boosted(COUNTED, objective="multiclassova", num_class=3),
    "lightgbm without missing values": lambda: boosted(VALUE, X),
    "xgboost": lambda: extreme(VALUE),
    "xgboost poisson": lambda: extreme(COUNTS, objective="count:poisson"),
    "xgboost tweedie": lambda: extreme(COUNTS, objective="reg:tweedie"),
    "xgboost dart": lambda: extreme(BINARY, objective="binary:logistic", booster="dart", rate_drop=0.3),
    "xgboost classes": lambda: extreme(COUNTED, objective="multi:softprob", num_class=3),
    "xgboost quantiles": lambda: extreme(VALUE, objective="reg:quantileerror", quantile_alpha=[0.2, 0.8]),
    "xgboost estimator": lambda: xgboost.XGBClassifier(
        n_estimators=60, learning_rate=1.0, early_stopping_rounds=2, n_jobs=1
    ).fit(X[:300], BINARY[:300], eval_set=[(X[300:], BINARY[300:])], verbose=False),
}


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def difference(folder: Path, form: TreesForm, signature: Signature) -> str:
    """Why a forest is not the author's; empty: it is."""
    found = checked(folder, form, signature)
    return found if isinstance(found, str) else ""


def test_the_author_s_answers_on_thresholds_and_beside_them(tmp_path: Path) -> None:
    differences = {}
    for name, make in EXACT.items():
        form, signature = written(make(), tmp_path)
        differences[name] = difference(tmp_path, form, signature)
    assert {name: why for name, why in differences.items() if why} == {}


def test_the_questions_are_near_thresholds_and_missing_where_the_author_s_model_allows(tmp_path: Path) -> None:
    written(EXACT["histogram"](), tmp_path)
    assert np.isnan(load_npz(tmp_path / "trees.npz")["input/x"]).any()
    gradient = EXACT["gradient"]()
    written(gradient, tmp_path)
    asked = load_npz(tmp_path / "trees.npz")["input/x"]
    tree = gradient.estimators_[0, 0].tree_
    threshold, column = np.float32(tree.threshold[0]), tree.feature[0]
    assert not np.isnan(asked).any()
    for value in (threshold, np.nextafter(threshold, np.float32(9)), np.nextafter(threshold, np.float32(-9)), 0):
        assert (asked[:, column] == value).any()


def test_what_treelite_would_answer_otherwise_is_refused_with_the_reason() -> None:
    refused: dict[str, Any] = {
        "zero_as_missing": boosted(VALUE, zero_as_missing=True),
        "linear_tree": boosted(VALUE, X, linear_tree=True),
        "treelite can't read": xgboost.train({"booster": "gblinear"}, xgboost.DMatrix(X, VALUE), 2),
        "missing=-999": xgboost.XGBRegressor(n_estimators=2, missing=-999).fit(X, VALUE),
        "come before": make_pipeline(StandardScaler(), sk.RandomForestRegressor(2)).fit(X, VALUE),
        "several labels": fitted(sk.RandomForestClassifier, np.column_stack([BINARY, CLASSES]), n_estimators=2),
    }
    for why, model in refused.items():
        with pytest.raises(NotExactError, match=why):
            original_of(model).forest()
    texts = original_of(fitted(sk.RandomForestClassifier, np.where(BINARY, "yes", "no"), n_estimators=2))
    signature = Signature(inputs=(tensor("x", -1, 6),), outputs=(tensor("label", -1, datatype="BYTES"),))
    forest = texts.forest()
    assert forest is not None
    with pytest.raises(NotExactError, match="no whole numbers"):
        exact_trees.write(forest, signature, {"x": X}, texts.answer, Path(), splits=None, seed=0)
    assert original_of(make_pipeline(StandardScaler())).forest() is None


def test_a_model_that_refuses_rows_near_its_thresholds_has_no_exact_trees(tmp_path: Path) -> None:
    original = original_of(EXACT["forest"]())
    signature, forest = signature_of(original.answer({"x": X[:4]})), original.forest()
    assert forest is not None

    def refuse(_: Arrays) -> Arrays:
        raise ValueError("out of range")

    with pytest.raises(NotExactError, match="refuses rows near its thresholds: out of range"):
        exact_trees.write(forest, signature, {"x": X}, refuse, tmp_path, splits=None, seed=0)


def test_an_outlier_detector_s_graph_has_its_labels_and_scores() -> None:
    original = original_of(EXACT["isolation"]())
    graph = original.to_onnx({}, 20, Path())
    label, scores = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, {"x": X})
    answers = original.answer({"x": X})
    assert label.shape == answers["label"].shape
    assert (label == answers["label"]).mean() > 0.99  # it computes in 32 bits
    assert np.allclose(scores, answers["scores"], rtol=0, atol=1e-5)


def test_a_difference_names_the_first_row(tmp_path: Path) -> None:
    form, signature = written(EXACT["forest"](), tmp_path)
    assert "'label' is [1] where the original answers [-5]" in difference(
        tmp_path, form.model_copy(update={"classes": (1, 2, 7)}), signature
    )


def test_histogram_boosting_takes_fractions_of_categories_as_missing_and_treelite_does_not(tmp_path: Path) -> None:
    model = fitted(sk.HistGradientBoostingClassifier, CLASSES, max_iter=8, categorical_features=[5])
    assert "where the original answers" in difference(tmp_path, *written(model, tmp_path))


def test_a_forest_that_points_outside_of_itself_is_not_run(tmp_path: Path) -> None:
    form, signature = written(EXACT["forest"](), tmp_path)
    file = tmp_path / "trees" / "checkpoint.tl"
    changes: list[tuple[str, int]] = [("cleft", 0), ("cright", 10**6), ("split_index", 6), ("split_index", -1)]
    for field, value in changes:
        forest = treelite.Model.deserialize(file)
        tree = forest.get_tree_accessor(0)
        values = tree.get_field(field).copy()
        values[0] = value
        tree.set_field(field, values)
        folder = tmp_path / f"{field}{value}"
        (folder / "trees").mkdir(parents=True)
        forest.serialize(folder / "trees" / "checkpoint.tl")
        assert "what is not in it" in difference(folder, form, signature), (field, value)
    file.write_bytes(b"no forest")
    assert "treelite can't read it" in difference(tmp_path, form, signature)
