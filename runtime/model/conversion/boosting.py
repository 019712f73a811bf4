"""Gradient boosting: LightGBM, XGBoost and CatBoost on one matrix of features, or on the columns of a data frame."""

import copy
import json
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion import forests
from shiplift.runtime.model.conversion.columns import FEATURES, FeatureColumns
from shiplift.runtime.model.conversion.double_graphs import consistent, with_own_operators
from shiplift.runtime.model.conversion.forests import Forest, NotExactError
from shiplift.runtime.model.conversion.lightgbm_doubles import Numbered
from shiplift.runtime.model.conversion.original import Original, classified, failed, wants_probabilities
from shiplift.runtime.model.reading import recording
from shiplift.runtime.model.reading.found import Tree
from shiplift.runtime.model.reading.reader import ModelReader
from shiplift.runtime.model.reading.rounding import down_to_float32
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

SECOND = "probability"  # the output of the second of two classes
_ZERO = np.float32(1e-35)
_SHOWN = 5  # categories in an error
_OPSET = 15  # the newest opset that onnxmltools writes


class Boosted(Original):
    """A booster or an estimator, converted by onnxmltools or by its own library.

    It answers classes and their probabilities, or the value of a regression.
    """

    narrow = True
    unknown = math.nan  # the code of a category that training never saw
    float_labels = False  # whether `predict` gives classes as floats, 7.0 for 7

    def __init__(
        self, folder: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *, tabular: bool
    ) -> None:
        if not tabular and len(inputs) != 1:
            raise ExportFailed(
                f"{len(inputs)} tensors were logged; the model takes one matrix of features, or a data frame",
                do="Log it as it was trained: "
                "`log_model(..., signature=infer_signature(x, model.predict(x)), input_example=x)`.",
            )
        self.model = self._load(str(folder))
        self.spec = inputs[0]
        self.probable = wants_probabilities(folder, outputs)
        self.columns = (
            FeatureColumns(specs=inputs, categories=self._categories(inputs), unknown=self.unknown) if tabular else None
        )

    @abstractmethod
    def _load(self, folder: str) -> Any:
        """Loads the model as MLflow does."""

    @abstractmethod
    def _objective(self) -> str:
        """The training objective, such as `binary`."""

    @abstractmethod
    def _categories(self, specs: tuple[TensorSpec, ...]) -> Mapping[str, Sequence[Any]]:
        """The categories of each categorical column, in the order of their codes."""

    @abstractmethod
    def _scores(self, features: Any) -> Any:
        """The probabilities of all classes, or of the second class alone; or the regression's value."""

    @abstractmethod
    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        """The model as ONNX, with an input of the name and type in `types`."""

    def answer(self, inputs: Arrays) -> Arrays:
        """Classes and their probabilities, or the value of a regression."""
        features = self.columns.frame(inputs) if self.columns else next(iter(inputs.values()))
        scores = np.asarray(self._scores(features))
        if not self._classifies():
            return {"variable": scores.reshape(len(scores), -1).astype(np.float32)}
        probabilities = scores if scores.ndim == 2 else np.column_stack([1 - scores, scores])
        classes = self._classes(probabilities.shape[1])
        answers = classified(classes[probabilities.argmax(axis=1)], probabilities, probable=self.probable)
        if not self._second_alone():
            return answers
        return {SECOND: probabilities[:, 1:].astype(np.float32), **answers}

    def facts(self, inputs: tuple[TensorSpec, ...], example: Arrays) -> ModelFacts:
        """Those of the booster, with the categories that it keeps."""
        return recording.facts_of(self.model, inputs, self.columns.categories if self.columns else {})

    def trees(self) -> tuple[Tree, ...]:
        """The booster's trees, in its own arrays."""
        return ModelReader(np.dtype(np.float32)).predictor(self.model).trees

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Converts through the library's converter, which computes with features as FP32."""
        return self._graph(self._converted, opset)

    def _graph(self, convert: Callable[[list[Any], int], onnx.ModelProto], opset: int) -> onnx.ModelProto:
        """What is converted, with the outputs and the columns of the model."""
        from onnxmltools.convert.common.data_types import FloatTensorType  # noqa: PLC0415 - only for such models

        columns = self.columns
        name, sizes = (FEATURES, [len(columns.specs)]) if columns else (self.spec.name, [*self.spec.shape[1:]])
        try:
            model = convert([(name, FloatTensorType([None, *sizes]))], min(opset, _OPSET))
        except Exception as error:
            raise failed("the model can't be converted", error) from error
        model = with_second_alone(model) if self._second_alone() else model
        model = with_float_labels(model) if self.float_labels else model
        return columns.in_front_of(model) if columns else model

    def _second_alone(self) -> bool:
        """Whether `predict` gives the probability of the second class alone, as that of a booster of two classes."""
        return self._objective() in ("binary", "binary:logistic") and not hasattr(self.model, "predict_proba")

    def _classifies(self) -> bool:
        return self._objective().startswith(("binary", "multi"))

    def _classes(self, count: int) -> NDArray[Any]:
        """The values of the classes; a booster counts them."""
        counted = np.arange(count, dtype=np.float32 if self.float_labels else np.int64)
        return np.asarray(getattr(self.model, "classes_", counted))

    def _require_numbers(self) -> None:
        """Refuses columns of categories, whose codes are part of the graph.

        Raises:
            NotExactError: there are some.
        """
        if self.columns and self.columns.categories:
            raise NotExactError(f"its columns have categories: {', '.join(self.columns.categories)}")


