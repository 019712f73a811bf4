"""Part a: models of tables whose answers went wrong somewhere: see issue 42's table."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.proof.case import Case, Logged
from benchmarks.proof.cases.making import Data, fitted, flats, numbers, trusted_types, with_missing
from benchmarks.proof.cases.right_boosters import catboost, lightgbm, positive_targets, xgboost
from benchmarks.proof.cases.right_sklearn import made, piped
from benchmarks.proof.fresh import rows_like

_case = partial(fitted, part="a")
_sklearn = partial(_case, flavor="sklearn")
_NAN = (np.nan, 0.0)
_FAR = (np.nan, 0.0, -999.0, -0.0, 1e-40)


def _two_targets() -> Data:
    """One target near 300,000, one near 80."""
    rows, targets = numbers()()
    return rows, np.stack([300_000 + 20_000 * targets, 80 + 5 * targets[::-1]], axis=1)


def _zeros() -> Data:
    """Rows in which many numbers are 0."""
    return with_missing(numbers(), 0.3, 0.0)()


def _zero_classes() -> Data:
    return with_missing(numbers(classes=2), 0.3, 0.0)()


def _sentinels() -> Data:
    return with_missing(numbers(classes=2), 0.3, -999.0)()


def _few_values() -> Data:
    """Rows of few values, so that votes tie and neighbours are equally far."""
    rows, targets = numbers(classes=3, columns=4)()
    return np.round(rows / np.array([1, 10, 0.1, 100], np.float32)), targets


def _large() -> Data:
    """Times in milliseconds and amounts with cents, in float64: FP32 rounds both."""
    rng = np.random.default_rng(0)
    times = 1_700_000_000_000 + rng.integers(0, 10_000_000, 500).astype(np.float64)
    amounts = rng.uniform(0, 1e8, 500).round(2)
    late = times > np.median(times)
    return np.stack([times, amounts, rng.normal(size=500)], axis=1), (late ^ (amounts > 5e7)).astype(int)


def _double(classes: int = 0) -> Callable[[], Data]:
    return numbers(kind=np.float64, classes=classes)


def _centimes() -> Data:
    """Labels near 0.004."""
    rows, targets = numbers()()
    return rows, 0.004 + 0.001 * targets


def _logarithm() -> Any:
    from sklearn.preprocessing import FunctionTransformer

    return FunctionTransformer(np.log)


def _ordinal() -> Any:
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    return make_pipeline(ColumnTransformer([("text", OrdinalEncoder(), ["city"])], remainder="passthrough"), Ridge())


def _one_hot(handle: str) -> Callable[[], Any]:
    def make() -> Any:
        from sklearn.compose import ColumnTransformer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder

        encoder = OneHotEncoder(handle_unknown=handle)
        return make_pipeline(
            ColumnTransformer([("text", encoder, ["city"])], remainder="passthrough"), LogisticRegression(max_iter=500)
        )

    return make


def _with_unknown(frame: Any, count: int, seed: int) -> Any:
    """Rows like a data frame's, some with a city that training never saw."""
    made_rows = rows_like(frame, count, seed)
    strange = np.random.default_rng(seed).random(count) < 0.1
    made_rows["city"] = np.where(strange, np.where(np.arange(count) % 2, "Atlantis", ""), made_rows["city"].astype(str))
    return made_rows


def _unknown_cities(name: str, about: str, make: Callable[[], Any], *, classes: bool) -> Case:
    """A model on a data frame, asked for cities that it refuses or ignores."""

    def build(_: Path) -> Logged:
        from mlflow.models import infer_signature

        frame, targets = flats(classes=classes)()
        model = make().fit(frame, targets)
        return Logged(
            model=model,
            options={
                "signature": infer_signature(frame.head(), model.predict(frame.head())),
                "input_example": frame.head(),
                "skops_trusted_types": trusted_types(model),
            },
            rows=lambda count, seed: _with_unknown(frame, count, seed),
        )

    return Case(name=name, part="a", flavor="sklearn", about=about, build=build)


