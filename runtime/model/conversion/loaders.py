"""Logged models as functions of arrays, and as ONNX: one class per model format, chosen by the logged flavor."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.guest.python.values import learned_none
from shiplift.runtime.model.conversion import (
    boosting,
    double_trees,
    forests,
    graphs,
    sklearn_boosters,
    sklearn_converters,
    sklearn_linear,
    sklearn_methods,
    sklearn_missing,
    sklearn_trees,
    sklearn_words,
    torch_models,
)
from shiplift.runtime.model.conversion.columns import FeatureColumns
from shiplift.runtime.model.conversion.forests import Forest
from shiplift.runtime.model.conversion.frames import matrices
from shiplift.runtime.model.conversion.lightgbm_doubles import Numbered
from shiplift.runtime.model.conversion.original import Original, failed, wants_probabilities
from shiplift.runtime.model.onnx_models import unknown_locale
from shiplift.runtime.model.reading import onnx_graphs, recording
from shiplift.runtime.model.reading.found import Tree
from shiplift.runtime.model.reading.reader import ModelReader
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.model.text.tasks import EXTRA, IMAGE_TASKS, TEXT_FLAVORS, task_of
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

_SHIMS = "sklearn.externals.array_api_compat"
_SHIMMED = ("torch", "cupy", "dask")


def load(
    folder: Path,
    flavor: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    *,
    tabular: bool,
    max_megapixels: int = 32,
) -> Original:
    """Loads the model in an MLflow folder. This runs the author's code, so call it only in the sandbox.

    Raises:
        ExportFailed: the model does not load.
    """
    try:
        if flavor == "pytorch":
            return torch_models.load(folder, inputs, tuple(spec.name for spec in outputs))
        if flavor == "sklearn":
            return Sklearn(folder, inputs, outputs, tabular=tabular)
        if flavor in boosting.BOOSTERS:
            return boosting.BOOSTERS[flavor](folder, inputs, outputs, tabular=tabular)
        if flavor in ("keras", "tensorflow"):
            return TensorFlow(folder, flavor, inputs, outputs)
        if flavor in TEXT_FLAVORS:
            return _huggingface(folder, flavor, inputs, max_megapixels)
        return Onnx(folder, inputs, outputs)
    except ExportFailed:
        raise
    except Exception as error:
        raise failed("the model does not load", error) from error


def _huggingface(folder: Path, flavor: Any, inputs: tuple[TensorSpec, ...], max_megapixels: int) -> Original:
    try:
        if flavor == "sentence_transformers":
            import sentence_transformers  # noqa: F401, PLC0415 - only for such models
        else:
            import transformers  # noqa: F401, PLC0415
    except ImportError as error:
        raise ExportFailed(
            f"Hugging Face models need packages that are not installed here: {error}", do=EXTRA
        ) from error
    from shiplift.runtime.model.conversion import huggingface, huggingface_images  # noqa: PLC0415 - only for such models

    meta = yaml.safe_load((folder / "MLmodel").read_text())
    if (task := task_of(meta, flavor)) in IMAGE_TASKS:
        return huggingface_images.HuggingFaceImages(folder, task, inputs, max_megapixels)
    return huggingface.HuggingFace(folder, meta, flavor, inputs)


# --- scikit-learn ---------------------------------------------------------------------------------------------------


@contextmanager
def without_shims() -> Iterator[None]:
    """Hides scikit-learn's shims for other libraries' arrays.

    skops lists what it trusts by walking through every package of scikit-learn. One of them imports torch, which takes
    a third of an export's CPU time, and skops leaves it out of the list anyway.
    """
    hidden = [shim for library in _SHIMMED if (shim := f"{_SHIMS}.{library}") not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: Python refuses to import it
    try:
        yield
    finally:
        for shim in hidden:
            sys.modules.pop(shim, None)


class Sklearn(Original):
    """A scikit-learn estimator or pipeline, converted by skl2onnx."""

    narrow = True

    def __init__(
        self, folder: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *, tabular: bool
    ) -> None:
        import mlflow.sklearn  # noqa: PLC0415 - only for sklearn models

        with without_shims():
            self.model = mlflow.sklearn.load_model(str(folder))
        self.specs = inputs
        self.columns = FeatureColumns(specs=inputs, none=learned_none(self.model)) if tabular else None
        self.probable = wants_probabilities(folder, outputs)
        self.method = sklearn_methods.method_of(folder, self.model)

    def answer(self, inputs: Arrays) -> Arrays:
        """What MLflow's pyfunc answers, and after it the probabilities or scores that the estimator also has."""
        features = self.columns.frame(inputs) if self.columns else next(iter(inputs.values()))
        return sklearn_methods.answers(self.model, self.method, features, probable=self.probable)

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Converts through `skl2onnx.to_onnx`. Float inputs become FP32; only probabilities are kept as scores."""
        self.count = len(self.answer(example))
        return self._graph(opset, double=False)

    def to_double(self, opset: int) -> onnx.ModelProto:
        """The same with FP64 in place of FP32, and with the trees' own thresholds."""
        return self._graph(opset, double=True)

    def _graph(self, opset: int, *, double: bool) -> onnx.ModelProto:
        model = sklearn_converters.unwrapped(self.model, predicts=self.method != "transform")
        model, tensors = matrices(sklearn_missing.as_sent(model), self.specs) if self.columns else (model, ())
        types = [(each.name, self._type(each.spec, double=double)) for each in tensors] or [
            (spec.name, self._type(_as_double(spec) if double else spec, double=double)) for spec in self.specs
        ]
        try:
            numbered = Numbered()
            graph = self._converted(numbered.within(model) if double else model, types, min(opset, 21), double=double)
            graph = sklearn_words.in_every_locale(graph)
            if double:
                graph = double_trees.exact(numbered.written_out(graph), self.model)
            else:
                graph = sklearn_trees.with_missing(graph, self.model)
            graph = sklearn_linear.with_rows_of_labels(graph, model)
            graph = sklearn_linear.with_labels_of_scores(graph, model)
            graph = sklearn_methods.with_outputs(graph, self.method, self.count)
            graph = sklearn_methods.with_logical_labels(graph, self.model)
        except Exception as error:
            raise failed("skl2onnx can't convert the model", error) from error
        return self.columns.in_front_of(graph, {each.name: each.columns for each in tensors}) if self.columns else graph

    def forest(self) -> Forest | None:
        """An ensemble's trees, if it is asked for its predictions or probabilities."""
        return forests.of_sklearn(self.model) if self.method in ("predict", "predict_proba") else None

    def trees(self) -> tuple[Tree, ...]:
        """An ensemble's trees, in its own arrays."""
        return ModelReader(np.dtype(np.float32)).predictor(self.model).trees

    def _converted(self, model: Any, types: list[tuple[str, Any]], opset: int, *, double: bool) -> onnx.ModelProto:
        import skl2onnx  # noqa: PLC0415 - only for sklearn models

        sklearn_converters.register()
        sklearn_boosters.register()
        model = sklearn_linear.corrected(model if double else sklearn_trees.rounded(model))
        versions = sklearn_boosters.opsets(model, opset, outliers=sklearn_methods.detects_outliers(model))
        convert = partial(skl2onnx.to_onnx, model, initial_types=types, target_opset=versions)
        options = {**sklearn_converters.exact_division(), **sklearn_words.options(model)}
        if self.method == "transform" or not sklearn_methods.classifies(model):
            return convert(options=options)
        try:
            return convert(options={**options, id(model): {"zipmap": False}})
        except NameError:  # LinearSVC has no such option; giving it any keeps skl2onnx from adding one
            other = "raw_scores" if double else "output_class_labels"
            return convert(options={**options, id(model): {other: double}})

    def facts(self, inputs: tuple[TensorSpec, ...], example: Arrays) -> ModelFacts:
        """Those of the fitted estimator, and of what is within it."""
        return recording.facts_of(self.model, inputs)

    def _type(self, spec: TensorSpec, *, double: bool) -> Any:
        from skl2onnx.common import data_types as kinds  # noqa: PLC0415

        shape = [None, *spec.shape[1:]]
        table = {
            "BOOL": kinds.BooleanTensorType,
            "BYTES": kinds.StringTensorType,
            "INT32": kinds.Int64TensorType,
            "INT64": kinds.Int64TensorType,
        }
        return table.get(spec.datatype, kinds.DoubleTensorType if double else kinds.FloatTensorType)(shape)


