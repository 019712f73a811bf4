"""Missing texts in a graph: clients send `MISSING`, and scikit-learn's encoders and imputers learned NaN or None."""

import copy
from typing import Any

import numpy as np

from shiplift.runtime.guest.python.values import MISSING, is_missing
from shiplift.runtime.model.conversion.sklearn_trees import within


def as_sent(model: Any) -> Any:
    """The model, in whose copy a missing text is the one that clients send; itself if it knows none."""
    if not any(_encodes(part) or _imputes(part) for part in within(model)):
        return model
    model = copy.deepcopy(model)
    for part in within(model):
        if _encodes(part):
            part.categories_ = [_told(known) for known in part.categories_]
        elif _imputes(part):
            part.missing_values = MISSING
    return model


def _encodes(part: Any) -> bool:
    """Whether a missing text is a category like others; an OrdinalEncoder writes NaN instead, unlike any graph."""
    known = None if hasattr(part, "encoded_missing_value") else getattr(part, "categories_", None)
    return isinstance(known, list) and any(_texts(each) and any(map(is_missing, each)) for each in known)


def _imputes(part: Any) -> bool:
    statistics = getattr(part, "statistics_", None)
    return statistics is not None and _texts(statistics) and is_missing(getattr(part, "missing_values", ""))


def _texts(values: Any) -> bool:
    return np.asarray(values).dtype.kind in "OU" and any(isinstance(value, str) for value in values)


def _told(known: Any) -> Any:
    return np.array([MISSING if is_missing(each) else each for each in known], dtype=object) if _texts(known) else known
