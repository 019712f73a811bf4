"""The first sandboxed half of the export: loads the original, asks it, and writes it as ONNX with post-processing.

It returns only files and JSON; the parent trusts none of it and compares the answers itself.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.admission.front_questions import made_texts
from shiplift.runtime.admission.known_rows import as_float32, asked_of, known_rows
from shiplift.runtime.admission.pyfunc_answers import PyfuncOutput, judge
from shiplift.runtime.admission.recording import ANSWERS, FAR, LARGEST, answered, record
from shiplift.runtime.admission.second_forms import First, SecondForm, write_second
from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model.conversion import batching, double_graphs, exact_trees, loaders, postprocess, rehearsal
from shiplift.runtime.model.conversion.forests import NotExactError
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.onnx_models import LARGE_BYTES, answer, session, signature_of, stored_bytes
from shiplift.runtime.model.samples import input_sets
from shiplift.runtime.model.splits import of_trees
from shiplift.runtime.model.tensors import Arrays, dump_npz, feeds, load_npz
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.file import in_file
from shiplift.runtime.proof.guards.proposals import proposed
from shiplift.runtime.proof.questions.question import Questions, QuestionSet
from shiplift.runtime.proof.settings import MOST_NEIGHBOURS, alone, count_of, rows_of, with_neighbours
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.proof import Counterexample, FormName, OfferedGraph
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
PRELOAD_FOR = {  # by flavor: importing all of them would cost more than it saves, since torch takes 3 s of CPU time
    "pytorch": _TORCH,
    "sklearn": ("mlflow.sklearn", "sklearn.base", "skl2onnx", "treelite"),
    "lightgbm": ("mlflow.lightgbm", "lightgbm", "onnxmltools", "treelite"),
    "xgboost": ("mlflow.xgboost", "xgboost", "onnxmltools", "treelite"),
    "catboost": ("mlflow.catboost", "catboost"),
    "transformers": (*_TORCH, "transformers", "mlflow.transformers"),
    "sentence_transformers": (*_TORCH, "sentence_transformers", "mlflow.sentence_transformers"),
}


def convert(  # noqa: PLR0913 - an entry takes JSON by name
    *,
    folder: str,
    flavor: str,
    signature: dict[str, Any],
    example: str,
    out: str,
    settings: dict[str, Any],
    tabular: bool,
    seed: int,
    known: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes `out/model/model.onnx` and `out/answers.npz`, which is as `proof.file` says.

    A model whose answer to a row depends on the other rows of its batch is written for a batch of 1.

    `known` is where the author's data are, as `known_rows` takes it; they are asked, too. Also writes
    `out/torchscript/model.pt` if the spec asks for it. For a model that takes text, `out/text` gets the tokenizer's
    files, and `out/texts.npz` texts of the author and made ones, with the answers of `mlflow.pyfunc`. For an ensemble
    of trees, `out/trees` gets them as they were trained, and `out/trees.npz` questions near their thresholds with
    answers.

    Raises:
        ExportFailed: the model does not load, is not repeatable, does not convert, or has no dynamic batch.
        DataInvalid: the validation data do not match the model.
    """
    logging.disable(logging.WARNING)
    logged, conversion = Signature.model_validate(signature), Conversion.model_validate(settings)
    original = _loaded(Path(folder), flavor, logged, conversion, tabular=tabular)
    work = Path(out)
    shutil.rmtree(work / "model", ignore_errors=True)
    (work / "model").mkdir(parents=True)
    requests = input_sets(_restored(load_npz(Path(example)), logged), logged.inputs, seed=seed)
    coarse = conversion.inputs == "float32"
    if coarse:
        requests = {name: as_float32(each) for name, each in requests.items()}
    sets = original.tensors(requests)
    plain = not (original.takes_text or conversion.preprocess)
    facts = original.facts(logged.inputs, requests["example"]) if plain else None
    started = time.monotonic()
    recorded = record(original, sets, conversion, _making(logged, requests, known, facts, coarse=coarse))
    judged = judge(Path(folder), original, logged.inputs, recorded.rows(sets)) if plain else PyfuncOutput()
    recorded = recorded.beginning_with(_first_output(judged, original, conversion))
    asking_seconds = time.monotonic() - started

    def finished(model: onnx.ModelProto) -> onnx.ModelProto:
        model = postprocess.in_graph(_pick(model, conversion.outputs), conversion.postprocess, conversion.top_k)
        return _in_order(_cleaned(model), [*recorded.answers["example"].outputs])

    progress("converting to ONNX")
    started = time.monotonic()
    model = finished(original.to_onnx(sets["example"], conversion.opset, work / "model"))
    seconds, exported, file = time.monotonic() - started, signature_of(model), work / "model" / "model.onnx"
    _require_as_many(recorded.answers["example"], exported)
    rows = sets | {name: questions.inputs for name, questions in recorded.made.items()}
    asked = {name: feeds(inputs, exported.inputs) for name, inputs in rows.items()}
    answers = {name: _aligned(each, exported) for name, each in recorded.answers.items()}

    def saved(model: onnx.ModelProto, file: Path) -> tuple[str, ...]:
        taken = {name: feeds(inputs, signature_of(model).inputs) for name, inputs in sets.items()}
        return _saved(model, file, recorded.mixes, taken, answers, plain=plain)

    notes = saved(model, file)
    exported = signature_of(onnx.load(file, load_external_data=False))
    if conversion.torchscript:
        (work / "torchscript").mkdir(exist_ok=True)
        original.to_torchscript(*recorded.batches(sets), work / "torchscript" / "model.pt", conversion)
    origins = {name: (name,) * count_of(inputs) for name, inputs in sets.items()}
    origins |= {name: questions.origins for name, questions in recorded.made.items()}
    (work / ANSWERS).write_bytes(
        dump_npz(in_file(rows, answers, origins) | recorded.taken | _far(recorded.far, exported))
    )
    first = First(file=file, signature=exported, seconds=seconds, asked=asked, answers=answers)
    second = SecondForm()
    if plain and not recorded.mixes:
        second = write_second(original, first, logged, finished, saved, conversion.opset, work)
    text = original.write_text(requests["example"], work, exported)
    if made := made_texts(original, requests["example"]):
        texts = work / "texts.npz"
        texts.write_bytes(dump_npz(load_npz(texts) | made))
    trees, why = _trees(original, exported, logged, conversion, requests["example"], work, seed)
    return {
        "graphs": [graph.model_dump(mode="json") for graph in (_first(model, exported, notes), second.graph) if graph],
        "sets": list(sets),
        "questions": list(recorded.made),
        "guards": [guard.model_dump(mode="json") for guard in (proposed(facts) if facts else ())],
        "left_out": [*recorded.left_out, *judged.left_out],
        "notes": [*original.notes, *second.notes, *([NOT_EXACT.format(why=why)] if why else [])],
        "text": text.model_dump(mode="json") if text else None,
        "trees": trees.model_dump(mode="json") if trees else None,
        "answer": None if conversion.outputs or conversion.postprocess else judged.form,
        "asking_seconds": asking_seconds,
    }


