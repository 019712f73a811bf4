"""The sandboxed half of the export: loads the original, records its answers, writes it as ONNX with post-processing.

It returns files and JSON only; the parent trusts none of it and compares the answers itself.
"""

import logging
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model.conversion import batching, exact_trees, loaders, postprocess, rehearsal
from shiplift.runtime.model.conversion.forests import NotExactError
from shiplift.runtime.model.conversion.loaders import feeds
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.onnx_models import signature_of
from shiplift.runtime.model.samples import input_sets
from shiplift.runtime.model.tensors import Arrays, dump_npz, load_npz
from shiplift.runtime.records.tensor import Signature
from shiplift.runtime.records.trees import NOT_EXACT, TreesForm
from shiplift.runtime.spec.model import Conversion

_TORCH = (
    "torch",
    "torch.export",
    "torch.export.pt2_archive",
    "torch.onnx",
    "torch.onnx._internal.exporter._core",
    "onnxscript",
    "onnxscript.function_libs.torch_lib.ops",
)
PRELOAD_FOR = {  # by flavor; without a word of it, an import costs more than it saves: torch's take 3 s of a core
    "pytorch": _TORCH,
    "sklearn": ("mlflow.sklearn", "sklearn.base", "skl2onnx", "treelite"),
    "lightgbm": ("mlflow.lightgbm", "lightgbm", "onnxmltools", "treelite"),
    "xgboost": ("mlflow.xgboost", "xgboost", "onnxmltools", "treelite"),
    "catboost": ("mlflow.catboost", "catboost"),
    "transformers": (*_TORCH, "transformers", "mlflow.transformers"),
    "sentence_transformers": (*_TORCH, "sentence_transformers", "mlflow.sentence_transformers"),
}


def convert(
    *,
    folder: str,
    flavor: str,
    signature: dict[str, Any],
    example: str,
    out: str,
    settings: dict[str, Any],
    tabular: bool,
    seed: int,
) -> dict[str, Any]:
    """Writes `out/model/model.onnx` and `out/answers.npz` (arrays named `SET/input/NAME` and `SET/output/NAME`).

    Writes `out/torchscript/model.pt` too if the spec asks for it. For a model that takes text, `out/text` gets what
    tokenizes it, and `out/texts.npz` texts with what `mlflow.pyfunc` answers to them. For an ensemble of trees,
    `out/trees` gets them as they were trained, and `out/trees.npz` questions near their thresholds with answers.

    Raises:
        ExportFailed: the model does not load, does not convert, or has no dynamic batch.
    """
    logging.disable(logging.WARNING)
    logged, conversion = Signature.model_validate(signature), Conversion.model_validate(settings)
    original = loaders.load(
        Path(folder), flavor, logged.inputs, logged.outputs, tabular=tabular, max_megapixels=conversion.max_megapixels
    )
    if original.takes_text:
        _check_settings(conversion)
    elif conversion.preprocess:
        from shiplift.runtime.model.conversion.encoded_images import EncodedImages  # noqa: PLC0415 - Pillow, if needed

        original = EncodedImages(
            original,
            logged.inputs,
            conversion.preprocess,
            conversion.max_megapixels,
            finished=lambda behind, inputs: _answer(behind, inputs, conversion),
        )
    work = Path(out)
    shutil.rmtree(work / "model", ignore_errors=True)
    (work / "model").mkdir(parents=True)
    requests = input_sets(_restored(load_npz(Path(example)), logged), logged.inputs, seed=seed)
    sets = original.tensors(requests)
    answers = {name: _answer(original, inputs, conversion) for name, inputs in sets.items()}
    model = original.to_onnx(sets["example"], conversion.opset, work / "model")
    model = postprocess.in_graph(_pick(model, conversion.outputs), conversion.postprocess, conversion.top_k)
    exported, file = signature_of(model), work / "model" / "model.onnx"
    asked = {name: feeds(inputs, exported.inputs) for name, inputs in sets.items()}
    expected = {name: _aligned(outputs, exported) for name, outputs in answers.items()}
    notes = (*original.notes, *batching.save_with_any_batch(_cleaned(model), file, asked, expected))
    exported = signature_of(onnx.load(file, load_external_data=False))
    if conversion.torchscript:
        (work / "torchscript").mkdir(exist_ok=True)
        original.to_torchscript(sets, answers, work / "torchscript" / "model.pt", conversion)
    (work / "answers.npz").write_bytes(dump_npz(_named(asked, expected, exported)))
    text = original.write_text(requests["example"], work, exported)
    trees, why = _trees(original, exported, logged, conversion, requests["example"], work, seed)
    return {
        "signature": exported.model_dump(mode="json"),
        "sets": list(sets),
        "notes": [*notes, *([NOT_EXACT.format(why=why)] if why else [])],
        "text": text.model_dump(mode="json") if text else None,
        "trees": trees.model_dump(mode="json") if trees else None,
    }


