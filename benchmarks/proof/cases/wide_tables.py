"""Part a: models that compute in FP64 on columns of FP64 or 64-bit integers, where FP32 takes values for one."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.proof.case import Case
from benchmarks.proof.cases.making import Data, fitted, numbers
from benchmarks.proof.cases.right_boosters import catboost, lightgbm, xgboost
from benchmarks.proof.cases.right_sklearn import made, piped

_case = partial(fitted, part="a")
_sklearn = partial(_case, flavor="sklearn")
_SCALER = made("preprocessing.StandardScaler")
_LOGISTIC = made("linear_model.LogisticRegression", max_iter=500)


def _frame(classes: int = 2) -> Callable[[], Data]:
    """A data frame of times in milliseconds, ids over 2^24, amounts with cents and ordinary numbers."""

    def made_data() -> Data:
        import pandas as pd

        rng, rows = np.random.default_rng(0), 500
        frame = pd.DataFrame(
            {
                "time": 1_700_000_000_000 + rng.integers(0, 10_000_000, rows).astype(np.float64),
                "id": 2**25 + rng.integers(0, 5_000, rows),
                "amount": rng.uniform(0, 1e8, rows).round(2),
                "share": rng.normal(size=rows),
            }
        )
        score = 2 * (frame["time"].rank() + frame["id"].rank()).to_numpy() / rows + frame["share"].to_numpy()
        if not classes:
            return frame, score
        return frame, np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))

    return made_data


def _ids() -> Data:
    """Whole numbers over 2^24, in a matrix."""
    rng = np.random.default_rng(0)
    ids = 2**25 + rng.integers(0, 3_000, (500, 2))
    return ids, ((ids[:, 0] % 500 > 250) ^ (ids[:, 1] > 2**25 + 1_500)).astype(int)


def _texts() -> Data:
    """Times with labels that are texts."""
    frame, targets = _frame()()
    return frame, np.array(["early", "late"])[targets]


def _wide(name: str, about: str, make: Callable[[], Any], data: Callable[[], Data], **fields: Any) -> Case:
    return _sklearn(f"a-wide-{name}", about=about, make=make, data=data, **fields)


WIDE_TABLES: tuple[Case, ...] = (
    _wide("logistic", "times, ids and amounts", piped(_SCALER, _LOGISTIC), _frame(), classifies=True),
    _wide("logistic-texts", "labels that are texts", piped(_SCALER, _LOGISTIC), _texts, classifies=True),
    _wide("logistic-three", "three classes", piped(_SCALER, _LOGISTIC), _frame(3), classifies=True),
    _wide("svc", "labels without scores", piped(_SCALER, made("svm.LinearSVC", random_state=0)), _frame()),
    _wide("sgd", "SGD", piped(_SCALER, made("linear_model.SGDClassifier", loss="log_loss", random_state=0)), _frame(3)),
    _wide("ridge", "regression on times", piped(_SCALER, made("linear_model.Ridge")), _frame(0)),
    _wide("neighbours", "neighbours of ids", piped(_SCALER, made("neighbors.KNeighborsClassifier")), _frame()),
    _wide("neighbours-ids", "neighbours of ids", made("neighbors.KNeighborsClassifier", n_neighbors=1), _ids),
    _wide(
        "bins",
        "bins of times",
        piped(made("preprocessing.KBinsDiscretizer", n_bins=20, quantile_method="averaged_inverted_cdf"), _LOGISTIC),
        _frame(),
        classifies=True,
    ),
    _wide("spline", "splines", piped(made("preprocessing.SplineTransformer"), _LOGISTIC), _frame(), classifies=True),
    _wide("robust", "another scaler", piped(made("preprocessing.RobustScaler"), _LOGISTIC), _frame(), classifies=True),
    _wide(
        "hist",
        "histogram boosting",
        made("ensemble.HistGradientBoostingClassifier", max_iter=20, random_state=0),
        _frame(),
        classifies=True,
    ),
    _wide(
        "hist-ids",
        "histogram boosting of a matrix of ids",
        made("ensemble.HistGradientBoostingClassifier", max_iter=20, max_bins=255, random_state=0),
        _ids,
        classifies=True,
    ),
    _wide(
        "forest",
        "a forest, which rounds to FP32 itself",
        made("ensemble.RandomForestRegressor", n_estimators=20, random_state=0),
        _frame(0),
    ),
    _wide(
        "scaled-forest",
        "a forest behind a scaler",
        piped(_SCALER, made("ensemble.RandomForestClassifier", n_estimators=8, random_state=0)),
        _frame(),
        classifies=True,
    ),
    _wide("scaled-lightgbm", "LightGBM behind a scaler", piped(_SCALER, lightgbm("LGBMClassifier")), _frame()),
    _wide("scaled-xgboost", "XGBoost behind a scaler", piped(_SCALER, xgboost("XGBClassifier")), _frame()),
    _wide("ordinary", "ordinary numbers", piped(_SCALER, _LOGISTIC), numbers(kind=np.float64, classes=2)),
    _case("a-wide-lightgbm", flavor="lightgbm", about="FP64", make=lightgbm("LGBMClassifier"), data=_frame(3)),
    _case("a-wide-lightgbm-regressor", flavor="lightgbm", about="FP64", make=lightgbm("LGBMRegressor"), data=_frame(0)),
    _case("a-wide-xgboost", flavor="xgboost", about="rounds itself", make=xgboost("XGBClassifier"), data=_frame()),
    _case(
        "a-wide-catboost", flavor="catboost", about="rounds itself", make=catboost("CatBoostRegressor"), data=_frame(0)
    ),
)
