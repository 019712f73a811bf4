"""Where in a graph the rows of a batch mix: the first node whose value for a row depends on the row beside it."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from shiplift.runtime.model import onnx_models
from shiplift.runtime.model.tensors import Arrays

_TOLERANCE = 1e-4  # of the largest value of the row


def first_mixing(model: onnx.ModelProto, inputs: Arrays) -> str:
    """The node, with its type and name as the exporter gave it; empty if none is found, or the model is large.

    `inputs` have two rows. Only tensors that have the batch as their first axis are seen.
    """
    if model.ByteSize() > onnx_models.LARGE_BYTES:
        return ""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    nodes = [node for node in model.graph.node if node.output and node.output[0]]
    names = [node.output[0] for node in nodes]
    del observed.graph.output[:]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        alone, beside = _values(observed, [{name: array[:1] for name, array in inputs.items()}, inputs])
    except Exception:  # it is only to say more
        return ""
    pairs = zip(nodes, names, strict=True)
    return next((_named(node) for node, name in pairs if _mixed(alone.get(name), beside.get(name))), "")


def _values(observed: onnx.ModelProto, batches: list[Arrays]) -> list[Arrays]:
    with TemporaryDirectory() as folder:
        running = onnx_models.observing_session(observed, Path(folder) / "model.onnx")
        return [onnx_models.answer(running, inputs) for inputs in batches]


def _mixed(alone: NDArray[Any] | None, beside: NDArray[Any] | None) -> bool:
    if alone is None or beside is None or not alone.shape or (len(alone), len(beside)) != (1, 2):
        return False
    one, other = np.asarray(alone[0]), np.asarray(beside[0])  # a text is not an array
    absolute, relative = onnx_models.differences(one, other)
    return one.shape != other.shape or min(absolute, relative) > _TOLERANCE


def _named(node: onnx.NodeProto) -> str:
    training = next((bool(attribute.i) for attribute in node.attribute if attribute.name == "training_mode"), False)
    how = ", which is in training mode: call `model.eval()` before you log it" if training else ""
    return f"{node.op_type} {node.name!r}{how}" if node.name else f"{node.op_type}{how}"