class LightGbm(Boosted):
    """A LightGBM booster or estimator."""

    unknown = -1.0  # LightGBM never treats a negative code as equal to a category

    def _load(self, folder: str) -> Any:
        import mlflow.lightgbm  # noqa: PLC0415 - only for LightGBM models

        return mlflow.lightgbm.load_model(folder)

    def _objective(self) -> str:
        return str(getattr(self.model, "params", {}).get("objective") or getattr(self.model, "objective_", ""))

    def _categories(self, specs: tuple[TensorSpec, ...]) -> Mapping[str, Sequence[Any]]:
        """LightGBM keeps the categories of pandas' categorical columns in order, but without the columns' names."""
        booster = self._booster
        lists = booster.pandas_categorical or []
        infos = booster.dump_model(num_iteration=1)["feature_infos"]
        inner = dict(zip([spec.name for spec in specs], booster.feature_name(), strict=True))
        names = [
            spec.name for spec in specs if spec.datatype == "BYTES" or infos.get(inner[spec.name], {}).get("values")
        ]
        if lists and len(names) != len(lists):
            raise ExportFailed(
                f"the model was trained on {len(lists)} categorical columns, its signature has {len(names)}: "
                f"{', '.join(names) or 'none'}",
                do="Log it with the data frame that it was trained on, as `x`: "
                "`log_model(..., signature=infer_signature(x, model.predict(x)), input_example=x)`.",
            )
        return dict(zip(names, lists, strict=False))

    def _scores(self, features: Any) -> Any:
        return getattr(self.model, "predict_proba", self.model.predict)(features)

    def to_double(self, opset: int) -> onnx.ModelProto:
        """The same with thresholds, leaves and sums in FP64, as LightGBM has them."""
        numbered = Numbered()

        def convert(types: list[Any], opset: int) -> onnx.ModelProto:
            return numbered.written_out(_converted(self._with(numbered.booster(self._booster)), types, opset))

        return consistent(self._graph(convert, opset))

    @property
    def _booster(self) -> Any:
        return getattr(self.model, "booster_", self.model)

    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        return _converted(self._rounded(), types, opset)

    def _with(self, booster: Any) -> Any:
        """The model with another booster in place of its own."""
        if self._booster is self.model:
            return booster
        model = copy.copy(self.model)
        model._Booster = booster
        return model

    def _rounded(self) -> Any:
        """The model with thresholds rounded down to float32, which changes no answer to features of float32.

        The graph compares float32. Rounded to the nearest, as onnxmltools does, half of the thresholds would let pass
        what they are to hold back.
        """
        import lightgbm  # noqa: PLC0415

        booster = self._booster
        text = re.sub(r"(?m)^threshold=(.*)$", lambda line: f"threshold={_down(line[1])}", booster.model_to_string())
        rounded = lightgbm.Booster(model_str=re.sub(r"(?m)^tree_sizes=.*\n", "", text))  # in bytes, which have changed
        rounded.params = booster.params
        return self._with(rounded)

    def forest(self) -> Forest:
        """The booster's trees, up to the best iteration."""
        self._require_numbers()
        booster = self._booster
        count = max(booster.num_model_per_iteration(), 2)
        return forests.of_lightgbm(booster, self._classes(count) if self._classifies() else None)


