"""Generated cases: LightGBM, XGBoost and CatBoost over their objectives, boosters and kinds of columns.

A case is called `LIBRARY/VARIANT/INPUT`: a frame of `numbers`, some of them missing, or of `columns` of several types.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.case import Case, Logged

_ROWS, _FRESH, _SEED, _ROUNDS = 200, 200, 11, 15
_GROUP = 20  # rows of a query, for rankers
_CITIES, _PLANS = ["Ulm", "Berlin", "Rom", "Bonn"], ["basic", "pro"]
_WORDS = ["good", "bad", "slow", "quick", "broken", "lovely", "again", "never"]

Fit = Callable[[Any, Any], Any]


def _numbers() -> Any:
    import pandas as pd

    rng = np.random.default_rng(_SEED)
    frame = pd.DataFrame(rng.normal(size=(_ROWS + _FRESH, 5)), columns=["a", "b", "c (cm)", "d", "count"])
    frame.loc[rng.random(len(frame)) < 0.1, "b"] = np.nan
    return frame.assign(count=rng.poisson(2, len(frame)).astype(np.float64), d=frame["d"].round().abs())


def _columns() -> Any:
    import pandas as pd

    rng, frame = np.random.default_rng(_SEED + 1), _numbers()
    city = pd.Categorical(rng.choice(_CITIES, len(frame)), categories=_CITIES)
    plan = pd.Categorical(rng.choice(_PLANS, len(frame)), categories=_PLANS)
    return frame[["a", "b", "count"]].assign(city=city, plan=plan, member=frame["d"] > 1)


def _texts() -> Any:
    rng, frame = np.random.default_rng(_SEED + 2), _columns()
    said = [" ".join(rng.choice(_WORDS, 6)) for _ in range(len(frame))]
    plain = {name: frame[name].astype(str) for name in ("city", "plan")}
    return frame[["a", "count"]].assign(**plain, said=said)


def _codes() -> Any:
    return _columns().assign(city=lambda frame: frame["city"].cat.codes.astype(float)).drop(columns=["plan", "member"])


_DATA: Mapping[str, Callable[[], Any]] = {"numbers": _numbers, "columns": _columns, "texts": _texts, "codes": _codes}


def _target(kind: str, frame: Any) -> Any:
    """What is learned: a number, a positive one, a share, one of two or three classes, ranks, or two numbers."""
    rng = np.random.default_rng(_SEED + 3)
    score = 2 * frame["a"].to_numpy() + 0.5 * frame["count"].to_numpy() + rng.normal(scale=0.3, size=len(frame))
    shifted = score - np.median(score)
    return {
        "number": score,
        "positive": np.exp(score / 3),
        "share": 1 / (1 + np.exp(-shifted)),
        "two": (shifted > 0).astype(int),
        "classes": np.digitize(shifted, [-1.0, 1.0]),
        "names": np.array(["low", "mid", "high"])[np.digitize(shifted, [-1.0, 1.0])],
        "truth": shifted > 0,
        "ranks": np.digitize(shifted, [-2.0, 0.0, 2.0]),
        "several": np.stack([score, -score + frame["a"].to_numpy() ** 2], axis=1),
    }[kind]


def _case(
    library: str, variant: str, target: str, fit: Fit, data: str = "numbers", *, asks_itself: bool = False
) -> Case:
    """A model fitted on the first rows, which is asked the rest.

    MLflow's pyfunc turns categories into text, which LightGBM and XGBoost don't take: then `asks_itself` says that the
    model's own answers are right.
    """

    def build(_: Path) -> Logged:
        import mlflow
        from mlflow.models import infer_signature

        frame = _DATA[data]()
        known, fresh = frame.iloc[:_ROWS], frame.iloc[_ROWS:]
        model = fit(known, _target(target, frame)[:_ROWS])
        example = known.iloc[:40]
        answered = _own(library, model, example)
        given = {
            "signature": infer_signature(example, answered),
            "input_example": example,
            "pip_requirements": [],
        }
        flavor = getattr(mlflow, library)
        sent = fresh.astype({name: object for name in fresh.columns if str(fresh[name].dtype) == "category"})
        return Logged(
            log=partial(flavor.log_model, model, **given),
            save=partial(flavor.save_model, model, **given),
            inputs={},
            question=sent,
            original={"": np.asarray(_own(library, model, fresh))} if asks_itself else None,
        )

    return Case(
        name=f"{library}/{variant}/{data}",
        flavor=library,
        about=f"{variant} from {data}",
        build=build,
        needs=(library,),
        install="pip install 'shiplift[catboost]'",
        input=data,
    )


def _own(library: str, model: Any, rows: Any) -> Any:
    """What the model itself answers."""
    if library == "xgboost" and type(model).__name__ == "Booster":
        import xgboost

        return model.predict(xgboost.DMatrix(rows, enable_categorical=True))
    return model.predict(rows)


# --- LightGBM --------------------------------------------------------------------------------------------------------


def _lightgbm(variant: str, target: str, data: str = "numbers", **parameters: Any) -> Case:
    """A native Booster with these parameters."""

    def fit(rows: Any, targets: Any) -> Any:
        import lightgbm

        grouped = {"group": [_GROUP] * (len(rows) // _GROUP)} if target == "ranks" else {}
        given = {"objective": variant, "verbose": -1, "num_threads": 1, "seed": 1, "min_data_in_leaf": 5} | parameters
        return lightgbm.train(given, lightgbm.Dataset(rows, targets, **grouped), _ROUNDS)

    return _case("lightgbm", variant, target, fit, data, asks_itself=data == "columns")


def _lightgbm_wrapper(name: str, target: str, data: str = "numbers", variant: str = "", **parameters: Any) -> Case:
    """A wrapper for scikit-learn."""

    def fit(rows: Any, targets: Any) -> Any:
        import lightgbm

        grouped = {"group": [_GROUP] * (len(rows) // _GROUP)} if target == "ranks" else {}
        given = {"n_estimators": _ROUNDS, "verbose": -1, "n_jobs": 1, "min_child_samples": 5} | parameters
        return getattr(lightgbm, name)(**given).fit(rows, targets, **grouped)

    return _case("lightgbm", variant or name, target, fit, data, asks_itself=data == "columns")


def _squared(predicted: Any, data: Any) -> tuple[Any, Any]:
    """A custom objective: the gradient of the squared error, and its second derivative."""
    labels = data.get_label()
    return predicted.reshape(labels.shape) - labels, np.ones_like(labels)


_BAGGED: dict[str, Any] = {"bagging_freq": 1, "bagging_fraction": 0.7}
_LIGHTGBM = (
    _lightgbm("regression", "number"),
    _lightgbm("regression_l1", "number"),
    _lightgbm("huber", "number"),
    _lightgbm("fair", "number"),
    _lightgbm("quantile", "number", alpha=0.9),
    _lightgbm("mape", "positive"),
    _lightgbm("poisson", "positive"),
    _lightgbm("gamma", "positive"),
    _lightgbm("tweedie", "positive"),
    _lightgbm("binary", "two"),
    _lightgbm("multiclass", "classes", num_class=3),
    _lightgbm("multiclassova", "classes", num_class=3),
    _lightgbm("cross_entropy", "share"),
    _lightgbm("cross_entropy_lambda", "share"),
    _lightgbm("lambdarank", "ranks"),
    _lightgbm("rank_xendcg", "ranks"),
    _lightgbm("custom-objective", "number", objective=_squared),
    _lightgbm("sqrt", "positive", objective="regression", reg_sqrt=True),
    _lightgbm("dart", "number", objective="regression", boosting="dart"),
    _lightgbm("rf", "number", objective="regression", boosting="rf", **_BAGGED),
    _lightgbm("rf-binary", "two", objective="binary", boosting="rf", **_BAGGED),
    _lightgbm("goss", "two", objective="binary", data_sample_strategy="goss"),
    _lightgbm("linear-tree", "number", objective="regression", linear_tree=True),
    _lightgbm("zero-as-missing", "number", objective="regression", zero_as_missing=True),
    _lightgbm("no-missing", "number", objective="regression", use_missing=False),
    _lightgbm("regression", "number", "columns"),
    _lightgbm("binary", "two", "columns"),
    _lightgbm("multiclass", "classes", "columns", num_class=3),
    _lightgbm("binary", "two", "codes", categorical_feature=[3]),
    _lightgbm_wrapper("LGBMClassifier", "classes"),
    _lightgbm_wrapper("LGBMClassifier", "names", variant="LGBMClassifier-of-texts"),
    _lightgbm_wrapper("LGBMClassifier", "truth", variant="LGBMClassifier-of-booleans"),
    _lightgbm_wrapper("LGBMClassifier", "two", "columns"),
    _lightgbm_wrapper("LGBMRegressor", "number"),
    _lightgbm_wrapper("LGBMRegressor", "number", "columns"),
    _lightgbm_wrapper("LGBMRegressor", "positive", variant="LGBMRegressor-tweedie", objective="tweedie"),
    _lightgbm_wrapper("LGBMRanker", "ranks"),
)


# --- XGBoost ---------------------------------------------------------------------------------------------------------


def _xgboost(variant: str, target: str, data: str = "numbers", **parameters: Any) -> Case:
    """A native Booster with these parameters."""

    def fit(rows: Any, targets: Any) -> Any:
        import xgboost

        given = {"objective": variant, "max_depth": 4, "nthread": 1, "seed": 1} | parameters
        custom, missing = given.pop("custom", None), given.pop("missing", np.nan)
        matrix = xgboost.DMatrix(rows, targets, enable_categorical=True, missing=missing)
        if variant.startswith("rank:"):
            matrix.set_group([_GROUP] * (len(rows) // _GROUP))
        if variant == "survival:aft":
            for bound in ("label_lower_bound", "label_upper_bound"):
                matrix.set_float_info(bound, targets)
        return xgboost.train(given, matrix, _ROUNDS, obj=custom)

    return _case("xgboost", variant.replace(":", "-"), target, fit, data, asks_itself=data == "columns")


def _xgboost_wrapper(name: str, target: str, data: str = "numbers", variant: str = "", **parameters: Any) -> Case:
    """A wrapper for scikit-learn."""

    def fit(rows: Any, targets: Any) -> Any:
        import xgboost

        grouped = {"qid": np.arange(len(rows)) // _GROUP} if target == "ranks" else {}
        given = {"n_estimators": _ROUNDS, "max_depth": 4, "n_jobs": 1, "enable_categorical": True} | parameters
        return getattr(xgboost, name)(**given).fit(rows, targets, **grouped)

    return _case("xgboost", variant or name, target, fit, data, asks_itself=data == "columns")


_XGBOOST = (
    _xgboost("reg:squarederror", "number"),
    _xgboost("reg:squaredlogerror", "positive"),
    _xgboost("reg:logistic", "share"),
    _xgboost("reg:pseudohubererror", "number"),
    _xgboost("reg:absoluteerror", "number"),
    _xgboost("reg:quantileerror", "number", quantile_alpha=0.9),
    _xgboost("quantiles", "number", objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9]),
    _xgboost("reg:gamma", "positive"),
    _xgboost("reg:tweedie", "positive"),
    _xgboost("count:poisson", "positive"),
    _xgboost("survival:cox", "positive"),
    _xgboost("survival:aft", "positive"),
    _xgboost("binary:logistic", "two"),
    _xgboost("binary:logitraw", "two"),
    _xgboost("binary:hinge", "two"),
    _xgboost("multi:softmax", "classes", num_class=3),
    _xgboost("multi:softprob", "classes", num_class=3),
    _xgboost("rank:ndcg", "ranks"),
    _xgboost("rank:pairwise", "ranks"),
    _xgboost("rank:map", "two"),
    _xgboost("custom-objective", "number", objective="reg:squarederror", custom=_squared),
    _xgboost("gblinear", "number", objective="reg:squarederror", booster="gblinear", max_depth=None),
    _xgboost("gblinear-binary", "two", objective="binary:logistic", booster="gblinear", max_depth=None),
    _xgboost(
        "gblinear-classes", "classes", objective="multi:softprob", booster="gblinear", num_class=3, max_depth=None
    ),
    _xgboost("dart", "number", objective="reg:squarederror", booster="dart", rate_drop=0.3),
    _xgboost("dart-classes", "classes", objective="multi:softprob", booster="dart", rate_drop=0.3, num_class=3),
    _xgboost("forest", "number", objective="reg:squarederror", num_parallel_tree=5, subsample=0.7),
    _xgboost("several", "several", objective="reg:squarederror"),
    _xgboost("several-in-a-tree", "several", objective="reg:squarederror", multi_strategy="multi_output_tree"),
    _xgboost("missing-is-0", "number", objective="reg:squarederror", missing=0.0),
    _xgboost("reg:squarederror", "number", "columns"),
    _xgboost("binary:logistic", "two", "columns"),
    _xgboost("multi:softprob", "classes", "columns", num_class=3),
    _xgboost_wrapper("XGBClassifier", "classes"),
    _xgboost_wrapper("XGBClassifier", "two", "columns"),
    _xgboost_wrapper("XGBClassifier", "classes", variant="XGBClassifier-missing-is-0", missing=0.0),
    _xgboost_wrapper("XGBClassifier", "truth", variant="XGBClassifier-of-booleans"),
    _xgboost_wrapper("XGBRegressor", "number"),
    _xgboost_wrapper("XGBRegressor", "number", "columns"),
    _xgboost_wrapper("XGBRegressor", "several", variant="XGBRegressor-several"),
    _xgboost_wrapper("XGBRegressor", "number", variant="XGBRegressor-missing-is-0", missing=0.0),
    _xgboost_wrapper("XGBRegressor", "number", variant="XGBRegressor-linear", booster="gblinear", max_depth=None),
    _xgboost_wrapper("XGBRegressor", "number", variant="XGBRegressor-dart", booster="dart"),
    _xgboost_wrapper("XGBRanker", "ranks"),
    _xgboost_wrapper("XGBRFClassifier", "two"),
    _xgboost_wrapper("XGBRFRegressor", "number"),
)


# --- CatBoost --------------------------------------------------------------------------------------------------------


def _catboost(name: str, target: str, data: str = "numbers", variant: str = "", **parameters: Any) -> Case:
    """A model of CatBoost: plain numbers, or categories and text by name."""

    def fit(rows: Any, targets: Any) -> Any:
        import catboost

        quiet = {"verbose": 0, "allow_writing_files": False, "thread_count": 1, "random_seed": 1}
        columns = [each for each in ("city", "plan") if data in ("columns", "texts") and each in rows]
        given: dict[str, Any] = {"iterations": _ROUNDS, "depth": 4, **quiet} | parameters
        given |= {"cat_features": columns} if columns else {}
        given |= {"text_features": ["said"]} if data == "texts" else {}
        grouped = {"group_id": np.arange(len(rows)) // _GROUP} if target == "ranks" else {}
        kind = getattr(catboost, name)
        return (kind(given) if name == "CatBoost" else kind(**given)).fit(rows, targets, **grouped)

    return _case("catboost", variant or name, target, fit, data)


_CATBOOST = (
    _catboost("CatBoostClassifier", "two"),
    _catboost("CatBoostClassifier", "classes", variant="MultiClass"),
    _catboost("CatBoostClassifier", "classes", variant="MultiClassOneVsAll", loss_function="MultiClassOneVsAll"),
    _catboost("CatBoostClassifier", "names", variant="CatBoostClassifier-of-texts"),
    _catboost("CatBoostClassifier", "truth", variant="CatBoostClassifier-of-booleans"),
    _catboost("CatBoostClassifier", "two", "columns"),
    _catboost("CatBoostClassifier", "classes", "columns", variant="MultiClass"),
    _catboost("CatBoostClassifier", "two", "texts"),
    _catboost("CatBoostRegressor", "number"),
    _catboost("CatBoostRegressor", "number", "columns"),
    _catboost("CatBoostRegressor", "number", "texts"),
    _catboost("CatBoostRegressor", "number", variant="MAE", loss_function="MAE"),
    _catboost("CatBoostRegressor", "number", variant="Quantile", loss_function="Quantile:alpha=0.9"),
    _catboost("CatBoostRegressor", "number", variant="MultiQuantile", loss_function="MultiQuantile:alpha=0.1,0.5,0.9"),
    _catboost("CatBoostRegressor", "positive", variant="Poisson", loss_function="Poisson"),
    _catboost("CatBoostRegressor", "positive", variant="Tweedie", loss_function="Tweedie:variance_power=1.5"),
    _catboost("CatBoostRegressor", "several", variant="MultiRMSE", loss_function="MultiRMSE"),
    _catboost("CatBoostRegressor", "number", variant="RMSEWithUncertainty", loss_function="RMSEWithUncertainty"),
    _catboost("CatBoostRegressor", "number", "columns", variant="Uncertainty", loss_function="RMSEWithUncertainty"),
    _catboost("CatBoost", "share", variant="CrossEntropy", loss_function="CrossEntropy"),
    _catboost("CatBoost", "number", variant="CatBoost"),
    _catboost("CatBoostRanker", "ranks", loss_function="YetiRank"),
    _catboost("CatBoostRegressor", "number", variant="Lossguide", grow_policy="Lossguide"),
)


BOOSTING = (*_LIGHTGBM, *_XGBOOST, *_CATBOOST)
