"""The second sandboxed half of the export: the proof that the written ONNX model gives the original's answers.

A table's or tensor's model is proved row by row (`admission.proving`), and so is one behind a front
(`admission.front_proving`).

It runs in another sandbox than the conversion, because that one ran the model's own code and can't be trusted with the
proof. It needs a sandbox too: a graph may loop for ever in C, where only the end of the process stops it.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.admission.formats import onnx_files, torchscript
from shiplift.runtime.admission.forms import FormQuestions, RightForm
from shiplift.runtime.admission.front_proving import front_cases
from shiplift.runtime.admission.kept_rows import kept_rows
from shiplift.runtime.admission.recording import ANSWERS, FAR, TAKEN
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.graph_digest import graph_digest
from shiplift.runtime.model.tensors import Arrays, dump_npz, feeds, load_npz
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import from_file
from shiplift.runtime.records.guards import Guard
from shiplift.runtime.records.model import ParityCase
from shiplift.runtime.records.proof import OfferedGraph, Proof
from shiplift.runtime.records.tensor import Signature, TensorSpec
from shiplift.runtime.records.trees import TreesForm

REFERENCE = "reference.npz"
KEPT = "asked.npz"
EXAMPLE = "example"  # the set whose rows production is asked again and again


def verify(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    written: str,
    graphs: list[dict[str, Any]],
    script: str,
    sets: list[str],
    questions: list[str],
    left_out: list[str],
    guards: list[dict[str, Any]],
    text: str,
    trees: dict[str, Any] | None,
    out: str,
) -> dict[str, Any]:
    """Compares graphs with the original's answers, in turn, until one is right; returns its proof and more.

    The `graphs`, as in `OfferedGraph`, are in the folder `written`, with `answers.npz` as `proof.file` says.
    The arrays of the set `EXAMPLE` are written to `out/reference.npz`, without the set's name, as the served graph
    takes them, and rows of all sets to `out/asked.npz`, for the packaged server. The `questions` are asked, too, and
    `left_out` says what was not. `guards` are those that the model suggests. `script` is the TorchScript file, empty if
    there is none: it is read, never loaded. `text` is the folder of the files around a text model's graph, empty for
    other models; `texts.npz` is next to it. `trees` says how the forest beside the answers is served, if there is one:
    it is the next form after each graph, and the result says how its answers differ. A sandbox entry.

    Raises:
        ExportFailed: a model must not be opened, or none of the forms runs and answers as the original does.
        DataInvalid: the answers can't be read.
    """
    folder, offered = Path(written), [OfferedGraph.model_validate(each) for each in graphs]
    for file in (folder / graph.folder / "model.onnx" for graph in offered):
        _require_harmless(file, script)
        script = ""  # it is next to the first one
    progress("comparing both models")
    originals = load_npz(folder / ANSWERS)
    recorded = {name: from_file(originals, name) for name in (*sets, *questions)}
    forms = FormQuestions(
        folder=folder,
        recorded=recorded,
        trees=TreesForm.model_validate(trees) if trees else None,
        proposed=tuple(Guard.model_validate(guard) for guard in guards),
        taken=[from_file(originals, name) for name in (TAKEN,) if f"{name}/errors" in originals],
        far=[from_file(originals, name) for name in (FAR,) if f"{name}/errors" in originals],
    )
    served = forms.first_right(offered) if not text else RightForm(at=0, form=offered[0].name)
    graph, file = offered[served.at], folder / offered[served.at].folder / "model.onnx"
    parity: list[ParityCase] = []
    asked = [(name, feeds(recorded[name][0].inputs, graph.signature.inputs), recorded[name][1]) for name in sets]
    if served.form != "exact trees":
        running = onnx_models.session(file)
        parity += [
            _case(running, rows, right, graph.signature, name) for name, rows, right in asked if right.answered.all()
        ]
        parity += front_cases(running, Path(text)) if text else []
    _, rows, right = asked[sets.index(EXAMPLE)]
    kept = {f"input/{name}": array for name, array in rows.items()}
    kept |= {f"output/{name}": array for name, array in right.outputs.items()}
    (Path(out) / REFERENCE).write_bytes(dump_npz(kept))
    (Path(out) / KEPT).write_bytes(dump_npz(kept_rows(forms.asked_of(graph.signature.inputs), served.guards)))
    return {
        "served": served.at,
        "form": served.form,
        "dropped": [each.model_dump(mode="json") for each in served.dropped],
        "proof": _with(served.proof, left_out).model_dump(mode="json") if served.proof else None,
        "parity": [case.model_dump(mode="json") for case in parity],
        "opset": _opset(file),
        "graph": graph_digest(file),
        "trees": served.trees_differ,
    }


def _require_harmless(file: Path, script: str) -> None:
    problems = list(onnx_files.problems(file))
    if script:
        problems += torchscript.file_problems(Path(script))
    if problems:
        raise ExportFailed(
            f"the conversion wrote a model that must not be opened: {'; '.join(problems[:3])}",
            do="Check what the model's code does when it is loaded.",
        )


def _with(proved: Proof, left_out: list[str]) -> Proof:
    return proved.model_copy(update={"left_out": (*left_out, *proved.left_out)})


def _case(running: Any, inputs: Arrays, answers: Answers, signature: Signature, name: str) -> ParityCase:
    batch = len(answers.errors)
    try:
        exported = onnx_models.answer(running, inputs, step=1 if signature.batch == 1 else None)
    except Exception as error:
        raise ExportFailed(
            f"the exported model does not answer a batch of {batch}: {' '.join(str(error).split())[:400]}",
            do="Make the model independent of its batch size, or export it to ONNX yourself and log that.",
        ) from error
    original = answers.outputs
    differences = [
        _differences(original[spec.name], np.asarray(exported[spec.name]), example=name == EXAMPLE)
        for spec in signature.outputs
    ]
    bad = [spec for spec, (absolute, _) in zip(signature.outputs, differences, strict=True) if math.isinf(absolute)]
    return ParityCase(
        inputs=name,
        batch=batch,
        max_abs=max(absolute for absolute, _ in differences),
        max_rel=max(relative for _, relative in differences),
        problem="; ".join(_problem(original[s.name], np.asarray(exported[s.name]), s) for s in bad),
    )


def _differences(original: Any, exported: Any, *, example: bool) -> tuple[float, float]:
    """As of any answers, but NaN for the example is not an answer: production is checked with these rows."""
    if example and original.dtype.kind == "f" and np.isnan(original).any():
        return math.inf, math.inf
    return onnx_models.differences(original, exported)


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
