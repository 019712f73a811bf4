"""Logged models as functions of arrays, and as ONNX: one class per family of formats, chosen by the logged flavor."""

import inspect
import json
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import yaml
from numpy.typing import NDArray

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion import graphs
from shiplift.runtime.model.tensors import Arrays, as_input, batch_of
from shiplift.runtime.records.tensor import TensorSpec

_BOOSTING_OPSET = 15  # the newest that onnxmltools writes
_SAMPLE = 2  # torch.export specialises a batch of 0 or 1: trace with two


class Original(ABC):
    """A loaded model: what it answers, and how it becomes ONNX."""

    notes: tuple[str, ...] = ()

    @abstractmethod
    def answer(self, inputs: Arrays) -> Arrays:
        """The outputs by name, in the model's order."""

    @abstractmethod
    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """The model as ONNX with a dynamic batch; large weights are left in the folder `path`, where it is written."""

    def to_torchscript(self, sets: dict[str, Arrays], answers: dict[str, Arrays], file: Path) -> None:
        """Writes the model as TorchScript that gives these answers to these sets of inputs.

        Raises:
            ExportFailed: it can't be written, or answers otherwise.
        """
        raise ExportFailed("only PyTorch models have a TorchScript form", do="Leave out `export.torchscript`.")


def load(
    folder: Path, flavor: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], *, tabular: bool
) -> Original:
    """The model in an MLflow folder. Runs the author's code: call it in the sandbox only.

    Raises:
        ExportFailed: it does not load.
    """
    try:
        if flavor == "pytorch":
            return _torch(folder, inputs, tuple(spec.name for spec in outputs))
        if flavor == "sklearn":
            return Sklearn(folder, inputs, tabular=tabular)
        if flavor in _BOOSTERS:
            return _BOOSTERS[flavor](folder, inputs, tabular=tabular)
        if flavor in ("keras", "tensorflow"):
            return TensorFlow(folder, flavor, inputs, outputs)
        return Onnx(folder)
    except ExportFailed:
        raise
    except Exception as error:
        raise _failed("the model does not load", error) from error


def _failed(what: str, error: BaseException) -> ExportFailed:
    said = " ".join(str(error).split())
    return ExportFailed(
        f"{what}: {type(error).__name__}: {said[:500]}",
        do="Load it in a fresh Python process with the logged requirements; or log it as pt2, skops or ONNX.",
    )


# --- torch ----------------------------------------------------------------------------------------------------------


def _torch(folder: Path, inputs: tuple[TensorSpec, ...], names: tuple[str, ...]) -> Original:
    import torch  # noqa: PLC0415 - only for torch models

    meta = yaml.safe_load((folder / "MLmodel").read_text())
    data = folder / str(meta["flavors"]["pytorch"].get("model_data", "data"))
    programs, files = sorted(data.glob("*.pt2")), sorted(data.glob("*.pth")) + sorted(data.glob("*.pt"))
    if programs:
        return TorchProgram(torch.export.load(programs[0]), inputs, names)
    if files and _is_torchscript(files[0]):
        return TorchScript(torch.jit.load(files[0], map_location="cpu").eval(), inputs, names)
    import mlflow.pytorch  # noqa: PLC0415 - 2.6 s, only for pickled modules

    return TorchModule(mlflow.pytorch.load_model(str(folder), map_location="cpu").eval(), inputs, names)


def _is_torchscript(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith("constants.pkl") for name in archive.namelist())


