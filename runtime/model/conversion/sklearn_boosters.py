"""Boosters inside scikit-learn's pipelines, which skl2onnx converts by the code of onnxmltools and of CatBoost."""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from shiplift.runtime.model.conversion.sklearn_trees import within

_BOOSTERS = ("catboost", "lightgbm", "xgboost")
_BOOSTED_OPSET = 15  # the newest that onnxmltools writes
_LEARNING_OPSET = 3  # the newest in which skl2onnx writes isolation forests


def opsets(estimator: Any, newest: int, *, outliers: bool) -> dict[str, int] | int:
    """The opsets to convert an estimator with: onnxmltools and isolation forests are written in older ones."""
    boosted = any(type(part).__module__.split(".")[0] in _BOOSTERS for part in within(estimator))
    if boosted or outliers:
        return {"": min(newest, _BOOSTED_OPSET) if boosted else newest, "ai.onnx.ml": _LEARNING_OPSET}
    return newest


def register() -> None:
    """Makes skl2onnx know the boosters whose libraries are imported, as they are once a model is loaded."""
    known = {"catboost": _register_catboost, "lightgbm": _register_lightgbm, "xgboost": _register_xgboost}
    for library in _BOOSTERS:
        if library in sys.modules:
            known[library]()


@cache
def _register_lightgbm() -> None:
    import lightgbm  # noqa: PLC0415 - only for such models
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm  # noqa: PLC0415

    _register_booster(lightgbm.LGBMClassifier, lightgbm.LGBMRegressor, convert_lightgbm, {"split": None})


@cache
def _register_xgboost() -> None:
    import xgboost  # noqa: PLC0415 - only for such models
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost  # noqa: PLC0415

    _register_booster(xgboost.XGBClassifier, xgboost.XGBRegressor, convert_xgboost, None)


@cache
def _register_catboost() -> None:
    import catboost  # noqa: PLC0415 - only for such models

    _register_booster(
        catboost.CatBoostClassifier, catboost.CatBoostRegressor, _convert_catboost, None, parser=_parse_catboost
    )


def _parse_catboost(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:  # noqa: ARG001 - skl2onnx passes it by name
    """The outputs of a classifier, as which skl2onnx does not recognise CatBoost's."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType  # noqa: PLC0415 - only for such models

    operator = scope.declare_local_operator("ShipliftCatBoostClassifier", model)
    operator.inputs = inputs
    operator.outputs.append(scope.declare_local_variable("label", Int64TensorType()))
    operator.outputs.append(scope.declare_local_variable("probabilities", FloatTensorType()))
    return operator.outputs


def _convert_catboost(scope: Any, operator: Any, container: Any) -> None:
    """The trees that CatBoost itself writes as ONNX."""
    import onnx  # noqa: PLC0415 - only for such models
    from catboost.utils import convert_to_onnx_object  # noqa: PLC0415

    trees = convert_to_onnx_object(operator.raw_operator).graph.node[0]
    container.add_node(
        trees.op_type,
        [operator.inputs[0].full_name],
        [each.full_name for each in operator.outputs],
        op_domain="ai.onnx.ml",
        name=scope.get_unique_operator_name(trees.op_type),
        **{each.name: onnx.helper.get_attribute_value(each) for each in trees.attribute},
    )


def _register_booster(
    classifier: Any, regressor: Any, convert: Callable[..., Any], options: Any, *, parser: Any = None
) -> None:
    from skl2onnx import update_registered_converter  # noqa: PLC0415 - only for sklearn models
    from skl2onnx.common import shape_calculator as shapes  # noqa: PLC0415

    choices = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    of_classifier = shapes.calculate_linear_classifier_output_shapes
    of_regressor = shapes.calculate_linear_regressor_output_shapes
    update_registered_converter(
        classifier, f"Shiplift{classifier.__name__}", of_classifier, convert, options=choices, parser=parser
    )
    update_registered_converter(regressor, f"Shiplift{regressor.__name__}", of_regressor, convert, options=options)
