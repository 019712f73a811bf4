"""The table of readers by class."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shiplift.runtime.model.reading import boosters, scikit_learn, transformers
from shiplift.runtime.model.reading.found import Found, Reading

# By the library and the name of the class, or of one it extends: no library is imported for it.
_PREDICTORS: Mapping[str, Callable[[Any, Reading], Found]] = {
    "sklearn.Pipeline": scikit_learn.pipeline,
    "sklearn.BaseDecisionTree": scikit_learn.tree,
    "sklearn.BaseForest": scikit_learn.forest,
    "sklearn.BaseGradientBoosting": scikit_learn.forest,
    "sklearn.BaseHistGradientBoosting": scikit_learn.histogram_boosting,
    "sklearn.BaseBagging": scikit_learn.ensemble,
    "sklearn.BaseWeightBoosting": scikit_learn.ensemble,
    "sklearn._BaseVoting": scikit_learn.ensemble,
    "sklearn._BaseStacking": scikit_learn.ensemble,
    "sklearn._MultiOutputEstimator": scikit_learn.ensemble,
    "sklearn.OneVsRestClassifier": scikit_learn.ensemble,
    "sklearn.OneVsOneClassifier": scikit_learn.ensemble,
    "sklearn.CalibratedClassifierCV": scikit_learn.calibrated,
    "sklearn.BaseSearchCV": scikit_learn.inner("best_estimator_"),
    "sklearn.TransformedTargetRegressor": scikit_learn.inner("regressor_"),
    "sklearn.BaseThresholdClassifier": scikit_learn.inner("estimator_", "estimator"),
    "lightgbm.Booster": boosters.lightgbm,
    "lightgbm.LGBMModel": boosters.lightgbm,
    "xgboost.Booster": boosters.xgboost,
    "xgboost.XGBModel": boosters.xgboost,
    "catboost.CatBoost": boosters.catboost,
    "sklearn.BaseEstimator": scikit_learn.estimator,
}
_TRANSFORMERS: Mapping[str, Callable[[Any, Found, Reading], Found]] = {
    "sklearn.Pipeline": transformers.pipeline,
    "sklearn.ColumnTransformer": transformers.column_transformer,
    "sklearn.FeatureUnion": transformers.union,
    "sklearn.StandardScaler": transformers.scaler,
    "sklearn.MinMaxScaler": transformers.scaler,
    "sklearn.MaxAbsScaler": transformers.scaler,
    "sklearn.RobustScaler": transformers.scaler,
    "sklearn.PowerTransformer": transformers.scaler,
    "sklearn.QuantileTransformer": transformers.scaler,
    "sklearn.FunctionTransformer": transformers.function,
    "sklearn.SelectorMixin": transformers.selection,
    "sklearn.SimpleImputer": transformers.imputer,
    "sklearn._BaseEncoder": transformers.encoder,
    "sklearn.KBinsDiscretizer": transformers.bins,
    "sklearn.Binarizer": transformers.binarizer,
    "sklearn._VectorizerMixin": transformers.vectorizer,
}


class ModelReader:
    """Reads a model by the tables. What no reader knows, or a reader fails at, has no facts, and a note says so."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype

    def predictor(self, model: Any) -> Found:
        """What a model says about the columns that it takes."""
        read = next((_PREDICTORS[name] for name in _names(model) if name in _PREDICTORS), None)
        if read is None:
            return Found()
        try:
            return read(model, self)
        except Exception as error:  # the author's object may raise anything, and facts only help
            return Found(notes=(_failed(model, error),))

    def before(self, transformer: Any, found: Found) -> Found:
        """What a transformer says about the columns that it takes, and what was found of those that it returns."""
        if transformer is None or transformer == "passthrough":
            return found
        read = next((_TRANSFORMERS[name] for name in _names(transformer) if name in _TRANSFORMERS), None)
        try:
            return (read or transformers.unknown)(transformer, found, self)
        except Exception as error:
            return Found(notes=(*found.notes, _failed(transformer, error)))


def _names(model: Any) -> list[str]:
    return [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(model).__mro__]


def _failed(model: Any, error: Exception) -> str:
    return f"{type(model).__name__} could not be read: {' '.join(str(error).split())[:200]}."
