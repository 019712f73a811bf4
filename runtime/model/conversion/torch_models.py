"""PyTorch models as functions of arrays, and as ONNX: modules, `torch.export` programs, and TorchScript."""

import copy
import inspect
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import yaml

from shiplift.runtime.model.conversion import graphs, postprocess
from shiplift.runtime.model.conversion.original import Original, failed
from shiplift.runtime.model.conversion.training_mode import require_evaluating
from shiplift.runtime.model.onnx_models import LARGE_BYTES
from shiplift.runtime.model.reading import lookups
from shiplift.runtime.model.tensors import Arrays, batch_of
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec
from shiplift.runtime.spec.model import Conversion

_SAMPLE = 2  # torch.export specializes on a batch of 0 or 1, so this traces with 2


def load(folder: Path, inputs: tuple[TensorSpec, ...], names: tuple[str, ...]) -> Original:
    """Loads a model logged with the flavor `pytorch`: a program, a script, or a pickled module."""
    import torch  # noqa: PLC0415 - only for torch models

    meta = yaml.safe_load((folder / "MLmodel").read_text())
    data = folder / str(meta["flavors"]["pytorch"].get("model_data", "data"))
    programs, files = sorted(data.glob("*.pt2")), sorted(data.glob("*.pth")) + sorted(data.glob("*.pt"))
    if programs:
        program = torch.export.load(programs[0])
        require_evaluating(program)
        return TorchProgram(program, inputs, names)
    if files and _is_torchscript(files[0]):
        return TorchScript(torch.jit.load(files[0], map_location="cpu").eval(), inputs, names)
    import mlflow.pytorch  # noqa: PLC0415 - takes 2.6 s, only for pickled modules

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
        """Answers without gradients. Outputs are named after the signature."""
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            outputs = self.callable()(*self.arguments(inputs))
        tensors = torch.utils._pytree.tree_leaves(outputs)
        return {name: tensor.detach().cpu().numpy() for name, tensor in zip(self.names(outputs), tensors, strict=True)}

    def in_double(self, inputs: Arrays) -> Arrays:
        """Of a copy in FP64, unless the model is large; a program that names its types may not run so."""
        import torch  # noqa: PLC0415

        module = self.callable()
        if sum(weights.numel() * weights.element_size() for weights in module.parameters()) > LARGE_BYTES:
            return {}
        try:
            with torch.inference_mode():
                doubled = (value.double() if value.is_floating_point() else value for value in self.arguments(inputs))
                outputs = copy.deepcopy(module).double()(*doubled)
            tensors = torch.utils._pytree.tree_leaves(outputs)
            return {name: tensor.numpy() for name, tensor in zip(self.names(outputs), tensors, strict=True)}
        except Exception:  # it is only to know more
            return {}

    def callable(self) -> Any:
        """The object to call with the arguments."""
        return self.module

    def arguments(self, inputs: Arrays) -> tuple[Any, ...]:
        """Tensors in the order of the signature, or of `forward` if its parameter names match."""
        import torch  # noqa: PLC0415

        order = [spec.name for spec in self.specs]
        forward = [p for p in inspect.signature(self.callable().forward).parameters if p in inputs]
        return tuple(torch.from_numpy(inputs[name]) for name in (forward if len(forward) == len(order) else order))

    def facts(self, inputs: tuple[TensorSpec, ...], example: Arrays) -> ModelFacts:
        """How large the tables are that its ids look up."""
        return lookups.facts_of(lambda: self.callable()(*self.arguments(example)), inputs, example)

    def names(self, outputs: Any) -> list[str]:
        """One name per output, in the model's order.

        Its own if the signature has the same ones, in whatever order; else the signature's if there are as many.
        """
        import torch  # noqa: PLC0415

        count = len(torch.utils._pytree.tree_leaves(outputs))
        if isinstance(outputs, dict) and set(outputs) == set(self.outputs) and len(outputs) == count:
            return list(outputs)
        if len(self.outputs) == count:
            return list(self.outputs)
        return ["output"] if count == 1 else [f"output_{at}" for at in range(count)]

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Converts through `torch.onnx.export(dynamo=True)`; every -1 in the signature is dynamic."""
        import torch  # noqa: PLC0415

        sample = self.arguments(batch_of(example, _SAMPLE))
        batch = torch.export.Dim("batch")
        shapes = tuple(
            {at: batch if at == 0 else torch.export.Dim.DYNAMIC for at, size in enumerate(spec.shape) if size == -1}
            for spec in self.specs
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.export.export(self.module, sample, dynamic_shapes=shapes)
        except Exception:  # torch.onnx tries other ways, and says why none works
            return self._export(self.module, sample, path, opset, dynamic_shapes=shapes)
        return self._export(self._decomposed(program), sample, path, opset)

    def _decomposed(self, program: Any) -> Any:
        from shiplift.runtime.model.conversion.torch_decompositions import decomposed  # noqa: PLC0415 - imports torch

        return decomposed(program)

    def _export(self, model: Any, sample: tuple[Any, ...], path: Path, opset: int, **options: Any) -> onnx.ModelProto:
        import torch  # noqa: PLC0415

        names = [spec.name for spec in self.specs]
        outputs = list(self.answer_names(sample))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = torch.onnx.export(
                    model,
                    sample,
                    dynamo=True,
                    opset_version=opset,
                    verbose=False,
                    input_names=names,
                    output_names=outputs,
                    **options,
                )
        except Exception as error:
            raise failed("torch can't export the model to ONNX", error) from error
        with TemporaryDirectory(dir=path.parent) as folder:
            program.save(f"{folder}/torch.onnx", external_data=True)
            del program
            return graphs.load(Path(folder) / "torch.onnx", path, move=True)

    def to_torchscript(
        self, sets: dict[str, Arrays], answers: dict[str, Arrays], file: Path, conversion: Conversion
    ) -> None:
        """Saves a script as it is, and traces modules, programs, and anything with post-processing.

        A trace may be fixed to one batch size, so the written file must answer every set.
        """
        import torch  # noqa: PLC0415

        try:
            with warnings.catch_warnings(), torch.inference_mode():
                warnings.simplefilter("ignore")
                sample = self.arguments(batch_of(sets["example"], _SAMPLE))
                torch.jit.save(self._scripted(sample, conversion), str(file))
                written = torch.jit.load(str(file), map_location="cpu")
                for name, inputs in sets.items():
                    flat = torch.utils._pytree.tree_leaves(written(*self.arguments(inputs)))
                    for actual, expected in zip(flat, answers[name].values(), strict=True):
                        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-3, atol=1e-4)
        except Exception as error:
            raise failed("torch can't write the model as TorchScript for any batch size", error) from error

    def _scripted(self, sample: tuple[Any, ...], conversion: Conversion) -> Any:
        import torch  # noqa: PLC0415

        model = postprocess.in_torch(self.callable(), conversion.postprocess, conversion.top_k)
        return torch.jit.trace(model, sample, check_trace=False)

    def answer_names(self, sample: tuple[Any, ...]) -> list[str]:
        """Output names; runs the model once to see its outputs."""
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            return self.names(self.callable()(*sample))


class TorchProgram(TorchModule):
    """A `torch.export` program: already a graph, with its own dynamic dimensions."""

    def __init__(self, program: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[str, ...]) -> None:
        super().__init__(program, inputs, outputs)
        self._callable = program.module()
        self.batch = _program_batch(program)
        self.training = tuple(dict.fromkeys(_in_training(program)))

    def callable(self) -> Any:
        """The program as a module."""
        return self._callable

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Converts the program itself through `torch.onnx.export`, without tracing it again."""
        size = _SAMPLE if self.batch == -1 else self.batch
        return self._export(self._decomposed(self.module), self.arguments(batch_of(example, size)), path, opset)


