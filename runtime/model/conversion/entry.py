"""The export's sandboxed half: load the original, note what it answers, write it as ONNX with post-processing.

Everything it returns is files and JSON; the parent trusts none of it and compares the answers itself.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion import graphs, loaders, postprocess
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.model.samples import input_sets
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.spec.model import Conversion

PRELOAD = ("torch", "torch.export", "torch.onnx", "torch.onnx._internal.exporter._core", "onnxscript")


def convert(
    *, folder: str, flavor: str, signature: dict[str, Any], example: str, out: str, how: dict[str, Any],
    tabular: bool, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Writes `out/model/model.onnx` and `out/answers.npz` (arrays named `SET/input/NAME` and `SET/output/NAME`).

    Where the spec asks for it, `out/torchscript/model.pt` too.

    Raises:
        ExportFailed: the model does not load, convert or take a dynamic batch.
    """
    logging.disable(logging.WARNING)
    promised, conversion = Signature.model_validate(signature), Conversion.model_validate(how)
    given = load_npz(Path(example))
    original = loaders.load(Path(folder), flavor, promised.inputs, promised.outputs, tabular=tabular)
    work = Path(out)
    shutil.rmtree(work / "model", ignore_errors=True)
    (work / "model").mkdir(parents=True)
    sets = input_sets(_restored(given, promised), promised.inputs, seed=seed)
    answers = {name: _answer(original, inputs, conversion) for name, inputs in sets.items()}
    model = original.to_onnx(sets["example"], conversion.opset, work / "model")
    model = postprocess.in_graph(_pick(model, conversion.outputs), conversion.postprocess, conversion.top_k)
    graphs.save(_tidy(model), work / "model" / "model.onnx")
    served = signature_of(model)
    if conversion.torchscript:
        (work / "torchscript").mkdir(exist_ok=True)
        original.to_torchscript(sets, answers, work / "torchscript" / "model.pt")
    (work / "answers.npz").write_bytes(dump_npz(_named(sets, answers, served)))
    return {"signature": served.model_dump(mode="json"), "sets": list(sets), "notes": list(original.notes)}


def _restored(example: Arrays, promised: Signature) -> Arrays:
    """Text arrays as objects again: NPZ keeps them as unicode."""
    return {
        spec.name: example[spec.name].astype(object) if spec.datatype == "BYTES" else example[spec.name]
        for spec in promised.inputs
    }


def _answer(original: loaders.Original, inputs: Arrays, how: Conversion) -> Arrays:
    try:
        outputs = original.answer(inputs)
    except Exception as error:
        size, said = len(next(iter(inputs.values()))), " ".join(str(error).split())[:400]
        raise ExportFailed(
            f"the model does not answer a batch of {size}: {type(error).__name__}: {said}",
            do="Check that it takes any batch size and the dtypes of its signature.",
        ) from error
    if how.outputs:
        missing = [name for name in how.outputs if name not in outputs]
        if missing:
            raise ExportFailed(
                f"export.outputs names {', '.join(missing)}; the model gives {', '.join(outputs)}",
                do="Change `export.outputs` in the spec.",
            )
        outputs = {name: outputs[name] for name in how.outputs}
    return postprocess.in_numpy(outputs, how.postprocess, how.top_k)


def _pick(model: onnx.ModelProto, wanted: tuple[str, ...]) -> onnx.ModelProto:
    if wanted:
        by_name = {output.name: output for output in model.graph.output}
        chosen = [by_name[name] for name in wanted if name in by_name]
        del model.graph.output[:]
        model.graph.output.extend(chosen)
    return model


def _tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A dynamic batch on every input and output, and nothing about the machine or the author's folders."""
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims:
            if dims[0].dim_value > 1:
                raise ExportFailed(
                    f"{value.name!r} has the fixed batch size {dims[0].dim_value} in the graph",
                    do="Export it with a dynamic first dimension.",
                )
            dims[0].ClearField("dim_value")
            dims[0].dim_param = "batch"
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


def _named(sets: dict[str, Arrays], answers: dict[str, Arrays], served: Signature) -> Arrays:
    named: Arrays = {}
    for name, inputs in sets.items():
        for key, array in loaders.feeds(inputs, served.inputs).items():
            named[f"{name}/input/{key}"] = array
        for spec, array in zip(served.outputs, _aligned(answers[name], served), strict=True):
            named[f"{name}/output/{spec.name}"] = np.asarray(array)
    return named


def _aligned(answers: Arrays, served: Signature) -> list[Any]:
    """The original's outputs in the graph's order: by name, else by position."""
    if len(answers) != len(served.outputs):
        raise ExportFailed(
            f"the model gives {len(answers)} outputs ({', '.join(answers)}), its ONNX form {len(served.outputs)}",
            do="Name the outputs to keep in `export.outputs`.",
        )
    if all(spec.name in answers for spec in served.outputs):
        return [answers[spec.name] for spec in served.outputs]
    return list(answers.values())
