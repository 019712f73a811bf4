"""What skl2onnx lacks: functions of numpy, transformed targets, and estimators that are like others.

Everything is registered with skl2onnx once, before a model is converted.
"""

import copy
from functools import cache, partial
from typing import Any

import numpy as np
from onnx import TensorProto

from shiplift.runtime.model.conversion import sklearn_steps
from shiplift.runtime.model.conversion.sklearn_trees import within

# Functions of numpy as operators of ONNX: a chain, where a number is a constant operand of the operator before it.
_FUNCTIONS: dict[Any, tuple[Any, ...]] = {
    np.absolute: ("Abs",),
    np.ceil: ("Ceil",),
    np.cos: ("Cos",),
    np.exp: ("Exp",),
    np.exp2: ("Mul", float(np.log(2)), "Exp"),
    np.expm1: ("Exp", "Add", -1.0),
    np.floor: ("Floor",),
    np.log: ("Log",),
    np.log10: ("Log", "Mul", float(1 / np.log(10))),
    np.log1p: ("Add", 1.0, "Log"),
    np.log2: ("Log", "Mul", float(1 / np.log(2))),
    np.negative: ("Neg",),
    np.reciprocal: ("Reciprocal",),
    np.rint: ("Round",),
    np.sign: ("Sign",),
    np.sin: ("Sin",),
    np.sqrt: ("Sqrt",),
    np.square: ("Pow", 2.0),
    np.tanh: ("Tanh",),
}
_LIKE = {  # estimators that compute as another one, which skl2onnx knows
    ("sklearn.cross_decomposition", "CCA"): "SklearnPLSRegression",
    ("sklearn.cross_decomposition", "PLSCanonical"): "SklearnPLSRegression",
    ("sklearn.feature_selection", "SequentialFeatureSelector"): "SklearnSelectKBest",
    ("sklearn.random_projection", "SparseRandomProjection"): "SklearnGaussianRandomProjection",
}
_WRAPPED = {  # estimators that only ask the one that they fitted
    "FrozenEstimator": "estimator",
    "GridSearchCV": "best_estimator_",
    "HalvingGridSearchCV": "best_estimator_",
    "HalvingRandomSearchCV": "best_estimator_",
    "RandomizedSearchCV": "best_estimator_",
    "SelfTrainingClassifier": "estimator_",
}


def unwrapped(estimator: Any, *, predicts: bool) -> Any:
    """The estimator that answers, without those around it that only found or fitted it; its bins have dense codes."""
    estimator = _unwrapped(estimator) if predicts else estimator
    if any(getattr(part, "encode", "") == "onehot" for part in within(estimator)):
        estimator = copy.deepcopy(estimator)
        for part in within(estimator):
            if getattr(part, "encode", "") == "onehot":
                part.encode = "onehot-dense"
    return estimator


def _unwrapped(estimator: Any) -> Any:
    from sklearn.pipeline import Pipeline  # noqa: PLC0415 - only for sklearn models

    while name := _WRAPPED.get(type(estimator).__name__):
        estimator = getattr(estimator, name)
    if type(estimator).__name__ in ("RFE", "RFECV"):  # it selects features, and asks the estimator for those
        return Pipeline([("select", estimator), ("estimator", _unwrapped(estimator.estimator_))])
    if not isinstance(estimator, Pipeline):
        return estimator
    *before, (name, last) = estimator.steps
    inner = _unwrapped(last)
    return estimator if inner is last else Pipeline([*before, (name, inner)])


@cache
def register() -> None:
    """Makes skl2onnx know all of this."""
    from importlib import import_module  # noqa: PLC0415 - only for sklearn models

    from skl2onnx import update_registered_converter  # noqa: PLC0415
    from skl2onnx._supported_operators import sklearn_operator_name_map  # noqa: PLC0415
    from skl2onnx.common import _registration as known  # noqa: PLC0415
    from sklearn.compose import TransformedTargetRegressor  # noqa: PLC0415
    from sklearn.impute import SimpleImputer  # noqa: PLC0415
    from sklearn.preprocessing import FunctionTransformer  # noqa: PLC0415

    for (module, name), other in _LIKE.items():
        convert, shapes = known.get_converter(other), known.get_shape_calculator(other)
        update_registered_converter(getattr(import_module(module), name), f"Shiplift{name}", shapes, convert._fct)
    alias = sklearn_operator_name_map[SimpleImputer]
    convert, shapes = known.get_converter(alias), known.get_shape_calculator(alias)
    update_registered_converter(SimpleImputer, "ShipliftImputer", shapes, partial(_convert_imputer, convert._fct))
    update_registered_converter(FunctionTransformer, "ShipliftFunction", _as_input, _convert_function)
    update_registered_converter(
        TransformedTargetRegressor, "ShipliftTarget", _as_input, _convert_target, parser=_parse_target
    )
    sklearn_steps.register()


def exact_division() -> dict[Any, dict[str, str]]:
    """Options by which scalers divide, as scikit-learn does: to multiply by the inverse moves trees' thresholds."""
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415 - only for sklearn models

    return {StandardScaler: {"div": "div"}}


