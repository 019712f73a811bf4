"""A small graph with data, for sandboxes that rehearse: engines work longest at their first graph."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from shiplift.runtime.model.tensors import dump_npz
from shiplift.runtime.records.tensor import Signature, TensorSpec

INPUT, OUTPUT = "input", "output"
_SIDE, _CLASSES = 8, 2


def write_small_graph(file: Path) -> Signature:
    """Writes a convolution and a product with weights, from float32 (batch, 1, 8, 8) to (batch, 2)."""
    draw = np.random.default_rng(0)
    weights = {
        "kernel": draw.normal(size=(2, 1, 3, 3)),
        "weights": draw.normal(size=(2 * _SIDE * _SIDE, _CLASSES)),
    }
    nodes = [
        helper.make_node("Conv", [INPUT, "kernel"], ["seen"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["seen"], ["positive"]),
        helper.make_node("Flatten", ["positive"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], [OUTPUT]),
    ]
    tensors = [(INPUT, ["batch", 1, _SIDE, _SIDE]), (OUTPUT, ["batch", _CLASSES])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in tensors)
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "small", [x], [y], constants)
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), file)
    return Signature(
        inputs=(TensorSpec(name=INPUT, datatype="FP32", shape=(-1, 1, _SIDE, _SIDE)),),
        outputs=(TensorSpec(name=OUTPUT, datatype="FP32", shape=(-1, _CLASSES)),),
    )


def write_small_samples(file: Path, count: int, *, prefix: str = "", **more: NDArray[Any]) -> Path:
    """Writes an NPZ with `count` inputs for that graph, named `prefix` and the input's name, and `more` arrays."""
    rows = np.random.default_rng(1).normal(size=(count, 1, _SIDE, _SIDE)).astype(np.float32)
    file.write_bytes(dump_npz({f"{prefix}{INPUT}": rows, **more}))
    return file