def _trees(
    original: Original,
    exported: Signature,
    logged: Signature,
    conversion: Conversion,
    example: Arrays,
    work: Path,
    seed: int,
) -> tuple[TreesForm | None, str]:
    """How the model is served as exact trees, or why it isn't; nothing of both if it has no trees."""

    def answer(inputs: Arrays) -> Arrays:
        outputs = _answer(original, feeds(inputs, logged.inputs), conversion)
        return dict(zip((spec.name for spec in exported.outputs), _aligned(outputs, exported), strict=True))

    try:
        forest = original.forest()
        if forest is None:
            return None, ""
        if conversion.postprocess:
            raise NotExactError("`export.postprocess` changes its scores")
        if [spec.name for spec in exported.inputs] != [spec.name for spec in logged.inputs]:
            raise NotExactError("its graph has other inputs")
        return exact_trees.write(forest, exported, example, answer, work, seed=seed), ""
    except NotExactError as error:
        return None, str(error)


def rehearse(flavor: str) -> None:
    """Converts a small model of a flavor, if there is one: the next conversion takes a quarter of the time."""
    with TemporaryDirectory() as name:
        folder, example, out = Path(name) / "model", Path(name) / "example.npz", Path(name) / "out"
        signature = rehearsal.write_small(flavor, folder)
        if signature is None:
            return
        shape = signature.inputs[0].shape[1:]
        example.write_bytes(dump_npz({"input": np.ones((2, *shape), np.float32)}))
        convert(
            folder=str(folder),
            flavor=flavor,
            signature=signature.model_dump(mode="json"),
            example=str(example),
            out=str(out),
            settings={},
            tabular=False,
            seed=0,
        )


def _check_settings(conversion: Conversion) -> None:
    """Whether nothing asks for other outputs than those that become the pipeline's answers."""
    names = [name for name in ("outputs", "postprocess", "torchscript", "preprocess") if getattr(conversion, name)]
    if names:
        raise ExportFailed(
            f"`export.{names[0]}` is set, but a model that takes text answers what its pipeline answers",
            do=f"Leave it out; or log the model itself as pt2 or ONNX to use `export.{names[0]}`.",
        )


def _restored(example: Arrays, signature: Signature) -> Arrays:
    """The example with text as object arrays again: NPZ stores it as unicode arrays."""
    return {
        spec.name: example[spec.name].astype(object) if spec.datatype == "BYTES" else example[spec.name]
        for spec in signature.inputs
    }


def _answer(original: Original, inputs: Arrays, conversion: Conversion) -> Arrays:
    try:
        outputs = (
            original.answer(inputs)
            if original.batch == -1
            else batching.answer_in_batches(original.answer, inputs, original.batch)
        )
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


def _cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without paths of the author's machine."""
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


def _named(asked: dict[str, Arrays], answers: dict[str, list[Any]], exported: Signature) -> Arrays:
    named: Arrays = {}
    for name, inputs in asked.items():
        for key, array in inputs.items():
            named[f"{name}/input/{key}"] = array
        for spec, array in zip(exported.outputs, answers[name], strict=True):
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
