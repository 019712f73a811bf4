"""Readers of scikit-learn's models: trees, and models around other models."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shiplift.runtime.model.reading.found import LEAF, OTHER, Found, Reading, Tree, of_trees, together
from shiplift.runtime.model.reading.rounding import up_to_float32


def estimator(model: Any, reading: Reading) -> Found:
    """Any estimator: whether it takes missing values. None takes infinities."""
    taken = bool(model.__sklearn_tags__().input_tags.allow_nan)
    columns = range(int(getattr(model, "n_features_in_", 0)))
    return Found(missing=dict.fromkeys(columns, taken), infinite=dict.fromkeys(columns, False))


def tree(model: Any, reading: Reading) -> Found:
    """A decision tree, which compares features as float32 with thresholds of float64."""
    return together([estimator(model, reading), of_trees([_tree(model.tree_)])])


def ensemble(model: Any, reading: Reading) -> Found:
    """Models that are asked the same, or some of their columns: forests, boosting, votes, stacks."""
    members = [member for member in np.asarray(model.estimators_, object).ravel() if hasattr(member, "get_params")]
    chosen = getattr(model, "estimators_features_", None)
    found = [reading.predictor(member) for member in members]
    if chosen is not None:
        found = [part.at(dict(enumerate(map(int, columns)))) for part, columns in zip(found, chosen, strict=True)]
    return together([estimator(model, reading), *found])


def forest(model: Any, reading: Reading) -> Found:
    """Forests and gradient boosting: trees, of which only the whole says whether it takes missing values."""
    trees = [_tree(member.tree_) for member in np.asarray(model.estimators_, object).ravel()]
    return together([estimator(model, reading), of_trees(trees)])


def histogram_boosting(model: Any, reading: Reading) -> Found:
    """Histogram gradient boosting, which compares float64; its categories are numbers behind an encoder."""
    predictors = [predictor for stage in model._predictors for predictor in stage]
    found, encoder = (
        of_trees([_of_nodes(predictor.nodes) for predictor in predictors]),
        getattr(model, "_preprocessor", None),
    )  # which puts categories first
    return together([estimator(model, reading), found if encoder is None else reading.before(encoder, found)])


def inner(*names: str) -> Any:
    """A reader of models around one other, which is their first attribute of `names`."""

    def read(model: Any, reading: Reading) -> Found:
        return reading.predictor(next(getattr(model, name) for name in names if hasattr(model, name)))

    return read


def calibrated(model: Any, reading: Reading) -> Found:
    """Calibrated classifiers: several fits of one model."""
    return together(reading.predictor(each.estimator) for each in model.calibrated_classifiers_)


def pipeline(model: Any, reading: Reading) -> Found:
    """Steps: what the last says, brought back through those before it."""
    return through([step for _, step in model.steps[:-1]], reading.predictor(model.steps[-1][1]), reading)


def through(steps: Sequence[Any], found: Found, reading: Reading) -> Found:
    """What was found behind these steps, as of what the first takes."""
    for step in reversed(steps):
        found = reading.before(step, found)
    return found


def _tree(fitted: Any) -> Tree:
    leaf = fitted.children_left == fitted.children_right
    return Tree(
        feature=np.where(leaf, LEAF, fitted.feature).astype(np.int64),
        bound=up_to_float32(np.asarray(fitted.threshold, np.float64)),
        left=fitted.children_left,
        right=fitted.children_right,
    )


def _of_nodes(nodes: Any) -> Tree:
    """A tree of histogram boosting; a split at infinity only tells missing values from others."""
    numeric = (nodes["is_categorical"] == 0) & np.isfinite(nodes["num_threshold"])
    feature = np.where(numeric, nodes["feature_idx"].astype(np.int64), OTHER)
    return Tree(
        feature=np.where(nodes["is_leaf"] != 0, LEAF, feature),
        bound=nodes["num_threshold"].astype(np.float64),
        left=nodes["left"].astype(np.int64),
        right=nodes["right"].astype(np.int64),
    )
