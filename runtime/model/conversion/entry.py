"""The sandboxed half of the export: loads the original, records its answers, writes it as ONNX with post-processing.

It returns files and JSON only; the parent trusts none of it and compares the answers itself.
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
    *, folder: str, flavor: str, signature: dict[str, Any], example: str, out: str, settings: dict[str, Any],
    tabular: bool, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Writes `out/model/model.onnx` and `out/answers.npz` (arrays named `SET/input/NAME` and `SET/output/NAME`).

    Writes `out/torchscript/model.pt` too if the spec asks for it.

    Raises:
        ExportFailed: the model does not load, does not convert, or has no dynamic batch.
    """
    logging.disable(logging.WARNING)
    logged, conversion = Signature.model_validate(signature), Conversion.model_validate(settings)
    original = loaders.load(Path(folder), flavor, logged.inputs, logged.outputs, tabular=tabular)
    work = Path(out)
    shutil.rmtree(work / "model", ignore_errors=True)
    (work / "model").mkdir(parents=True)
    sets = input_sets(_restored(load_npz(Path(example)), logged), logged.inputs, seed=seed)
    answers = {name: _answer(original, inputs, conversion) for name, inputs in sets.items()}
    model = original.to_onnx(sets["example"], conversion.opset, work / "model")
    model = postprocess.in_graph(_pick(model, conversion.outputs), conversion.postprocess, conversion.top_k)
    graphs.save(_normalized(model), work / "model" / "model.onnx")
    exported = signature_of(model)
    if conversion.torchscript:
        (work / "torchscript").mkdir(exist_ok=True)
        original.to_torchscript(sets, answers, work / "torchscript" / "model.pt")
    (work / "answers.npz").write_bytes(dump_npz(_named(sets, answers, exported)))
    return {"signature": exported.model_dump(mode="json"), "sets": list(sets), "notes": list(original.notes)}


def _restored(example: Arrays, signature: Signature) -> Arrays:
    """The example with text as object arrays again: NPZ stores it as unicode arrays."""
    return {
        spec.name: example[spec.name].astype(object) if spec.datatype == "BYTES" else example[spec.name]
        for spec in signature.inputs
    }


def _answer(original: loaders.Original, inputs: Arrays, conversion: Conversion) -> Arrays:
    try:
        outputs = original.answer(inputs)
    except Exception as error:
        size, reason = len(next(iter(inputs.values()))), " ".join(str(error).split())[:400]
        raise ExportFailed(
            f"the model does not answer a batch of {size}: {type(error).__name__}: {reason}",
            do="Check that it takes any batch size and the dtypes of its signature.",
        ) from error
    if conversion.outputs:
        missing = [name for name in conversion.outputs if name not in outputs]
        if missing:
            raise ExportFailed(
                f"export.outputs names {', '.join(missing)}; the model has {', '.join(outputs)}",
                do="Change `export.outputs` in the spec.",
            )
        outputs = {name: outputs[name] for name in conversion.outputs}
    return postprocess.in_numpy(outputs, conversion.postprocess, conversion.top_k)


def _pick(model: onnx.ModelProto, names: tuple[str, ...]) -> onnx.ModelProto:
    if names:
        by_name = {output.name: output for output in model.graph.output}
        chosen = [by_name[name] for name in names if name in by_name]
        del model.graph.output[:]
        model.graph.output.extend(chosen)
    return model


def _normalized(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a dynamic batch on every input and output, and without paths of the author's machine."""
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


def _named(sets: dict[str, Arrays], answers: dict[str, Arrays], exported: Signature) -> Arrays:
    named: Arrays = {}
    for name, inputs in sets.items():
        for key, array in loaders.feeds(inputs, exported.inputs).items():
            named[f"{name}/input/{key}"] = array
        for spec, array in zip(exported.outputs, _aligned(answers[name], exported), strict=True):
            named[f"{name}/output/{spec.name}"] = np.asarray(array)
    return named


def _aligned(answers: Arrays, exported: Signature) -> list[Any]:
    """The original's outputs in the graph's order: matched by name, else by position."""
    if len(answers) != len(exported.outputs):
        raise ExportFailed(
            f"the model has {len(answers)} outputs ({', '.join(answers)}), its ONNX form {len(exported.outputs)}",
            do="Name the outputs to keep in `export.outputs`.",
        )
    if all(spec.name in answers for spec in exported.outputs):
        return [answers[spec.name] for spec in exported.outputs]
    return list(answers.values())
