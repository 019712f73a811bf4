"""Graphs with a fixed batch: run in batches of that size, and given a dynamic batch where that changes no answer.

Authors export with the batch that their example had. Most such graphs say so only in the shapes of their inputs and in
constants of Reshape nodes. The answers decide whether a rewritten graph is right, here and again where none of the
model's code has run (`admission/verification.py`).
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from shiplift.runtime.base.errors import ExportFailed
from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.conversion import graphs
from shiplift.runtime.model.conversion.mixing import first_mixing
from shiplift.runtime.model.tensors import Arrays, concatenate
from shiplift.runtime.records.proof import Counterexample

DYNAMIC_NOTE = "The graph's fixed batch of {} was made dynamic: batches of 2 and 7 get the answers of single samples."
MIXING_NOTE = (
    "Warning: served one sample at a time, without batching: a sample's answer depends on others in its batch{}, as "
    "{}. Make the model treat samples one by one, and it is served in batches."
)
CONVERTED_NOTE = (
    "Warning: served one sample at a time, without batching: the converter to ONNX wrote a graph in which a sample's "
    "answer depends on others in its batch{}, as {}. The model itself treats samples one by one."
)
SINGLE_NOTE = "Served one sample at a time: the graph has a fixed batch of 1 that can't be made dynamic."
_TOLERANCE = 1e-4  # relative to the largest value: a sample's answer must not depend on its neighbours


def answer_in_batches(answer: Callable[[Arrays], Arrays], inputs: Arrays, size: int) -> Arrays:
    """The answers to all samples, `size` at a time; the last batch is filled up with its first sample."""
    count = len(next(iter(inputs.values())))
    pieces = []
    for start in range(0, count, size):
        at = np.minimum(np.arange(start, start + size), count - 1)
        pieces.append(answer({name: array[at] for name, array in inputs.items()}))
    return {name: array[:count] for name, array in concatenate(pieces).items()}


def save_with_any_batch(
    model: onnx.ModelProto, path: Path, feeds: Mapping[str, Arrays], answers: Mapping[str, list[NDArray[Any]]]
) -> tuple[str, ...]:
    """Writes the model, with a dynamic batch if that gives the same `answers` to `feeds`; returns notes.

    Both are by the set's name; answers are in the graph's order. A batch of 1 that can't be made dynamic is kept.

    Raises:
        ExportFailed: a larger batch is fixed in the graph.
    """
    batch = onnx_models.signature_of(model).batch
    if batch == -1:
        graphs.save(free_batch(model, -1), path)
        return ()
    freed = onnx.ModelProto()
    freed.CopyFrom(model)
    reason = _problem(free_batch(freed, batch), path, feeds, answers)
    if not reason:
        return (DYNAMIC_NOTE.format(batch),)
    if batch > 1:
        raise ExportFailed(
            f"the graph has the fixed batch size {batch}, and can't be made to take others: {reason}",
            do="Export it with a dynamic first dimension: `torch.onnx.export(model, x, 'model.onnx', "
            "dynamic_shapes=({0: 'batch'},))`; or with a batch of 1.",
        )
    graphs.save(model, path)
    return (SINGLE_NOTE,)


def save_for_one_sample(
    model: onnx.ModelProto, path: Path, mixes: Counterexample, rows: Arrays, note: str = MIXING_NOTE
) -> tuple[str, ...]:
    """Writes the model with a batch of 1, for one whose answer to a row depends on its neighbours; returns notes.

    `rows` are two or more as the graph takes them, which show where they mix. `note` says whose fault it is.
    """
    node = first_mixing(free_batch(model, -1), {name: array[:2] for name, array in rows.items()})
    for dims in _first_dimensions(model.graph):
        dims.dim_value = 1
    del model.graph.value_info[:]
    graphs.save(model, path)
    return (note.format(f" from {node} on" if node else "", mixes),)


def _first_dimensions(graph: onnx.GraphProto) -> Iterator[Any]:
    """Those of the inputs that are no weights, and of the outputs."""
    constants = {tensor.name for tensor in graph.initializer}
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and value.name not in constants:
            yield dims[0]


def _problem(
    model: onnx.ModelProto, path: Path, feeds: Mapping[str, Arrays], answers: Mapping[str, list[NDArray[Any]]]
) -> str:
    """Why the model, written to `path`, does not give these answers; empty if it does."""
    try:
        graphs.save(model, path)
        running = onnx_models.session(path, lean=True)
        for name, inputs in feeds.items():
            actual = onnx_models.answer(running, inputs).values()
            if any(_differs(left, right) for left, right in zip(answers[name], actual, strict=True)):
                return "the answers to a batch differ from those to its samples"
    except Exception as error:
        return " ".join(str(error).split())[:200]
    return ""


def _differs(expected: NDArray[Any], actual: NDArray[Any]) -> bool:
    absolute, relative = onnx_models.differences(np.asarray(expected), np.asarray(actual))
    return np.shape(expected) != np.shape(actual) or not (absolute <= _TOLERANCE or relative <= _TOLERANCE)


def free_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """The model with a dynamic first dimension on inputs and outputs, and in the Reshapes that repeat a fixed `batch`.

    Raises:
        ExportFailed: an output has another fixed size there.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims and value.name not in constants:
            if dims[0].dim_value not in (0, 1, batch):
                raise ExportFailed(
                    f"{value.name!r} has the fixed batch size {dims[0].dim_value} in the graph",
                    do="Export it with a dynamic first dimension: `torch.onnx.export(model, x, 'model.onnx', "
                    "dynamic_shapes=({0: 'batch'},))`.",
                )
            dims[0].ClearField("dim_value")
            dims[0].dim_param = "batch"
    if batch != -1:
        del model.graph.value_info[:]
        _free_reshapes(model.graph, batch)
    return model


def _free_reshapes(graph: onnx.GraphProto, batch: int) -> None:
    """Makes the Reshapes of tensors that depend on an input keep any batch. Reshapes of weights stay as they are."""
    values = {tensor.name: tensor for tensor in graph.initializer}
    values |= {node.output[0]: node.attribute[0].t for node in graph.node if _is_constant(node)}
    moving = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if not moving & set(node.input):
            continue
        moving |= set(node.output)
        if node.op_type == "Reshape" and node.input[0] in moving and node.input[1] in values:
            node.input[1] = _freed_shape(graph, numpy_helper.to_array(values[node.input[1]]), batch, node.input[1])


def _freed_shape(graph: onnx.GraphProto, shape: NDArray[Any], batch: int, name: str) -> str:
    """The name of a shape whose first size is inferred, or copied from the input if another size is inferred."""
    if not shape.size or shape[0] != batch:
        return name
    freed = np.array([0 if -1 in shape else -1, *shape[1:]], np.int64)
    new = f"{name}/any_batch"
    if new not in {tensor.name for tensor in graph.initializer}:
        graph.initializer.append(numpy_helper.from_array(freed, new))
    return new


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].HasField("t")