class TorchModule(Original):
    """An eager `torch.nn.Module`, exported through torch.export."""

    def __init__(self, module: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[str, ...]) -> None:
        self.module = module
        self.specs = inputs
        self.outputs = outputs

    def answer(self, inputs: Arrays) -> Arrays:
        """Without gradients; outputs are named after the signature."""
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            given = self.callable()(*self.arguments(inputs))
        flat = torch.utils._pytree.tree_leaves(given)
        return {name: t.detach().cpu().numpy() for name, t in zip(self.names(len(flat)), flat, strict=True)}

    def callable(self) -> Any:
        """What takes the arguments."""
        return self.module

    def arguments(self, inputs: Arrays) -> tuple[Any, ...]:
        """Tensors in the order of the signature, or of `forward` where its names match."""
        import torch  # noqa: PLC0415

        order = [spec.name for spec in self.specs]
        forward = [p for p in inspect.signature(self.callable().forward).parameters if p in inputs]
        return tuple(torch.from_numpy(inputs[name]) for name in (forward if len(forward) == len(order) else order))

    def names(self, count: int) -> list[str]:
        """One name per output: the signature's where the counts agree."""
        if len(self.outputs) == count:
            return list(self.outputs)
        return ["output"] if count == 1 else [f"output_{at}" for at in range(count)]

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through `torch.onnx.export(dynamo=True)`: every -1 of the signature is dynamic."""
        import torch  # noqa: PLC0415

        sample = self.arguments(batch_of(example, _SAMPLE))
        batch = torch.export.Dim("batch")
        shapes = tuple(
            {at: batch if at == 0 else torch.export.Dim.DYNAMIC for at, size in enumerate(spec.shape) if size == -1}
            for spec in self.specs
        )
        return self._export(self.module, sample, path, opset, dynamic_shapes=shapes)

    def _export(self, model: Any, sample: tuple[Any, ...], path: Path, opset: int, **how: Any) -> onnx.ModelProto:
        import torch  # noqa: PLC0415

        names = [spec.name for spec in self.specs]
        outputs = list(self.answer_names(sample))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.onnx.export(
                    model, sample, dynamo=True, opset_version=opset, verbose=False,
                    input_names=names, output_names=outputs, **how,
                )  # fmt: skip
        except Exception as error:
            raise _failed("torch can't export the model to ONNX", error) from error
        with TemporaryDirectory(dir=path.parent) as folder:
            program.save(f"{folder}/torch.onnx", external_data=True)
            del program
            return graphs.load(Path(folder) / "torch.onnx", path, ours=True)

    def to_torchscript(self, sets: dict[str, Arrays], answers: dict[str, Arrays], file: Path) -> None:
        """Scripts stay what they are; modules and programs are traced. What is traced may know one batch size alone,
        so what was written is asked every set."""
        import torch  # noqa: PLC0415

        try:
            with warnings.catch_warnings(), torch.inference_mode():
                warnings.simplefilter("ignore")
                torch.jit.save(self._scripted(self.arguments(batch_of(sets["example"], _SAMPLE))), str(file))
                written = torch.jit.load(str(file), map_location="cpu")
                for name, inputs in sets.items():
                    flat = torch.utils._pytree.tree_leaves(written(*self.arguments(inputs)))
                    for got, wanted in zip(flat, answers[name].values(), strict=True):
                        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-3, atol=1e-4)
        except Exception as error:
            raise _failed("torch can't write the model as TorchScript for any batch size", error) from error

    def _scripted(self, sample: tuple[Any, ...]) -> Any:
        import torch  # noqa: PLC0415

        return torch.jit.trace(self.callable(), sample, check_trace=False)

    def answer_names(self, sample: tuple[Any, ...]) -> list[str]:
        """Output names, found by running the model once."""
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            return self.names(len(torch.utils._pytree.tree_leaves(self.callable()(*sample))))


class TorchProgram(TorchModule):
    """A `torch.export` program: already a graph, with the dynamic dimensions it was exported with."""

    def __init__(self, program: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[str, ...]) -> None:
        super().__init__(program, inputs, outputs)
        self._callable = program.module()

    def callable(self) -> Any:
        """The program as a module."""
        return self._callable

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through `torch.onnx.export` of the program itself, without tracing again."""
        return self._export(self.module, self.arguments(batch_of(example, _SAMPLE)), path, opset)