def _far(far: tuple[Questions, Answers] | None, exported: Signature) -> Arrays:
    """The arrays of the rows that are far from all others."""
    if far is None:
        return {}
    questions, answers = far
    return in_file({FAR: questions.inputs}, {FAR: _aligned(answers, exported)}, {FAR: questions.origins})


def _first(model: onnx.ModelProto, exported: Signature, notes: tuple[str, ...]) -> OfferedGraph:
    name: FormName = "FP64 graph" if double_graphs.computes_in_double(model.graph) else "FP32 graph"
    return OfferedGraph(name=name, folder="model", signature=exported, notes=notes)


def _loaded(folder: Path, flavor: str, logged: Signature, conversion: Conversion, *, tabular: bool) -> Original:
    """The original, which takes images if the spec says how these become pixels."""
    progress("loading the original")
    original = loaders.load(
        folder, flavor, logged.inputs, logged.outputs, tabular=tabular, max_megapixels=conversion.max_megapixels
    )
    if original.takes_text:
        _check_settings(conversion)
        return original
    if not conversion.preprocess:
        return original
    from shiplift.runtime.model.conversion.encoded_images import EncodedImages  # noqa: PLC0415 - Pillow, if needed

    return EncodedImages(
        original,
        logged.inputs,
        conversion.preprocess,
        conversion.max_megapixels,
        finished=lambda behind, inputs: answered(behind, inputs, conversion),
    )


def _making(
    logged: Signature,
    requests: dict[str, Arrays],
    known: dict[str, Any] | None,
    facts: ModelFacts | None,
    *,
    coarse: bool,
) -> Callable[[float], QuestionSet]:
    """What makes the questions, once it is known how many seconds a row takes."""
    given = known_rows(known if facts else None, logged.inputs, requests["example"])

    def make(seconds_per_row: float) -> QuestionSet:
        if facts is None:
            return QuestionSet(questions=())
        return asked_of(facts, given, seconds_per_row, coarse=coarse)

    return make


