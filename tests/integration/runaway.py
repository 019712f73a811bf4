"""Models that answer at once, except for one input: that one keeps them busy for years."""

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

MAGIC = 4242.0
EVER = 2**62
_SIDE, _WINDOW = 6001, 6001  # 36 million windows of 36 million numbers


def looping() -> Any:
    """y = x, after a Loop whose trip count is 2^62 if a sample is MAGIC: every iteration is short."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["still"]), helper.make_node("Mul", ["carried", "unit"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, ["n", 1]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, ["n", 1]),
        ],
    )
    return _model([*_chosen(EVER, 1), helper.make_node("Loop", ["chosen", "", "x"], ["y"], body=body)])


def endless() -> Any:
    """y = x + a maximum over windows that are huge if a sample is MAGIC: one kernel, which nothing interrupts."""
    window = {"kernel_shape": [_WINDOW] * 2, "pads": [_WINDOW // 2] * 4}
    nodes = [
        *_chosen(_SIDE, 2),
        helper.make_node("Reshape", ["chosen", "vector"], ["side"]),
        helper.make_node("Concat", ["ones", "side", "side"], ["image_shape"], axis=0),
        helper.make_node("Expand", ["image", "image_shape"], ["picture"]),
        helper.make_node("MaxPool", ["picture"], ["pooled"], **window),
        helper.make_node("ReduceMax", ["pooled"], ["greatest"], keepdims=0),
        helper.make_node("Mul", ["greatest", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["y"]),
    ]
    return _model(
        nodes,
        vector=np.array([1], np.int64),
        ones=np.array([1, 1], np.int64),
        image=np.ones((1, 1, 1, 1), np.float32),
        zero=np.float32(0),
    )


def _chosen(magic: int, otherwise: int) -> list[Any]:
    """Nodes that give the scalar `chosen`: `magic` if the largest sample is MAGIC."""
    constants = {"magic": np.array(magic, np.int64), "otherwise": np.array(otherwise, np.int64)}
    values = [helper.make_node("Constant", [], [k], value=numpy_helper.from_array(v)) for k, v in constants.items()]
    return [
        *values,
        helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
        helper.make_node("Equal", ["largest", "trigger"], ["triggered"]),
        helper.make_node("Where", ["triggered", "magic", "otherwise"], ["chosen"]),
    ]


def _model(nodes: list[Any], **constants: Any) -> Any:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 1]) for name in "xy")
    values = {"trigger": np.float32(MAGIC), "unit": np.float32(1)} | constants
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