def _probable(name: str, about: str, *, function: bool) -> Case:
    """A classifier whose author wants probabilities: by `pyfunc_predict_fn`, or by the signature alone."""

    def build(_: Path) -> Logged:
        from mlflow.models import infer_signature
        from sklearn.linear_model import LogisticRegression

        rows, targets = numbers(classes=3)()
        model = LogisticRegression(max_iter=500).fit(rows, targets)
        example = rows[:8]
        return Logged(
            model=model,
            options={
                "signature": infer_signature(example, model.predict_proba(example)),
                "input_example": example,
                "skops_trusted_types": trusted_types(model),
                **({"pyfunc_predict_fn": "predict_proba"} if function else {}),
            },
            rows=lambda count, seed: rows_like(rows, count, seed),
            original=None if function else lambda asked: {"": model.predict_proba(asked)},
        )

    return Case(name=name, part="a", flavor="sklearn", about=about, build=build)


def _booster(name: str, about: str, settings: dict[str, Any], data: Callable[[], Data], odd: tuple[float, ...]) -> Case:
    """A booster of LightGBM's own interface."""

    def build(_: Path) -> Logged:
        import lightgbm
        from mlflow.models import infer_signature

        rows, targets = data()
        quiet = {"verbose": -1, "num_threads": 1, "seed": 0, "deterministic": True}
        model = lightgbm.train({**quiet, **settings}, lightgbm.Dataset(rows, targets, params=quiet | settings), 20)
        return Logged(
            model=model,
            options={"signature": infer_signature(rows[:8], model.predict(rows[:8])), "input_example": rows[:8]},
            rows=lambda count, seed: rows_like(rows, count, seed, odd=odd),
        )

    return Case(name=name, part="a", flavor="lightgbm", about=about, build=build)


def _categories(flavor: str, make: Callable[[], Any]) -> Case:
    """A booster on a data frame with a categorical column; pyfunc makes texts of it, which the booster refuses."""

    def build(_: Path) -> Logged:
        from mlflow.models import infer_signature

        frame, targets = flats(categorical=True)()
        model = make().fit(frame, targets)
        return Logged(
            model=model,
            options={
                "signature": infer_signature(frame.head(), model.predict(frame.head())),
                "input_example": frame.head(20),
            },
            rows=lambda count, seed: rows_like(frame, count, seed),
            original=lambda asked: {
                "label": np.asarray(model.predict(asked)),
                "probabilities": np.asarray(model.predict_proba(asked), np.float32),
            },
        )

    return Case(name=f"a-{flavor}-categories", part="a", flavor=flavor, about="a categorical column", build=build)


_SCALER = made("preprocessing.StandardScaler")
_TREE = made("tree.DecisionTreeClassifier", random_state=0)

