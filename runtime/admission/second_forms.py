"""The second graph of a model whose first one answers otherwise: the same model in FP64, for clients that send FP64.

Whether it is needed is found out here, in the sandbox that converts, with the author's answers at hand: that is no
proof, and saves the work for the models that are right in FP32.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import onnx

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.base.progress import progress
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import double_graphs
from shiplift.runtime.model.conversion.original import Original
from shiplift.runtime.model.tensors import Arrays
from shiplift.runtime.proof.answers import Answers
from shiplift.runtime.proof.comparison import compare
from shiplift.runtime.proof.oracle import answers_to
from shiplift.runtime.proof.settings import count_of
from shiplift.runtime.records.proof import FormName, OfferedGraph
from shiplift.runtime.records.tensor import Signature

FOLDER: Literal["double"] = "double"
_SLOW_S = 20.0  # of the first conversion: the second one takes about as long
_ASK_S = 1.5
_CLOSE = 0.1  # of a tolerance: a row alone may be off by more than in a batch
_NOT_MADE = "Not served as a graph in FP64: {why}."


@dataclass(frozen=True, kw_only=True)
class SecondForm:
    """What was written, if anything, and notes that say why nothing was."""

    graph: OfferedGraph | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class First:
    """The first graph: its file, how many seconds it took to convert, and what it is asked with the right answers."""

    file: Path
    signature: Signature
    seconds: float
    asked: Mapping[str, Arrays]
    answers: Mapping[str, Answers]


def write_second(
    original: Original,
    first: First,
    logged: Signature,
    finished: Callable[[onnx.ModelProto], onnx.ModelProto],
    saved: Callable[[onnx.ModelProto, Path], tuple[str, ...]],
    opset: int,
    work: Path,
) -> SecondForm:
    """Writes `work/double/model.onnx` if the first graph differs, and there is another one for the `logged` signature.

    `finished` gives a graph the outputs that the spec asks for, and `saved` writes it and returns notes. Where there
    is not a graph in FP64, an ensemble's is the first one with the logged types, which its exact trees need.
    """
    progress("comparing the graph with the original")
    if original.batch != -1 or not _differs(first):
        return SecondForm()
    doubles = {spec.name for spec in logged.inputs if spec.datatype == "FP64"}
    types = {datatype: number for number, datatype in onnx_models.DATATYPES.items()}
    inputs = {spec.name: types["FP64" if spec.name in doubles else spec.datatype] for spec in first.signature.inputs}
    wide = any(spec.datatype == "FP64" for spec in logged.outputs)
    try:
        made = original.to_double(opset) if first.seconds <= _SLOW_S else None
        notes = () if first.seconds <= _SLOW_S else (_NOT_MADE.format(why="the conversion takes too long"),)
    except ExportFailed as error:
        made, notes = None, (_NOT_MADE.format(why=error.what),)
    if made is not None:
        model = double_graphs.with_types(finished(made), inputs, wide=wide)
        return SecondForm(graph=_written("FP64 graph", model, work, saved), notes=notes)
    narrow = {spec.name for spec in first.signature.inputs if spec.datatype == "FP32"}
    if not doubles & narrow:
        return SecondForm(notes=notes)
    model = double_graphs.with_wide_inputs(onnx.load(first.file), doubles & narrow)
    return SecondForm(graph=_written("FP32 graph", model, work, saved), notes=notes)


def _written(
    name: FormName, model: onnx.ModelProto, work: Path, saved: Callable[[onnx.ModelProto, Path], tuple[str, ...]]
) -> OfferedGraph:
    (work / FOLDER).mkdir(exist_ok=True)
    notes = saved(model, file := work / FOLDER / "model.onnx")
    signature = onnx_models.signature_of(onnx.load(file, load_external_data=False))
    return OfferedGraph(name=name, folder=FOLDER, signature=signature, notes=notes)


def _differs(first: First) -> bool:
    """Whether the first graph answers a row otherwise, or nearly so, in batches; a large one is not asked."""
    if onnx_models.stored_bytes(first.file) > onnx_models.LARGE_BYTES:
        return False
    try:
        running = onnx_models.session(first.file, lean=True)
    except ExportFailed:
        return True
    end = time.monotonic() + _ASK_S
    for name, inputs in first.asked.items():
        right = first.answers[name]
        seconds = max(0.0, end - time.monotonic())
        served = answers_to(lambda rows: onnx_models.answer(running, rows), inputs, batches=True, seconds=seconds)
        count = min(len(served.errors), len(right.errors), count_of(inputs))
        answered = [row for row in range(count) if right.answered[row]]
        found = compare(right.take(answered), served.take(answered), [name] * len(answered))
        if found.first or (found.worst and found.worst.difference > _CLOSE * found.worst.tolerance):
            return True
    return False
