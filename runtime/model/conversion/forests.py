"""Fitted estimators and boosters as forests of treelite, whose scores are the author's.

Where treelite's own reading of a model would give other scores, the reading is corrected, or refused with the reason.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

_ZERO = 1  # LightGBM's number for features whose zeros are missing values
_LIGHTGBM_ZERO = float(np.float32(1e-35))  # what is not larger is zero to it
_ROUNDED_UP = 1 + 1e-12  # a row on the threshold is none of those over it
_BINARY_EXPONENTIAL = 2.0  # the sigmoid of scikit-learn's exponential loss is that of twice the margin


class NotExactError(Exception):
    """Why a model has no form as exact trees."""


@dataclass(frozen=True, kw_only=True)
class Forest:
    """A treelite model, and how its scores become answers (see `TreesForm`).

    `classes` are the values of the labels; None: it has none.
    """

    model: Any
    features: Literal["FP32", "FP64"]
    zero_within: float | None = None
    classes: NDArray[Any] | None = None
    threshold: float | None = None
    subtracted_from: float | None = None


def of_sklearn(estimator: Any) -> Forest | None:
    """The forest of an ensemble of scikit-learn, or of a pipeline of one; None: it is none.

    Raises:
        NotExactError: treelite can't read it, or it is behind other steps of a pipeline.
    """
    from sklearn import ensemble  # noqa: PLC0415 - only for such models

    forests = (ensemble.RandomForestClassifier, ensemble.ExtraTreesClassifier)
    regressions = (ensemble.RandomForestRegressor, ensemble.ExtraTreesRegressor, ensemble.GradientBoostingRegressor)
    readers: tuple[tuple[Any, Callable[[Any], Forest]], ...] = (
        (forests, _voting),
        (regressions, lambda model: Forest(model=_imported(model), features="FP32")),
        (ensemble.GradientBoostingClassifier, _boosted_classes),
        (ensemble.HistGradientBoostingClassifier, _histogram_classes),
        (ensemble.IsolationForest, _isolating),
        (ensemble.HistGradientBoostingRegressor, lambda model: Forest(model=_imported(model), features="FP64")),
    )
    *before, last = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
    read = next((reader for kinds, reader in readers if isinstance(last, kinds)), None)
    if read is not None and any(step not in (None, "passthrough") for step in before):
        raise NotExactError("other steps of a pipeline come before the forest")
    return read(last) if read else None


def of_lightgbm(booster: Any, classes: NDArray[Any] | None) -> Forest:
    """The forest of a LightGBM booster; `classes` are its labels, None those of a regression.

    Raises:
        NotExactError: treelite computes it in another way, or can't read it.
    """
    decisions = [line for line in booster.model_to_string().splitlines() if line.startswith("decision_type=")]
    kinds = {int(kind) >> 2 & 3 for line in decisions for kind in line.partition("=")[2].split()}
    if _ZERO in kinds:
        raise NotExactError("LightGBM's `zero_as_missing` makes zeros missing values, which treelite compares as zeros")
    model = _read(lambda treelite: treelite.frontend.from_lightgbm(booster))
    return Forest(model=model, features="FP64", zero_within=_LIGHTGBM_ZERO, classes=classes)


def of_xgboost(booster: Any, classes: NDArray[Any] | None) -> Forest:
    """The forest of an XGBoost booster; `classes` are its labels, None those of a regression.

    Raises:
        NotExactError: treelite can't read it.
    """
    model = _read(lambda treelite: treelite.frontend.from_xgboost(booster))
    return Forest(model=model, features="FP32", classes=classes)


def _voting(model: Any) -> Forest:
    """A forest of classifiers. treelite scales each leaf's shares to a sum of 1, which moves some by an ulp: a tie."""
    if model.n_outputs_ != 1:
        raise NotExactError("the forest has several labels, which are not served as trees")
    forest = _imported(model)
    for at, tree in enumerate(model.estimators_):
        leaves = tree.tree_.children_left == -1
        shares = np.ascontiguousarray(tree.tree_.value[leaves, 0].reshape(-1))
        forest.get_tree_accessor(at).set_field("leaf_vector", shares)
    return Forest(model=forest, features="FP32", classes=model.classes_)


def _boosted_classes(model: Any) -> Forest:
    """Gradient boosting, which takes the second class from a probability of 0.5 on, not only above it."""
    forest = _imported(model)
    if model.loss == "exponential":
        forest.get_header_accessor().set_field("sigmoid_alpha", np.array([_BINARY_EXPONENTIAL], np.float32))
    threshold = float(np.nextafter(0.5, 0)) if len(model.classes_) == 2 else None
    return Forest(model=forest, features="FP32", classes=model.classes_, threshold=threshold)


def _histogram_classes(model: Any) -> Forest:
    return Forest(model=_imported(model), features="FP64", classes=model.classes_)


def _isolating(model: Any) -> Forest:
    """An isolation forest: its score is treelite's below `-offset_`, and a row is an outlier if that is negative.

    treelite divides paths by their expected length in 32 bits, so the offset is what it becomes by that.
    """
    forest, offset = _imported(model), -float(model.offset_)
    expected = float(_read(lambda treelite: treelite.sklearn.isolation_forest.expected_depth(model.max_samples_)))
    if not expected:
        raise NotExactError("its trees were trained on a sample each")
    moved = offset ** (expected / float(np.float32(expected))) * _ROUNDED_UP
    return Forest(model=forest, features="FP32", classes=np.array([1, -1]), threshold=moved, subtracted_from=offset)


def _imported(model: Any) -> Any:
    """What treelite makes of an estimator that may have stopped early, and then has fewer trees than its parameter."""
    if hasattr(model, "estimators_"):
        model = copy.copy(model)
        model.n_estimators = len(model.estimators_)
    return _read(lambda treelite: treelite.sklearn.import_model(model))


def _read(read: Callable[[Any], Any]) -> Any:
    try:
        import treelite  # noqa: PLC0415 - only for forests
    except ImportError as error:
        raise NotExactError("this environment has no treelite: pip install 'shiplift[sklearn]'") from error
    try:
        return read(treelite)
    except Exception as error:
        reason = str(error).partition("Check failed: ")[2] or str(error)
        raise NotExactError(f"treelite can't read the model: {' '.join(reason.split())[:300]}") from error