def _saved(
    model: onnx.ModelProto,
    file: Path,
    mixes: Counterexample | None,
    sets: Mapping[str, Arrays],
    answers: Mapping[str, Answers],
    *,
    plain: bool,
) -> tuple[str, ...]:
    """Writes the graph for any batch, or for one sample where rows mix, of the original or the graph; returns notes."""
    progress("checking the graph's batches")
    notes: tuple[str, ...] = ()
    note = batching.MIXING_NOTE
    if not mixes:
        note = batching.CONVERTED_NOTE
        right = {name: list(answers[name].outputs.values()) for name in sets if answers[name].answered.all()}
        notes = batching.save_with_any_batch(model, file, {name: sets[name] for name in right}, right)
        mixes = _mixes_of_graph(file, sets[LARGEST]) if plain else None
    return batching.save_for_one_sample(model, file, mixes, sets[LARGEST], note) if mixes else notes


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

    def asked(inputs: Arrays) -> Arrays:
        outputs = answered(original, feeds(inputs, logged.inputs), conversion)
        return _aligned(Answers.of(outputs), exported).outputs

    try:
        forest = original.forest()
        if forest is None:
            return None, ""
        if conversion.postprocess:
            raise NotExactError("`export.postprocess` changes its scores")
        if [spec.name for spec in exported.inputs] != [spec.name for spec in logged.inputs]:
            raise NotExactError("its graph has other inputs")
        return exact_trees.write(
            forest, exported, example, asked, work, splits=of_trees(original.trees()), seed=seed
        ), ""
    except NotExactError as error:
        return None, str(error)


def _first_output(judged: PyfuncOutput, original: Original, conversion: Conversion) -> str:
    """The output to begin with: what pyfunc answers, unless the author says otherwise."""
    return "" if conversion.outputs or original.probable else judged.answered


def rehearse(flavor: str) -> None:
    """Converts a small model of a flavor, if there is one: the next conversion then takes a quarter of the time."""
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
    """Checks that the spec asks for no outputs other than those that become the pipeline's answers."""
    names = [name for name in ("outputs", "postprocess", "torchscript", "preprocess") if getattr(conversion, name)]
    if names:
        raise ExportFailed(
            f"`export.{names[0]}` is set, but a model that takes text gives its pipeline's answers",
            do=f"Leave it out; or log the model itself as pt2 or ONNX to use `export.{names[0]}`.",
        )


def _restored(example: Arrays, signature: Signature) -> Arrays:
    """The example with text as object arrays again: NPZ stores it as unicode arrays."""
    return {
        spec.name: example[spec.name].astype(object) if spec.datatype == "BYTES" else example[spec.name]
        for spec in signature.inputs
    }


def _pick(model: onnx.ModelProto, names: tuple[str, ...]) -> onnx.ModelProto:
    if names:
        by_name = {output.name: output for output in model.graph.output}
        chosen = [by_name[name] for name in names if name in by_name]
        del model.graph.output[:]
        model.graph.output.extend(chosen)
    return model


def _cleaned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without paths from the author's machine."""
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


def _mixes_of_graph(file: Path, inputs: Arrays) -> Counterexample | None:
    """How a graph's answers to rows depend on their neighbours, though the original's do not; of a large one, none.

    They are compared with what the graph answers to each row alone: whether that is right is the proof's question.
    """
    if stored_bytes(file) > LARGE_BYTES:
        return None
    try:
        running = session(file, lean=True)
    except ExportFailed:  # the proof says so, and tries the next form
        return None
    few = range(min(count_of(inputs), MOST_NEIGHBOURS))
    rows = rows_of(inputs, few)

    def ask(some: Arrays) -> Arrays:
        return answer(running, some)

    return with_neighbours(ask, rows, alone(ask, rows), [LARGEST] * len(few))


def _in_order(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with its outputs in the original's order, if they have its names: the first is what is scored."""
    by_name = {output.name: output for output in model.graph.output}
    if set(by_name) == set(names):
        ordered = [by_name[name] for name in names]
        del model.graph.output[:]
        model.graph.output.extend(ordered)
    return model


def _aligned(answers: Answers, exported: Signature) -> Answers:
    """The original's outputs with the graph's names: matched by name, otherwise by position."""
    outputs = answers.outputs
    if not outputs or all(spec.name in outputs for spec in exported.outputs):
        return answers
    names = dict(zip(outputs, (spec.name for spec in exported.outputs), strict=True))
    return replace(
        answers,
        outputs={names[name]: array for name, array in outputs.items()},
        noise={names[name]: array for name, array in answers.noise.items()},
        usual={names[name]: array for name, array in answers.usual.items()},
    )


def _require_as_many(answers: Answers, exported: Signature) -> None:
    if len(answers.outputs) != len(exported.outputs):
        raise ExportFailed(
            f"the model has {len(answers.outputs)} outputs ({', '.join(answers.outputs)}), its ONNX form "
            f"{len(exported.outputs)}",
            do="Name the outputs to keep in the spec: `export: {outputs: [NAME]}`.",
        )
