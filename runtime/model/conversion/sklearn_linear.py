"""What skl2onnx takes for granted of scikit-learn's linear classifiers, and some are otherwise."""

import copy
from typing import Any


def corrected(estimator: Any) -> Any:
    """The estimator, or a copy whose last step is a linear discriminant analysis of two classes with half its weights.

    skl2onnx writes the softmax of the distance and its opposite, which is the sigmoid of twice the distance.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # noqa: PLC0415 - only for sklearn models

    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    if not isinstance(last, LinearDiscriminantAnalysis) or len(last.classes_) != 2:
        return estimator
    halved = copy.copy(last)
    halved.coef_, halved.intercept_ = last.coef_ / 2, last.intercept_ / 2
    if last is estimator:
        return halved
    changed = copy.copy(estimator)
    changed.steps = [*estimator.steps[:-1], (estimator.steps[-1][0], halved)]
    return changed
