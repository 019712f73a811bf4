"""How scikit-learn's estimators take the columns of a data frame."""

from typing import Any

from shiplift.runtime.model.conversion.sklearn_trees import within


def selects_columns(estimator: Any) -> bool:
    """Whether a part of the estimator selects columns by name; otherwise all columns are one matrix to it."""
    return any(hasattr(part, "transformers_") for part in within(estimator))