class TorchScript(TorchModule):
    """A TorchScript file: torch.export can't read it, the older exporter can (opset 20 at most)."""

    notes = ("TorchScript is exported by torch's older exporter; log the module as pt2 for the newer one.",)

    def arguments(self, inputs: Arrays) -> tuple[Any, ...]:
        """Tensors in the order of the signature: a script module's own `forward` names are not kept."""
        import torch  # noqa: PLC0415

        return tuple(torch.from_numpy(inputs[spec.name]) for spec in self.specs)

    def _scripted(self, sample: tuple[Any, ...]) -> Any:
        return self.module

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through `torch.onnx.export(dynamo=False)`."""
        import torch  # noqa: PLC0415

        sample = self.arguments(batch_of(example, _SAMPLE))
        outputs = self.answer_names(sample)
        names = [spec.name for spec in self.specs]
        free = {s.name: {at: _axis(s.name, at) for at, n in enumerate(s.shape) if n == -1} for s in self.specs}
        file = path.parent / "torch.onnx"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    self.module, sample, str(file), dynamo=False, opset_version=min(opset, 20), input_names=names,
                    output_names=outputs, dynamic_axes={**free, **{name: {0: "batch"} for name in outputs}},
                )  # fmt: skip
        except Exception as error:
            raise _failed("torch can't export the TorchScript model to ONNX", error) from error
        return graphs.load(file, path)


def _axis(name: str, at: int) -> str:
    return "batch" if at == 0 else f"{name}_{at}"


# --- scikit-learn ---------------------------------------------------------------------------------------------------


class Sklearn(Original):
    """A scikit-learn estimator or pipeline, converted by skl2onnx."""

    def __init__(self, folder: Path, inputs: tuple[TensorSpec, ...], *, tabular: bool) -> None:
        import mlflow.sklearn  # noqa: PLC0415 - only for sklearn models

        self.model = mlflow.sklearn.load_model(str(folder))
        self.specs = inputs
        self.columns = tabular

    def answer(self, inputs: Arrays) -> Arrays:
        """`predict`, and `predict_proba` where the estimator has it."""
        given = self._frame(inputs) if self.columns else next(iter(inputs.values()))
        label = np.asarray(self.model.predict(given))
        if self._classifies() and hasattr(self.model, "predict_proba"):
            return {"label": label, "probabilities": np.asarray(self.model.predict_proba(given), dtype=np.float32)}
        return {"label" if self._classifies() else "variable": label}

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through `skl2onnx.to_onnx`; float inputs are served as FP32."""
        import skl2onnx  # noqa: PLC0415 - only for sklearn models

        options = {id(self.model): {"zipmap": False}} if self._classifies() else None
        types = [(spec.name, self._type(spec)) for spec in self.specs]
        try:
            return skl2onnx.to_onnx(self.model, initial_types=types, options=options, target_opset=min(opset, 21))
        except Exception as error:
            raise _failed("skl2onnx can't convert the model", error) from error

    def _classifies(self) -> bool:
        from sklearn.base import is_classifier  # noqa: PLC0415

        return bool(is_classifier(self.model))

    def _frame(self, inputs: Arrays) -> Any:
        import pandas as pd  # noqa: PLC0415

        return pd.DataFrame({name: array.reshape(len(array)) for name, array in inputs.items()})

    def _type(self, spec: TensorSpec) -> Any:
        from skl2onnx.common import data_types as kinds  # noqa: PLC0415

        shape = [None, *spec.shape[1:]]
        table = {
            "BOOL": kinds.BooleanTensorType,
            "BYTES": kinds.StringTensorType,
            "INT32": kinds.Int64TensorType,
            "INT64": kinds.Int64TensorType,
        }
        return table.get(spec.datatype, kinds.FloatTensorType)(shape)


# --- gradient boosting ----------------------------------------------------------------------------------------------