def _as_double(spec: TensorSpec) -> TensorSpec:
    """A matrix of whole numbers as FP64, to which scikit-learn casts it; skl2onnx would cast it to FP32."""
    return spec.model_copy(update={"datatype": "FP64"}) if spec.datatype in ("INT32", "INT64") else spec


# --- TensorFlow -----------------------------------------------------------------------------------------------------


class TensorFlow(Original):
    """A Keras model, or a TensorFlow SavedModel, converted by tf2onnx."""

    def __init__(
        self, folder: Path, flavor: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        try:
            import tensorflow  # noqa: PLC0415 - takes 15 s, only for such models
            import tf2onnx  # noqa: F401, PLC0415
        except ImportError as error:
            raise ExportFailed(
                f"TensorFlow models need packages that are not installed here: {error}",
                do="Install the `keras` extra: pip install 'shiplift[keras]'.",
            ) from error
        import mlflow  # noqa: PLC0415

        self.tf = tensorflow
        loader = mlflow.keras if flavor == "keras" else mlflow.tensorflow
        self.model = loader.load_model(str(folder))
        self.specs = inputs
        self.outputs = tuple(spec.name for spec in outputs)

    def answer(self, inputs: Arrays) -> Arrays:
        """Answers in inference mode. Outputs are named after the signature if the counts agree."""
        tensors = [self.tf.convert_to_tensor(inputs[spec.name]) for spec in self.specs]
        outputs = [np.asarray(output) for output in self._call(*tensors)]
        return dict(zip(self._names(len(outputs)), outputs, strict=True))

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Converts through `tf2onnx.convert.from_function` (opset 18 at most)."""
        import tf2onnx  # noqa: PLC0415

        kinds = [
            self.tf.TensorSpec(
                [None if size == -1 else size for size in spec.shape], example[spec.name].dtype, spec.name
            )
            for spec in self.specs
        ]
        try:
            converted, _ = tf2onnx.convert.from_function(
                self.tf.function(self._call, input_signature=kinds), input_signature=kinds, opset=min(opset, 18)
            )
        except Exception as error:
            raise failed("tf2onnx can't convert the model", error) from error
        return _renamed_outputs(converted, self._names(len(converted.graph.output)))

    def _call(self, *tensors: Any) -> list[Any]:
        """The outputs as a flat list. Passes inputs by name if the names are the model's, otherwise by position."""
        signatures = getattr(self.model, "signatures", None)
        names = [spec.name for spec in self.specs]
        if signatures:
            serve = signatures["serving_default"]
            parameters = list(serve.structured_input_signature[1])
            keywords = names if set(names) == set(parameters) else parameters
            return self._flat(serve(**dict(zip(keywords, tensors, strict=True))))
        inputs = [tensor.name for tensor in getattr(self.model, "inputs", None) or []]
        by_name = dict(zip(names, tensors, strict=True))
        ordered = [by_name[name] for name in inputs] if set(inputs) == set(names) else list(tensors)
        return self._flat(self.model(ordered[0] if len(ordered) == 1 else ordered, training=False))

    def _flat(self, outputs: Any) -> list[Any]:
        """The outputs in the signature's order if they have its names; TensorFlow would sort them."""
        if isinstance(outputs, dict) and set(outputs) == set(self.outputs):
            return [outputs[name] for name in self.outputs]
        return list(self.tf.nest.flatten(outputs))

    def _names(self, count: int) -> list[str]:
        if len(self.outputs) == count:
            return list(self.outputs)
        return ["output"] if count == 1 else [f"output_{at}" for at in range(count)]


def _renamed_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """Renames tf2onnx's `Identity:0` outputs, except where another tensor has the new name."""
    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {
        value.name for value in graph.input
    }
    new = {output.name: name for output, name in zip(graph.output, names, strict=True) if name not in taken}
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [new.get(name, name) for name in tensors]
    for output in graph.output:
        output.name = new.get(output.name, output.name)
    return model


# --- ONNX -----------------------------------------------------------------------------------------------------------


class Onnx(Original):
    """A model logged as ONNX: its own graph is the original.

    If the specs have one axis more than the graph, for samples, there is one sample at a time (`graph_contract`).
    """

    def __init__(self, folder: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
        meta = yaml.safe_load((folder / "MLmodel").read_text())
        self.file = folder / str(meta["flavors"]["onnx"]["data"])
        import onnxruntime as ort  # noqa: PLC0415 - only for ONNX models

        try:
            self.session = ort.InferenceSession(self.file, providers=["CPUExecutionProvider"])
        except Exception as error:
            if unknown := unknown_locale(self.file, error):
                raise unknown from error
            raise
        self.shapes = {spec.name: spec.shape for spec in (*inputs, *outputs)}
        self.batch = inputs[0].shape[0]

    def answer(self, inputs: Arrays) -> Arrays:
        """Runs the logged file."""
        names = [node.name for node in self.session.get_outputs()]
        feeds = {node.name: self._feed(inputs[node.name], len(node.shape)) for node in self.session.get_inputs()}
        answers = zip(names, self.session.run(names, feeds), strict=True)
        return {
            name: array[None] if np.ndim(array) < len(self.shapes.get(name, ())) else array for name, array in answers
        }

    def facts(self, inputs: tuple[TensorSpec, ...], example: Arrays) -> ModelFacts:
        """Those of the logged graph."""
        return onnx_graphs.facts_of(onnx.load(self.file, load_external_data=False).graph, inputs)

    def _feed(self, array: NDArray[Any], rank: int) -> NDArray[Any]:
        return np.asarray(array[0]) if rank < array.ndim else array

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """The logged graph, with its external data, and with an axis of samples on every tensor."""
        return graphs.with_samples_axis(graphs.load(self.file, path), self.shapes)