def _in_training(program: Any) -> Iterator[str]:
    """The operators that were exported in training mode, such as dropout."""
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        given = zip(schema.arguments, node.args, strict=False) if schema else ()
        if any(argument.name in ("train", "training") and value is True for argument, value in given):
            yield str(node.target._schema.name).removeprefix("aten::")


def _program_batch(program: Any) -> int:
    """The batch size that a program was specialized to, as by an example of one sample; -1 if it takes any."""
    names = set(program.graph_signature.user_inputs)
    shapes = [node.meta["val"].shape for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    sizes = {shape[0] if shape and isinstance(shape[0], int) else -1 for shape in shapes}
    return sizes.pop() if len(sizes) == 1 else -1


class TorchScript(TorchModule):
    """A TorchScript file, which only torch's older exporter can read (opset 20 at most)."""

    notes = ("TorchScript is exported by torch's older exporter; log the module as pt2 for the newer one.",)

    def arguments(self, inputs: Arrays) -> tuple[Any, ...]:
        """Tensors in the signature's order: a script module does not keep the parameter names of `forward`."""
        import torch  # noqa: PLC0415

        return tuple(torch.from_numpy(inputs[spec.name]) for spec in self.specs)

    def _scripted(self, sample: tuple[Any, ...], conversion: Conversion) -> Any:
        return super()._scripted(sample, conversion) if conversion.postprocess else self.module

    def to_onnx(self, example: Arrays, opset: int, path: Path) -> onnx.ModelProto:
        """Through `torch.onnx.export(dynamo=False)`."""
        import torch  # noqa: PLC0415

        sample = self.arguments(batch_of(example, _SAMPLE))
        outputs = self.answer_names(sample)
        names = [spec.name for spec in self.specs]
        dynamic = {s.name: {at: _axis(s.name, at) for at, n in enumerate(s.shape) if n == -1} for s in self.specs}
        file = path.parent / "torch.onnx"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    self.module,
                    sample,
                    str(file),
                    dynamo=False,
                    opset_version=min(opset, 20),
                    input_names=names,
                    output_names=outputs,
                    dynamic_axes={**dynamic, **{name: {0: "batch"} for name in outputs}},
                )
        except Exception as error:
            raise failed("torch can't export the TorchScript model to ONNX", error) from error
        return graphs.load(file, path)


def _axis(name: str, at: int) -> str:
    return "batch" if at == 0 else f"{name}_{at}"
