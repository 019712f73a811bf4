"""Part c: LightGBM, XGBoost and CatBoost as people log them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.proof.case import Case, Form
from benchmarks.proof.cases.making import fitted, flats, numbers, with_missing

_TREES: tuple[Form, ...] = ("graph", "trees")
_case = partial(fitted, part="c", forms=_TREES)


def lightgbm(kind: str, **settings: Any) -> Callable[[], Any]:
    """An estimator of LightGBM's scikit-learn interface."""

    def make() -> Any:
        import lightgbm

        return getattr(lightgbm, kind)(n_estimators=20, verbose=-1, random_state=0, n_jobs=1, **settings)

    return make


def xgboost(kind: str, **settings: Any) -> Callable[[], Any]:
    """An estimator of XGBoost's scikit-learn interface."""

    def make() -> Any:
        import xgboost

        return getattr(xgboost, kind)(**{"n_estimators": 20, "random_state": 0, "n_jobs": 1, **settings})

    return make


def catboost(kind: str, **settings: Any) -> Callable[[], Any]:
    """An estimator of CatBoost."""

    def make() -> Any:
        import catboost

        quiet = {"verbose": 0, "allow_writing_files": False, "thread_count": 1, "random_seed": 0}
        return getattr(catboost, kind)(iterations=20, **quiet, **settings)

    return make


def positive_targets() -> Any:
    """Rows, and targets above 0."""
    rows, targets = numbers()()
    return rows, np.exp(targets)


def _only_numbers() -> Any:
    frame, targets = flats(classes=False)()
    return frame[["age", "rooms"]], targets


RIGHT_BOOSTERS: tuple[Case, ...] = (
    _case("lightgbm-regressor", flavor="lightgbm", about="regression", make=lightgbm("LGBMRegressor"), data=numbers()),
    _case(
        "lightgbm-classifier",
        flavor="lightgbm",
        about="3 classes",
        make=lightgbm("LGBMClassifier"),
        data=numbers(classes=3),
        classifies=True,
    ),
    _case(
        "lightgbm-binary",
        flavor="lightgbm",
        about="2 classes, missing values",
        make=lightgbm("LGBMClassifier"),
        data=with_missing(numbers(classes=2)),
        classifies=True,
        odd=(np.nan,),
    ),
    _case(
        "lightgbm-quantile",
        flavor="lightgbm",
        about="a quantile",
        make=lightgbm("LGBMRegressor", objective="quantile", alpha=0.8),
        data=numbers(),
    ),
    _case("xgboost-regressor", flavor="xgboost", about="regression", make=xgboost("XGBRegressor"), data=numbers()),
    _case(
        "xgboost-classifier",
        flavor="xgboost",
        about="3 classes",
        make=xgboost("XGBClassifier"),
        data=numbers(classes=3),
        classifies=True,
    ),
    _case(
        "xgboost-binary",
        flavor="xgboost",
        about="2 classes, missing values",
        make=xgboost("XGBClassifier"),
        data=with_missing(numbers(classes=2)),
        classifies=True,
        odd=(np.nan,),
    ),
    _case(
        "xgboost-gamma",
        flavor="xgboost",
        about="a gamma regression",
        make=xgboost("XGBRegressor", objective="reg:gamma"),
        data=positive_targets,
    ),
    _case(
        "catboost-regressor",
        flavor="catboost",
        about="regression",
        make=catboost("CatBoostRegressor"),
        data=numbers(),
        forms=("graph",),
    ),
    _case(
        "catboost-classifier",
        flavor="catboost",
        about="3 classes",
        make=catboost("CatBoostClassifier"),
        data=numbers(classes=3),
        classifies=True,
        forms=("graph",),
    ),
    _case(
        "catboost-binary",
        flavor="catboost",
        about="2 classes",
        make=catboost("CatBoostClassifier"),
        data=numbers(classes=2),
        classifies=True,
        forms=("graph",),
    ),
    _case(
        "catboost-frame",
        flavor="catboost",
        about="a data frame of numbers",
        make=catboost("CatBoostRegressor"),
        data=_only_numbers,
        forms=("graph",),
    ),
)