def _converted(model: Any, types: list[Any], opset: int) -> onnx.ModelProto:
    import onnxmltools  # noqa: PLC0415 - only for such models

    return onnxmltools.convert_lightgbm(model, initial_types=types, zipmap=False, target_opset=opset)


def with_second_alone(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the second class's probability, (rows, 1), as an output of its own."""
    graph, at = model.graph, f"{SECOND}/at"
    probabilities = graph.output[-1].name
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), at))
    graph.node.append(helper.make_node("Gather", [probabilities, at], [SECOND], axis=1))
    graph.output.append(helper.make_tensor_value_info(SECOND, TensorProto.FLOAT, ["batch", 1]))
    return with_own_operators(model)


def with_float_labels(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its classes as FP32."""
    graph = model.graph
    label = next(output for output in graph.output if output.name == "label")
    for node in graph.node:
        node.output[:] = ["label/counted" if name == "label" else name for name in node.output]
    graph.node.append(helper.make_node("Cast", ["label/counted"], ["label"], to=TensorProto.FLOAT))
    label.type.tensor_type.elem_type = TensorProto.FLOAT
    return with_own_operators(model)


def _down(thresholds: str) -> str:
    down = down_to_float32(np.array(thresholds.split(), np.float64))
    down[down == -_ZERO] = np.nextafter(-_ZERO, np.float32(-np.inf))  # LightGBM takes it for zero, which goes right
    return " ".join(repr(float(each)) for each in down)


class XGBoost(Boosted):
    """An XGBoost booster, which needs its own matrix type, or an estimator, which does not."""

    def _load(self, folder: str) -> Any:
        import mlflow.xgboost  # noqa: PLC0415 - only for XGBoost models

        model = mlflow.xgboost.load_model(folder)
        if not hasattr(model, "get_booster") and self._objective_of(model) == "multi:softmax":
            self.float_labels = True
            model.set_param({"objective": "multi:softprob"})  # the same trees; softmax would return only classes
        return model

    @property
    def booster(self) -> Any:
        """The trees, without the estimator."""
        return self.model.get_booster() if hasattr(self.model, "get_booster") else self.model

    def _objective(self) -> str:
        return self._objective_of(self.booster)

    def _objective_of(self, booster: Any) -> str:
        return str(json.loads(booster.save_config())["learner"]["objective"]["name"])

    def _categories(self, specs: tuple[TensorSpec, ...]) -> Mapping[str, Sequence[Any]]:
        """XGBoost keeps the categories by column since 3.1; earlier versions have only codes."""
        kept = dict(self.booster.get_categories(export_to_arrow=True).to_arrow())
        categories = {name: _whole(name, values) for name, values in kept.items() if values is not None}
        texts = [spec.name for spec in specs if spec.datatype == "BYTES" and spec.name not in categories]
        if texts:
            raise ExportFailed(
                f"the model does not know the categories of its column {texts[0]!r}",
                do="Train it with XGBoost 3.1 or newer on a data frame with categorical columns, and log that.",
            )
        return categories

    def _scores(self, features: Any) -> Any:
        if hasattr(self.model, "get_booster"):
            return getattr(self.model, "predict_proba", self.model.predict)(features)
        import xgboost  # noqa: PLC0415

        return self.model.predict(xgboost.DMatrix(features, enable_categorical=True))

    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        import onnxmltools  # noqa: PLC0415

        booster, kinds, names = self.booster, self.booster.feature_types, self.booster.feature_names
        booster.feature_types = [kind if kind == "c" else "float" for kind in kinds or ()] or None  # no indicators
        booster.feature_names = None  # onnxmltools wants features by number
        try:
            return onnxmltools.convert_xgboost(self.model, initial_types=types, target_opset=opset)
        finally:
            booster.feature_types, booster.feature_names = kinds, names

    def forest(self) -> Forest:
        """The booster's trees; an estimator predicts with those up to the best iteration."""
        self._require_numbers()
        if not np.isnan(missing := getattr(self.model, "missing", math.nan)):
            raise NotExactError(f"`missing={missing:g}` makes a number a missing value, which treelite compares")
        booster, classes = self.booster, None
        if hasattr(self.model, "get_booster") and "best_iteration" in booster.attributes():
            booster = booster[: int(booster.attr("best_iteration")) + 1]
        if self._classifies():
            learner = json.loads(booster.save_config())["learner"]["learner_model_param"]
            classes = self._classes(max(int(learner["num_class"]), 2))
        return forests.of_xgboost(booster, classes)


def _whole(name: str, values: Any) -> list[Any]:
    """A column's categories from XGBoost, which cuts those of pandas by characters, as if each were a byte.

    Raises:
        ExportFailed: one is beyond ASCII, so that these are other words than the author's.
    """
    try:
        known: list[Any] = values.to_pylist()
        if all(str(each).isascii() for each in known):
            return known
        told = ", ".join(map(repr, known[:_SHOWN]))
    except UnicodeDecodeError:
        told = "no text"
    raise ExportFailed(
        f"XGBoost does not keep categories with letters beyond ASCII: of the column {name!r} the model has {told}",
        do="Rename these categories in ASCII, or encode them as numbers, before you train and log it again.",
    )


class CatBoost(Boosted):
    """A CatBoost model of numbers, which CatBoost itself writes as ONNX."""

    def _load(self, folder: str) -> Any:
        try:
            import catboost  # noqa: F401, PLC0415 - only for CatBoost models
        except ImportError as error:
            raise ExportFailed(
                f"CatBoost models need a package that is not installed here: {error}",
                do="Install the `catboost` extra: pip install 'shiplift[catboost]'.",
            ) from error
        import mlflow.catboost  # noqa: PLC0415

        return mlflow.catboost.load_model(folder)

    def _objective(self) -> str:
        classes = len(self.model.classes_)
        return "binary" if classes == 2 else "multi" if classes else "regression"

    def _categories(self, specs: tuple[TensorSpec, ...]) -> Mapping[str, Sequence[Any]]:
        """Refuses categories: CatBoost computes statistics of them, which it can't write as ONNX."""
        names = [self.model.feature_names_[at] for at in self.model.get_cat_feature_indices()]
        names += [spec.name for spec in specs if spec.datatype == "BYTES" and spec.name not in names]
        if names:
            raise ExportFailed(
                f"CatBoost can't write a model of categorical features as ONNX: {', '.join(names)}",
                do="Encode them as numbers before training, or train LightGBM or XGBoost, whose categories are served.",
            )
        return {}

    def _scores(self, features: Any) -> Any:
        kind = "RawFormulaVal" if self._objective() == "regression" else "Probability"
        return self.model.predict(features, prediction_type=kind)

    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        """Renames the input `features`, and turns the list of mappings, which no server has, into probabilities."""
        with TemporaryDirectory() as folder:
            self.model.save_model(f"{folder}/catboost.onnx", format="onnx")
            model = onnx.load(f"{folder}/catboost.onnx")
        graph, (name, _) = model.graph, types[0]
        trees = graph.node[0]
        trees.input[0] = graph.input[0].name = name
        del graph.node[1:]
        labels = graph.output[0].type.tensor_type.elem_type
        del graph.output[:]
        if self._objective() == "regression":
            targets = _as_regressor(trees)
            trees.output[:] = ["variable"]
            declared = [("variable", TensorProto.FLOAT, ["batch", targets])]
        else:
            trees.output[:] = ["label", "probabilities"]
            probabilities = ("probabilities", TensorProto.FLOAT, ["batch", len(self.model.classes_)])
            declared = [("label", labels, ["batch"]), probabilities]
        graph.output.extend(helper.make_tensor_value_info(*output) for output in declared)
        return model


def _as_regressor(trees: onnx.NodeProto) -> int:
    """Makes it a regressor: CatBoost writes one of several targets as a classifier. Returns how many there are."""
    if trees.op_type == "TreeEnsembleRegressor":
        return 1
    kept = [each for each in trees.attribute if not each.name.startswith(("classlabels", "post_transform"))]
    for attribute in kept:
        attribute.name = attribute.name.replace("class_", "target_")
    targets = 1 + max(next(each.ints for each in kept if each.name == "target_ids"))
    del trees.attribute[:]
    trees.attribute.extend([*kept, helper.make_attribute("n_targets", targets)])
    trees.op_type = "TreeEnsembleRegressor"
    return int(targets)


BOOSTERS: dict[str, Callable[..., Original]] = {"lightgbm": LightGbm, "xgboost": XGBoost, "catboost": CatBoost}