class Boosted(Original):
    """A booster or an estimator on one matrix of features, converted by onnxmltools: classes and their probabilities,

    or the value of a regression.
    """

    def __init__(self, library: str, folder: Path, inputs: tuple[TensorSpec, ...], *, tabular: bool) -> None:
        if tabular or len(inputs) != 1:
            raise ExportFailed(
                f"{library} models are served with their features as one tensor, this one was logged with columns",
                do="Log it with a signature and an input example that are numpy arrays of shape (-1, features).",
            )
        self.model = self._load(str(folder))
        self.spec = inputs[0]

    @abstractmethod
    def _load(self, folder: str) -> Any:
        """The model, as MLflow loads it."""

    @abstractmethod
    def _objective(self) -> str:
        """What it was trained for, such as `binary`."""

    @abstractmethod
    def _scores(self, given: NDArray[Any]) -> NDArray[Any]:
        """The chances of each class, or of the second one; or the value."""

    @abstractmethod
    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        """The model as onnxmltools writes it."""

    def answer(self, inputs: Arrays) -> Arrays:
        """Classes and their probabilities, or the value of a regression."""
        scores = np.asarray(self._scores(next(iter(inputs.values()))))
        if not self._objective().startswith(("binary", "multi")):
            return {"variable": scores.reshape(-1, 1).astype(np.float32)}
        chances = scores if scores.ndim == 2 else np.column_stack([1 - scores, scores])
        named = np.asarray(getattr(self.model, "classes_", np.arange(chances.shape[1])))
        return {"label": named[chances.argmax(axis=1)], "probabilities": chances.astype(np.float32)}

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through onnxmltools; features are served as FP32."""
        from onnxmltools.convert.common.data_types import FloatTensorType  # noqa: PLC0415 - only for such models

        types = [(self.spec.name, FloatTensorType([None, *self.spec.shape[1:]]))]
        try:
            return self._converted(types, min(opset, _BOOSTING_OPSET))
        except Exception as error:
            raise _failed("onnxmltools can't convert the model", error) from error


class LightGbm(Boosted):
    """LightGBM."""

    def __init__(self, folder: Path, inputs: tuple[TensorSpec, ...], *, tabular: bool) -> None:
        super().__init__("LightGBM", folder, inputs, tabular=tabular)

    def _load(self, folder: str) -> Any:
        import mlflow.lightgbm  # noqa: PLC0415 - only for LightGBM models

        return mlflow.lightgbm.load_model(folder)

    def _objective(self) -> str:
        return str(getattr(self.model, "params", {}).get("objective") or getattr(self.model, "objective_", ""))

    def _scores(self, given: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(getattr(self.model, "predict_proba", self.model.predict)(given))

    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        import onnxmltools  # noqa: PLC0415

        return onnxmltools.convert_lightgbm(self.model, initial_types=types, zipmap=False, target_opset=opset)


class XGBoost(Boosted):
    """XGBoost: a booster asks for its own kind of matrix, an estimator does not."""

    def __init__(self, folder: Path, inputs: tuple[TensorSpec, ...], *, tabular: bool) -> None:
        super().__init__("XGBoost", folder, inputs, tabular=tabular)

    def _load(self, folder: str) -> Any:
        import mlflow.xgboost  # noqa: PLC0415 - only for XGBoost models

        model = mlflow.xgboost.load_model(folder)
        if not hasattr(model, "get_booster") and self._objective_of(model) == "multi:softmax":
            model.set_param({"objective": "multi:softprob"})  # the same trees: it else gives classes alone
        return model

    def _objective(self) -> str:
        return self._objective_of(self.model.get_booster() if hasattr(self.model, "get_booster") else self.model)

    def _objective_of(self, booster: Any) -> str:
        return str(json.loads(booster.save_config())["learner"]["objective"]["name"])

    def _scores(self, given: NDArray[Any]) -> NDArray[Any]:
        if hasattr(self.model, "get_booster"):
            return np.asarray(getattr(self.model, "predict_proba", self.model.predict)(given))
        import xgboost  # noqa: PLC0415

        return np.asarray(self.model.predict(xgboost.DMatrix(given)))

    def _converted(self, types: list[Any], opset: int) -> onnx.ModelProto:
        import onnxmltools  # noqa: PLC0415

        return onnxmltools.convert_xgboost(self.model, initial_types=types, target_opset=opset)


# --- TensorFlow -----------------------------------------------------------------------------------------------------


class TensorFlow(Original):
    """A Keras model, or a TensorFlow SavedModel, converted by tf2onnx."""

    def __init__(
        self, folder: Path, flavor: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        try:
            import tensorflow  # noqa: PLC0415 - 15 s, only for such models
            import tf2onnx  # noqa: F401, PLC0415
        except ImportError as error:
            raise ExportFailed(
                f"TensorFlow models need what is not installed here: {error}",
                do="Install the extra `keras`: pip install 'shiplift[keras]'.",
            ) from error
        import mlflow  # noqa: PLC0415

        self.tf = tensorflow
        loader = mlflow.keras if flavor == "keras" else mlflow.tensorflow
        self.model = loader.load_model(str(folder))
        self.specs = inputs
        self.outputs = tuple(spec.name for spec in outputs)

    def answer(self, inputs: Arrays) -> Arrays:
        """In inference mode; outputs are named after the signature where the counts agree."""
        given = [self.tf.convert_to_tensor(inputs[spec.name]) for spec in self.specs]
        flat = [np.asarray(one) for one in self._called(*given)]
        return dict(zip(self._names(len(flat)), flat, strict=True))

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through `tf2onnx.convert.from_function` (opset 18 at most)."""
        import tf2onnx  # noqa: PLC0415

        kinds = [
            self.tf.TensorSpec(
                [None if size == -1 else size for size in spec.shape], example[spec.name].dtype, spec.name
            )
            for spec in self.specs
        ]
        try:
            made, _ = tf2onnx.convert.from_function(
                self.tf.function(self._called, input_signature=kinds), input_signature=kinds, opset=min(opset, 18)
            )
        except Exception as error:
            raise _failed("tf2onnx can't convert the model", error) from error
        return _renamed_outputs(made, self._names(len(made.graph.output)))

    def _called(self, *given: Any) -> list[Any]:
        """The outputs as a flat list; inputs go by name where the names are the model's, else by position."""
        signatures = getattr(self.model, "signatures", None)
        names = [spec.name for spec in self.specs]
        if signatures:
            serve = signatures["serving_default"]
            wanted = list(serve.structured_input_signature[1])
            keys = names if set(names) == set(wanted) else wanted
            return list(self.tf.nest.flatten(serve(**dict(zip(keys, given, strict=True)))))
        own = [tensor.name for tensor in getattr(self.model, "inputs", None) or []]
        by_name = dict(zip(names, given, strict=True))
        ordered = [by_name[name] for name in own] if set(own) == set(names) else list(given)
        return list(self.tf.nest.flatten(self.model(ordered[0] if len(ordered) == 1 else ordered, training=False)))

    def _names(self, count: int) -> list[str]:
        if len(self.outputs) == count:
            return list(self.outputs)
        return ["output"] if count == 1 else [f"output_{at}" for at in range(count)]


