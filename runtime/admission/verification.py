"""The second sandboxed half of the export: the proof that the written ONNX model gives the original's answers.

It runs in another sandbox than the conversion, because that one ran the model's own code and can't be trusted with the
proof. It needs a sandbox too: a graph may loop for ever, in C, where nothing but the end of the process stops it.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.admission import exact_trees
from shiplift.runtime.admission.formats import onnx_files, torchscript
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.graph_digest import graph_digest
from shiplift.runtime.model.tensors import Arrays, concatenate, dump_npz, load_npz, under
from shiplift.runtime.model.text.fronts import load_front
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm

REFERENCE = "reference.npz"


def verify(
    *,
    model: str,
    script: str,
    answers: str,
    signature: dict[str, Any],
    sets: list[str],
    text: str,
    trees: dict[str, Any] | None,
    out: str,
) -> dict[str, Any]:
    """Compares the ONNX file `model` with the original's `answers`; returns cases, the opset and the graph's digest.

    `answers` has arrays named `SET/input/NAME` and `SET/output/NAME`. Those of the set `example` are written to
    `out/reference.npz`, without the set's name. `script` is the TorchScript file, empty if there is none: it is read,
    never loaded. `text` is the folder of what is around the graph of a text model, empty for others; next to it is
    `texts.npz`. `trees` says how the forest beside the answers is served, if there is one, and then the result says
    how its answers differ. A sandbox entry.

    Raises:
        ExportFailed: the model must not be opened, or does not run.
        DataInvalid: the answers can't be read.
    """
    file, expected = Path(model), Signature.model_validate(signature)
    problems = list(onnx_files.problems(file))
    if script:
        problems += torchscript.file_problems(Path(script))
    if problems:
        raise ExportFailed(
            f"the conversion wrote a model that must not be opened: {'; '.join(problems[:3])}",
            do="Check what the model's code does when it is loaded.",
        )
    progress("comparing both models")
    originals = load_npz(Path(answers))
    running = onnx_models.session(file)
    cases = [_case(running, originals, expected, name) for name in sets]
    cases += _text_cases(running, Path(text)) if text else []
    (Path(out) / REFERENCE).write_bytes(dump_npz(under("example/", originals)))
    return {
        "parity": [case.model_dump(mode="json") for case in cases],
        "opset": _opset(file),
        "graph": graph_digest(file),
        "trees": exact_trees.difference(Path(answers).parent, TreesForm.model_validate(trees), expected)
        if trees
        else "",
    }


def _case(running: Any, answers: Arrays, signature: Signature, name: str) -> ParityCase:
    inputs = {spec.name: answers[f"{name}/input/{spec.name}"] for spec in signature.inputs}
    batch = len(next(iter(inputs.values())))
    try:
        exported = onnx_models.answer(running, inputs, step=1 if signature.batch == 1 else None)
    except Exception as error:
        raise ExportFailed(
            f"the exported model does not answer a batch of {batch}: {' '.join(str(error).split())[:400]}",
            do="Make the model independent of its batch size, or export it to ONNX yourself and log that.",
        ) from error
    original = {spec.name: answers[f"{name}/output/{spec.name}"] for spec in signature.outputs}
    differences = [
        onnx_models.differences(original[spec.name], np.asarray(exported[spec.name])) for spec in signature.outputs
    ]
    bad = [spec for spec, (absolute, _) in zip(signature.outputs, differences, strict=True) if math.isinf(absolute)]
    return ParityCase(
        inputs=name,
        batch=batch,
        max_abs=max(absolute for absolute, _ in differences),
        max_rel=max(relative for _, relative in differences),
        problem="; ".join(_problem(original[s.name], np.asarray(exported[s.name]), s) for s in bad),
    )


def _text_cases(running: Any, folder: Path) -> list[ParityCase]:
    """Texts in one batch, padded, and each alone: both must give what the pipeline answers to each."""
    arrays, (front, _) = load_npz(folder.with_name("texts.npz")), load_front(folder)
    samples, expected = front.samples(under("input/", arrays)), under("output/", arrays)

    def asked(samples: list[Any]) -> Arrays:
        answers: Arrays = front.run(samples, lambda feeds: onnx_models.answer(running, feeds))
        return answers

    return [
        _text_case("texts", len(samples), expected, asked(samples)),
        _text_case("each text alone", 1, expected, concatenate([asked([sample]) for sample in samples])),
    ]


def _text_case(name: str, batch: int, expected: Arrays, actual: Arrays) -> ParityCase:
    differences = {key: onnx_models.differences(array, np.asarray(actual[key])) for key, array in expected.items()}
    bad = [key for key, (absolute, _) in differences.items() if math.isinf(absolute)]
    return ParityCase(
        inputs=name,
        batch=batch,
        max_abs=max(absolute for absolute, _ in differences.values()),
        max_rel=max(relative for _, relative in differences.values()),
        problem="; ".join(f"{key!r} differs from what mlflow.pyfunc answers" for key in bad),
    )


def _problem(original: Any, exported: Any, spec: TensorSpec) -> str:
    if original.size != exported.size:
        return f"the original gives {spec.name!r} with shape {original.shape}, the exported model with {exported.shape}"
    for source, array in (("the original", original), ("the exported model", exported)):
        if array.dtype.kind == "f" and np.isnan(array).any():
            return f"{source} gives NaN in {spec.name!r}"
    return f"{spec.name!r} differs where it must be equal"


def _opset(model: Path) -> int:
    loaded = onnx.load(model, load_external_data=False)
    return next((int(entry.version) for entry in loaded.opset_import if entry.domain in ("", "ai.onnx")), 0)