WRONG_TABLES: tuple[Case, ...] = (
    _case(
        "a-xgboost-two-targets",
        flavor="xgboost",
        about="targets of 300,000 and 80",
        make=xgboost("XGBRegressor"),
        data=_two_targets,
    ),
    _case(
        "a-xgboost-vector-leaves",
        flavor="xgboost",
        about="the same, in one tree",
        make=xgboost("XGBRegressor", multi_strategy="multi_output_tree", tree_method="hist"),
        data=_two_targets,
    ),
    _case(
        "a-xgboost-missing-zero",
        flavor="xgboost",
        about="`missing=0`",
        make=xgboost("XGBClassifier", missing=0.0),
        data=_zero_classes,
        classifies=True,
        odd=_NAN,
    ),
    _case(
        "a-xgboost-missing-sentinel",
        flavor="xgboost",
        about="`missing=-999`",
        make=xgboost("XGBClassifier", missing=-999.0),
        data=_sentinels,
        classifies=True,
        odd=_FAR,
    ),
    _case(
        "a-xgboost-poisson",
        flavor="xgboost",
        about="Poisson",
        make=xgboost("XGBRegressor", objective="count:poisson"),
        data=positive_targets,
    ),
    _case(
        "a-xgboost-tweedie",
        flavor="xgboost",
        about="Tweedie",
        make=xgboost("XGBRegressor", objective="reg:tweedie"),
        data=positive_targets,
    ),
    _case(
        "a-xgboost-quantiles",
        flavor="xgboost",
        about="two quantiles",
        make=xgboost("XGBRegressor", objective="reg:quantileerror", quantile_alpha=np.array([0.1, 0.9])),
        data=numbers(),
    ),
    _case(
        "a-xgboost-dart",
        flavor="xgboost",
        about="dart",
        make=xgboost("XGBRegressor", booster="dart", rate_drop=0.3),
        data=numbers(),
    ),
    _case(
        "a-xgboost-linear",
        flavor="xgboost",
        about="gblinear",
        make=xgboost("XGBRegressor", booster="gblinear"),
        data=numbers(),
    ),
    _case(
        "a-xgboost-random-forest",
        flavor="xgboost",
        about="a random forest",
        make=xgboost("XGBRFClassifier"),
        data=numbers(classes=3),
        classifies=True,
    ),
    _case(
        "a-xgboost-double",
        flavor="xgboost",
        about="features in float64",
        make=xgboost("XGBClassifier"),
        data=_large,
        classifies=True,
    ),
    _categories("xgboost", xgboost("XGBClassifier", enable_categorical=True)),
    _case(
        "a-catboost-poisson",
        flavor="catboost",
        about="Poisson",
        make=catboost("CatBoostRegressor", loss_function="Poisson"),
        data=positive_targets,
    ),
    _case(
        "a-catboost-tweedie",
        flavor="catboost",
        about="Tweedie",
        make=catboost("CatBoostRegressor", loss_function="Tweedie:variance_power=1.5"),
        data=positive_targets,
    ),
    _case(
        "a-catboost-two-targets",
        flavor="catboost",
        about="targets of 300,000 and 80",
        make=catboost("CatBoostRegressor", loss_function="MultiRMSE"),
        data=_two_targets,
    ),
    _case(
        "a-catboost-missing",
        flavor="catboost",
        about="missing values",
        make=catboost("CatBoostClassifier"),
        data=with_missing(numbers(classes=2)),
        classifies=True,
        odd=_NAN,
    ),
    _booster("a-lightgbm-zero-as-missing", "`zero_as_missing`", {"zero_as_missing": True}, _zeros, _NAN),
    _booster("a-lightgbm-linear", "`linear_tree`", {"linear_tree": True}, numbers(), ()),
    _booster(
        "a-lightgbm-forest",
        "a random forest",
        {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
        numbers(),
        (),
    ),
    _booster("a-lightgbm-dart", "dart", {"boosting": "dart"}, numbers(), ()),
    _booster("a-lightgbm-poisson", "Poisson", {"objective": "poisson"}, positive_targets, ()),
    _booster(
        "a-lightgbm-cross-entropy",
        "cross-entropy",
        {"objective": "cross_entropy"},
        lambda: (numbers()()[0], 1 / (1 + np.exp(-numbers()()[1]))),
        (),
    ),
    _booster("a-lightgbm-double", "features in float64", {"objective": "binary"}, _large, ()),
    _booster("a-lightgbm-missing", "missing values", {"objective": "regression"}, with_missing(numbers()), _NAN),
    _booster("a-lightgbm-small", "labels near 0.004", {"objective": "l1"}, _centimes, ()),
    _categories("lightgbm", lightgbm("LGBMClassifier")),
    _sklearn(
        "a-forest-ties",
        about="a forest of 4 trees, whose votes tie",
        make=made("ensemble.RandomForestClassifier", n_estimators=4, max_depth=3, random_state=0),
        data=_few_values,
        classifies=True,
    ),
    _sklearn(
        "a-extra-ties",
        about="extra trees of pure leaves, whose votes tie",
        make=made("ensemble.ExtraTreesClassifier", n_estimators=6, random_state=0),
        data=numbers(classes=4),
        classifies=True,
    ),
    _sklearn(
        "a-scaler-tree", about="scaler, then a tree", make=piped(_SCALER, _TREE), data=_double(3), classifies=True
    ),
    _sklearn(
        "a-scaler-boosting",
        about="scaler, then boosting",
        make=piped(_SCALER, made("ensemble.GradientBoostingRegressor", n_estimators=20, random_state=0)),
        data=_double(),
    ),
    _sklearn(
        "a-scaler-forest",
        about="min-max scaler, then a forest",
        make=piped(
            made("preprocessing.MinMaxScaler"),
            made("ensemble.RandomForestRegressor", n_estimators=10, random_state=0),
        ),
        data=_double(),
    ),
    _sklearn(
        "a-scaler-hist",
        about="scaler, then histogram boosting",
        make=piped(_SCALER, made("ensemble.HistGradientBoostingRegressor", max_iter=20, random_state=0)),
        data=_double(),
    ),
    _sklearn("a-times-tree", about="a tree on times in milliseconds", make=_TREE, data=_large, classifies=True),
    _sklearn(
        "a-times-logistic",
        about="logistic regression on scaled times",
        make=piped(_SCALER, made("linear_model.LogisticRegression")),
        data=_large,
        classifies=True,
    ),
    _sklearn(
        "a-hist-missing",
        about="histogram boosting with missing values",
        make=made("ensemble.HistGradientBoostingClassifier", max_iter=20, random_state=0),
        data=with_missing(numbers(classes=3)),
        classifies=True,
        odd=_NAN,
    ),
    _sklearn(
        "a-tree-missing",
        about="a tree with missing values",
        make=_TREE,
        data=with_missing(numbers(classes=3)),
        classifies=True,
        odd=_NAN,
    ),
    _sklearn(
        "a-imputer",
        about="an imputer for -1, then a forest",
        make=piped(
            made("impute.SimpleImputer", missing_values=-1),
            made("ensemble.RandomForestClassifier", n_estimators=15, random_state=0),
        ),
        data=with_missing(numbers(classes=3), 0.2, -1.0),
        classifies=True,
        odd=(-1.0, 0.0),
    ),
    _sklearn(
        "a-bins",
        about="values in bins",
        make=piped(
            made("preprocessing.KBinsDiscretizer", n_bins=5, quantile_method="averaged_inverted_cdf"),
            made("linear_model.Ridge"),
        ),
        data=_double(),
    ),
    _sklearn(
        "a-neighbour-ties",
        about="neighbours that are equally far",
        make=made("neighbors.KNeighborsClassifier", n_neighbors=4),
        data=_few_values,
        classifies=True,
    ),
    _sklearn(
        "a-pairs-svc",
        about="SVC of 4 classes by pairs",
        make=piped(_SCALER, made("svm.SVC", decision_function_shape="ovo", random_state=0)),
        data=numbers(classes=4),
        classifies=True,
    ),
    _sklearn(
        "a-isolation",
        about="an isolation forest in float64",
        make=made("ensemble.IsolationForest", n_estimators=20, random_state=0),
        data=_double(),
    ),
    _sklearn(
        "a-scaler-refuses",
        about="a scaler that refuses missing and infinite values",
        make=piped(_SCALER, made("linear_model.Ridge")),
        data=_double(),
        odd=(np.nan, np.inf, -np.inf),
    ),
    _sklearn(
        "a-forest-refuses",
        about="gradient boosting that refuses missing values",
        make=made("ensemble.GradientBoostingClassifier", n_estimators=10, random_state=0),
        data=numbers(classes=3),
        classifies=True,
        odd=(np.nan, np.inf),
    ),
    _sklearn(
        "a-logarithm-refuses",
        about="a logarithm, of which the regression refuses what isn't finite",
        make=piped(_logarithm, made("linear_model.Ridge")),
        data=numbers(kind=np.float64, positive=True),
        odd=(0.0, -1.0, np.nan),
    ),
    _unknown_cities("a-ordinal-unknown", "an ordinal encoder, unknown categories", _ordinal, classes=False),
    _unknown_cities("a-one-hot-unknown", "one-hot, unknown categories are an error", _one_hot("error"), classes=True),
    _unknown_cities("a-one-hot-ignored", "one-hot, unknown categories are ignored", _one_hot("ignore"), classes=True),
    _probable("a-probabilities-by-function", "`pyfunc_predict_fn`", function=True),
    _probable("a-probabilities-by-signature", "probabilities in the signature", function=False),
)
