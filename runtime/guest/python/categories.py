"""Columns of categories for a booster that was trained on those of pandas.

MLflow's signature knows such a column as texts or whole numbers, and refuses pandas' categories. So `mlflow.pyfunc`
hands over what neither LightGBM nor XGBoost takes for them. Here, they get the categories that they keep from training.

Process: the model's own process, as `python_host/categories.py`; Shiplift.
Python: the model's
Packages: pandas, xgboost
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

Categories = Mapping[str, Sequence[Any]]  # of each such column, in the order of their codes


class Categorical:
    """A booster as MLflow wraps it, asked with the categorical columns of its training."""

    def __init__(self, wrapped: Any, categories: Categories) -> None:
        self._wrapped, self._categories = wrapped, categories

    def predict(self, data: Any, params: Any = None) -> Any:
        """What the booster answers, with each of those columns as in training."""
        columns = {name: _column(data[name], known) for name, known in self._categories.items() if name in data}
        data, booster = data.assign(**columns), getattr(self._wrapped, "xgb_model", None)
        if booster is None or hasattr(booster, "get_booster"):
            return self._wrapped.predict(data, params=params)
        import xgboost  # noqa: PLC0415 - MLflow gives such a booster a matrix that takes no categories

        known = inspect.signature(booster.predict).parameters
        given = {name: value for name, value in (params or {}).items() if name in known}
        return booster.predict(xgboost.DMatrix(data, enable_categorical=True), **given)


def categories_of(wrapped: Any, columns: Sequence[Any]) -> Categories:
    """The categories that a booster keeps, by column, of which `columns` are the logged ones; none of other models."""
    if (model := getattr(wrapped, "lgb_model", None)) is not None:
        return _of_lightgbm(getattr(model, "booster_", model), columns)
    if (model := getattr(wrapped, "xgb_model", None)) is not None:
        return _of_xgboost(model.get_booster() if hasattr(model, "get_booster") else model)
    return {}


def _of_lightgbm(booster: Any, columns: Sequence[Any]) -> Categories:
    """LightGBM keeps lists of categories in the order of their columns, without the names of these."""
    lists = booster.pandas_categorical or []
    names = [str(column.name) for column in columns]
    if not lists or len(names) != booster.num_feature():
        return {}
    infos = booster.dump_model(num_iteration=1)["feature_infos"]
    kinds = [getattr(column.type, "name", "") for column in columns]
    own = zip(names, kinds, booster.feature_name(), strict=True)
    found = [name for name, kind, inner in own if kind == "string" or infos.get(inner, {}).get("values")]
    return dict(zip(found, lists, strict=True)) if len(found) == len(lists) else {}


def _of_xgboost(booster: Any) -> Categories:
    """XGBoost keeps them by column since 3.1."""
    if not hasattr(booster, "get_categories"):
        return {}
    kept = booster.get_categories(export_to_arrow=True).to_arrow()
    return {name: values.to_pylist() for name, values in kept or () if values is not None}


def _column(values: Any, known: Sequence[Any]) -> Any:
    """A column's values as categories; a value that training never saw is missing. Text may stand for a number."""
    import pandas as pd  # noqa: PLC0415 - only for data frames

    codes = {key: code for code, value in enumerate(known) for key in (value, str(value))}
    found = [codes.get(value, -1) for value in values.tolist()]
    return pd.Categorical.from_codes(found, list(known))