def _renamed_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """tf2onnx calls them `Identity:0`; a name that is taken by another tensor stays as it is."""
    graph = model.graph
    taken = {name for node in graph.node for name in (*node.input, *node.output)} | {one.name for one in graph.input}
    new = {one.name: name for one, name in zip(graph.output, names, strict=True) if name not in taken}
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [new.get(name, name) for name in tensors]
    for one in graph.output:
        one.name = new.get(one.name, one.name)
    return model


# --- ONNX -----------------------------------------------------------------------------------------------------------


class Onnx(Original):
    """A model logged as ONNX: its own graph is the original."""

    def __init__(self, folder: Path) -> None:
        meta = yaml.safe_load((folder / "MLmodel").read_text())
        self.file = folder / str(meta["flavors"]["onnx"]["data"])
        import onnxruntime as ort  # noqa: PLC0415 - only for ONNX models

        self.session = ort.InferenceSession(self.file, providers=["CPUExecutionProvider"])

    def answer(self, inputs: Arrays) -> Arrays:
        """ONNX Runtime on the logged file. An only input may have another name in the signature than in the graph."""
        names = [node.name for node in self.session.get_inputs()]
        given = inputs if set(names) == set(inputs) else dict(zip(names, inputs.values(), strict=True))
        outputs = [node.name for node in self.session.get_outputs()]
        return dict(zip(outputs, self.session.run(outputs, given), strict=True))

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """The logged graph, with its external data."""
        return graphs.load(self.file, path)


_BOOSTERS: dict[str, Callable[..., Original]] = {"lightgbm": LightGbm, "xgboost": XGBoost}


def feeds(inputs: Arrays, specs: tuple[TensorSpec, ...]) -> Arrays:
    """Arrays in the dtypes and under the names of an exported model's inputs, matched by name, else by order."""
    pairs = (
        [(spec, inputs[spec.name]) for spec in specs]
        if all(spec.name in inputs for spec in specs)
        else zip(specs, inputs.values(), strict=True)
    )
    return {spec.name: as_input(array, spec) for spec, array in pairs}