def _as_input(operator: Any) -> None:
    """The type and shape of the output, which are those of the inputs side by side."""
    sizes = [each.type.shape[1] for each in operator.inputs]
    rows = operator.inputs[0].get_first_dimension()
    operator.outputs[0].type = type(operator.inputs[0].type)([rows, None if None in sizes else sum(sizes)])


def _convert_imputer(otherwise: Any, scope: Any, operator: Any, container: Any) -> None:
    """Missing values in FP64, for which ONNX Runtime has no Imputer; `otherwise` converts all others."""
    imputer, kind = operator.raw_operator, operator.inputs[0].type.to_onnx_type().tensor_type.elem_type
    numbers = len(operator.inputs) == 1 and kind == TensorProto.DOUBLE and isinstance(imputer.missing_values, float)
    if not numbers or not np.isnan(imputer.missing_values) or np.isnan(imputer.statistics_).any():
        otherwise(scope, operator, container)
        return
    values, missing = scope.get_unique_variable_name("values"), scope.get_unique_variable_name("missing")
    start = operator.inputs[0].full_name
    container.add_initializer(
        values, kind, [1, len(imputer.statistics_)], [float(each) for each in imputer.statistics_]
    )
    container.add_node("IsNaN", [start], missing, name=scope.get_unique_operator_name("IsNaN"))
    out = operator.outputs[0].full_name
    container.add_node("Where", [missing, values, start], out, name=scope.get_unique_operator_name("Where"))


# --- functions -------------------------------------------------------------------------------------------------------


def _convert_function(scope: Any, operator: Any, container: Any) -> None:
    """A FunctionTransformer of a function of numpy, or of none."""
    transformer = operator.raw_operator
    if transformer.kw_args:
        raise NotImplementedError("its function has arguments")
    names = [each.full_name for each in operator.inputs]
    start = names[0]
    if len(names) > 1:
        start = scope.get_unique_variable_name("joined")
        container.add_node("Concat", names, start, axis=1, name=scope.get_unique_operator_name("Concat"))
    _compute(scope, operator, container, start, _chain(transformer.func))


def _chain(function: Any) -> tuple[Any, ...]:
    if function is None:
        return ()
    if function not in _FUNCTIONS:
        raise NotImplementedError(f"the function {getattr(function, '__name__', function)} has no form in ONNX")
    return _FUNCTIONS[function]


def _compute(scope: Any, operator: Any, container: Any, start: str, chain: tuple[Any, ...]) -> None:
    """Writes a chain of operators between `start` and the operator's output."""
    steps = [(each, chain[at + 1 : at + 2]) for at, each in enumerate(chain) if isinstance(each, str)]
    kind = operator.outputs[0].type.to_onnx_type().tensor_type.elem_type
    for name, after in steps:
        inputs = [start]
        if after and not isinstance(after[0], str):
            inputs.append(scope.get_unique_variable_name("operand"))
            operand = np.asarray(after[0], np.float64).reshape(-1)
            container.add_initializer(inputs[1], kind, list(operand.shape), operand.tolist())
        start = scope.get_unique_variable_name("computed")
        container.add_node(name, inputs, start, name=scope.get_unique_operator_name(name))
    container.add_node("Identity", [start], operator.outputs[0].full_name, name=scope.get_unique_operator_name("Out"))


# --- transformed targets ---------------------------------------------------------------------------------------------


def _parse_target(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """The regressor, and an operator behind it."""
    from skl2onnx._parse import _parse_sklearn  # noqa: PLC0415 - the hook that its own parsers use

    behind = scope.declare_local_operator("ShipliftTarget", model)
    behind.inputs = _parse_sklearn(scope, model.regressor_, inputs, custom_parsers=custom_parsers)
    behind.outputs.append(scope.declare_local_variable("variable", type(behind.inputs[0].type)()))
    return behind.outputs


def _convert_target(scope: Any, operator: Any, container: Any) -> None:
    """The inverse of the transformation of the target, in front of which the regressor's answer is."""
    chain = _inverse(operator.raw_operator.transformer_)
    _compute(scope, operator, container, operator.inputs[0].full_name, chain)


def _inverse(transformer: Any) -> tuple[Any, ...]:
    kind = type(transformer).__name__
    if kind == "FunctionTransformer":
        return _chain(transformer.inverse_func)
    if kind == "StandardScaler":
        return _scaled(transformer.scale_, transformer.mean_)
    if kind == "RobustScaler":
        return _scaled(transformer.scale_, transformer.center_)
    if kind == "MaxAbsScaler":
        return _scaled(transformer.scale_, None)
    if kind == "MinMaxScaler" and not transformer.clip:
        return _scaled(1 / transformer.scale_, -transformer.min_ / transformer.scale_)
    raise NotImplementedError(f"the inverse of {kind} has no form in ONNX")


def _scaled(scale: Any, offset: Any) -> tuple[Any, ...]:
    return (*(() if scale is None else ("Mul", scale)), *(() if offset is None else ("Add", offset)))
