"""What skl2onnx takes for granted of scikit-learn's linear classifiers, and some are otherwise."""

import copy
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def corrected(estimator: Any) -> Any:
    """The estimator, or a copy whose last step is a linear discriminant analysis of two classes with half its weights.

    skl2onnx writes the softmax of the distance and its opposite, which is the sigmoid of twice the distance.
    """
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # noqa: PLC0415 - only for sklearn models

    last = _last(estimator)
    if not isinstance(last, LinearDiscriminantAnalysis) or len(last.classes_) != 2:
        return estimator
    halved = copy.copy(last)
    halved.coef_, halved.intercept_ = last.coef_ / 2, last.intercept_ / 2
    if last is estimator:
        return halved
    changed = copy.copy(estimator)
    changed.steps = [*estimator.steps[:-1], (estimator.steps[-1][0], halved)]
    return changed


def with_rows_of_labels(graph: onnx.ModelProto, estimator: Any) -> onnx.ModelProto:
    """The graph of a quadratic discriminant analysis with a label to a row; skl2onnx writes (1, rows)."""
    from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis  # noqa: PLC0415 - only for sklearn models

    last = _last(estimator)
    if not isinstance(last, QuadraticDiscriminantAnalysis):
        return graph
    label = graph.graph.output[0]
    inner, shape = f"{label.name}/across", f"{label.name}/shape"
    for node in graph.graph.node:
        node.output[:] = [inner if name == label.name else name for name in node.output]
    graph.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), shape))
    graph.graph.node.append(helper.make_node("Reshape", [inner, shape], [label.name]))
    kind = label.type.tensor_type.elem_type
    label.CopyFrom(helper.make_tensor_value_info(label.name, kind, ["batch"]))
    return graph


def with_labels_of_scores(graph: onnx.ModelProto, estimator: Any) -> onnx.ModelProto:
    """The graph of a linear classifier by stochastic gradient descent with the label of the highest score.

    skl2onnx takes the highest probability: far from the boundaries several classes have 1.0, and the first would win.
    """
    from sklearn.linear_model import SGDClassifier  # noqa: PLC0415 - only for sklearn models

    last = _last(estimator)
    if not isinstance(last, SGDClassifier) or len(last.classes_) < 3:  # two classes share a score
        return graph
    products = {node.output[0] for node in graph.graph.node if node.op_type == "MatMul"}
    scores = [node.output[0] for node in graph.graph.node if node.op_type == "Add" and node.input[0] in products]
    labels = [node for node in graph.graph.node if node.op_type == "ArgMax"]
    if scores and labels:
        labels[-1].input[0] = scores[-1]
    return graph


def _last(estimator: Any) -> Any:
    """The estimator, or the last step of a pipeline."""
    return estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
