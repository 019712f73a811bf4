"""The method of a scikit-learn estimator that MLflow's pyfunc calls: its answers, and the outputs of its graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray
from onnx import helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion.original import classified
from shiplift.runtime.model.tensors import Arrays

LOG_PROBABILITIES = "log_probabilities"
_CALLED = ("predict", "predict_proba", "predict_log_proba", "predict_joint_log_proba")  # by MLflow's pyfunc
_SCORE = "score"  # which it calls, too
_CALL_ANOTHER = (
    "Log it with `log_model(..., pyfunc_predict_fn='predict')`, or with 'predict_proba', 'predict_log_proba' or "
    "'predict_joint_log_proba'. To serve another method, log a Python model whose `predict` calls it: "
    "`mlflow.pyfunc.log_model(name='model', python_model=..., input_example=x)`."
)


def method_of(folder: Path, model: Any) -> str:
    """`predict`, or what `pyfunc_predict_fn` says; `transform` for an estimator that only transforms.

    Raises:
        ExportFailed: MLflow's pyfunc can't call it, so nobody knows its answers.
    """
    flavors = yaml.safe_load((folder / "MLmodel").read_text())["flavors"]
    if name := flavors.get("python_function", {}).get("predict_fn"):
        if name == _SCORE:
            raise ExportFailed(
                f"it was logged with `pyfunc_predict_fn={name!r}`, which rates all rows with one number",
                do=_CALL_ANOTHER,
            )
        if name not in (*_CALLED, "transform"):
            raise ExportFailed(
                f"it was logged with `pyfunc_predict_fn={name!r}`, which mlflow.pyfunc can't call of an estimator",
                do=_CALL_ANOTHER,
            )
        return str(name)
    return "predict" if hasattr(model, "predict") or not hasattr(model, "transform") else "transform"


def answers(model: Any, method: str, features: Any, *, probable: bool) -> Arrays:
    """What the method answers, and after it what else the estimator says about its answer.

    A classifier's classes have their probabilities, (rows, classes), beside them; `probable`: those come first. An
    outlier detector's have the scores by which it decides, (rows, 1).
    """
    if method == "transform":
        return {"variable": dense(model.transform(features))}
    if method == "predict_log_proba":
        return {LOG_PROBABILITIES: np.asarray(model.predict_log_proba(features), dtype=np.float32)}
    label = dense(model.predict(features))
    if classifies(model) and hasattr(model, "predict_proba"):
        probabilities = model.predict_proba(features)
        if not isinstance(probabilities, list):  # one for each of several targets, which pyfunc does not answer
            return classified(label, probabilities, probable=probable)
    if detects_outliers(model):
        scores = np.asarray(model.decision_function(features), dtype=np.float32)
        return {"label": label.reshape(-1, 1), "scores": scores.reshape(-1, 1)}
    return {"label" if classifies(model) else "variable": label}


def with_outputs(graph: onnx.ModelProto, method: str, count: int) -> onnx.ModelProto:
    """The graph with the outputs of the method: the first `count`, or the logarithms of its probabilities."""
    outputs = graph.graph.output
    if method == "predict_log_proba":
        kind = outputs[1].type.tensor_type
        graph.graph.node.append(helper.make_node("Log", [outputs[1].name], [LOG_PROBABILITIES]))
        del outputs[:]
        outputs.append(helper.make_tensor_value_info(LOG_PROBABILITIES, kind.elem_type, ["batch", None]))
        return graph
    if len(outputs) <= count:
        return graph
    inputs = [value.name for value in graph.graph.input]
    kept = onnx.utils.Extractor(graph).extract_model(inputs, [value.name for value in outputs][:count])
    del kept.graph.value_info[:]  # it lists the outputs, too, and a prefix would rename them
    return kept


def with_logical_labels(graph: onnx.ModelProto, model: Any) -> onnx.ModelProto:
    """The graph of a classifier of True and False with booleans as labels; skl2onnx writes 1 and 0."""
    classes = np.asarray(getattr(model, "classes_", ()) if classifies(model) else ())
    label = graph.graph.output[0]
    if classes.dtype != np.bool_ or label.type.tensor_type.elem_type != onnx.TensorProto.INT64:
        return graph
    inner = f"{label.name}/number"
    for node in graph.graph.node:
        node.output[:] = [inner if name == label.name else name for name in node.output]
        node.input[:] = [inner if name == label.name else name for name in node.input]
    graph.graph.node.append(helper.make_node("Cast", [inner], [label.name], to=onnx.TensorProto.BOOL))
    label.type.tensor_type.elem_type = onnx.TensorProto.BOOL
    return graph


def classifies(model: Any) -> bool:
    """Whether the estimator answers classes."""
    from sklearn.base import is_classifier  # noqa: PLC0415 - only for sklearn models

    return bool(is_classifier(model))


def detects_outliers(model: Any) -> bool:
    """Whether the estimator tells outliers from the rest, as 1 and -1."""
    from sklearn.base import is_outlier_detector  # noqa: PLC0415 - only for sklearn models

    return bool(is_outlier_detector(model))


def dense(answer: Any) -> NDArray[Any]:
    """An answer as an array; a sparse matrix becomes a dense one."""
    return np.asarray(answer.toarray() if hasattr(answer, "toarray") else answer)
