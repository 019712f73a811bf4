"""Sabotages of what a graph computes: nodes before its inputs and behind its outputs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from benchmarks.proof.sabotages.graph_weights import knows_missing, of_graph

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
_WHOLE = (TensorProto.INT64, TensorProto.INT32)
_LEAST = 3  # columns or steps whose order can be changed

Nodes = Callable[[str, str], list[onnx.NodeProto]]  # from one tensor to another


def _inputs(model: onnx.ModelProto) -> list[ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _kind(value: ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)


def _rank(value: ValueInfoProto) -> int:
    return len(value.type.tensor_type.shape.dim)


def _size(value: ValueInfoProto, axis: int) -> int:
    return int(value.type.tensor_type.shape.dim[axis].dim_value) if _rank(value) > axis else 0


def _before(model: onnx.ModelProto, name: str, nodes: Nodes) -> None:
    """Puts nodes between an input and everything that reads it."""
    for node in model.graph.node:
        node.input[:] = [f"{name}/sabotaged" if each == name else each for each in node.input]
    for at, node in enumerate(nodes(name, f"{name}/sabotaged")):
        model.graph.node.insert(at, node)


def _behind(model: onnx.ModelProto, name: str, nodes: Nodes) -> None:
    """Puts nodes between an output and what computes it."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{name}/right" if each == name else each for each in names]
    model.graph.node.extend(nodes(f"{name}/right", name))


def _constant(name: str, value: Any, kind: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, kind)))


def outputs_swapped(model: onnx.ModelProto) -> str | None:
    """Two outputs have each other's names."""
    if len(model.graph.output) < 2:
        return None
    left, right = (value.name for value in list(model.graph.output)[:2])
    names = {left: right, right: left}
    for node in model.graph.node:
        node.input[:] = [names.get(each, each) for each in node.input]
        node.output[:] = [names.get(each, each) for each in node.output]
    kinds = [value.type.SerializeToString() for value in list(model.graph.output)[:2]]
    for value, kind in zip(model.graph.output, reversed(kinds), strict=False):
        value.type.ParseFromString(kind)
    return f"{left} and {right} are swapped"


def columns_transposed(model: onnx.ModelProto) -> str | None:
    """The last two columns of an input are swapped."""
    for value in _inputs(model):
        count = _size(value, 1)
        if _rank(value) == 2 and count >= _LEAST:
            order = [*range(count - 2), count - 1, count - 2]

            def nodes(given: str, made: str, order: list[int] = order) -> list[onnx.NodeProto]:
                return [
                    _constant("sabotage/order", order, np.int64),
                    helper.make_node("Gather", [given, "sabotage/order"], [made], axis=1),
                ]

            _before(model, value.name, nodes)
            return f"the last two columns of {value.name} are swapped"
    return None


def inputs_swapped(model: onnx.ModelProto) -> str | None:
    """Two inputs of one type have each other's place."""
    inputs = _inputs(model)
    for at, left in enumerate(inputs):
        for right in inputs[at + 1 :]:
            if _kind(left) == _kind(right) and _rank(left) == _rank(right):
                names = {left.name: right.name, right.name: left.name}
                for node in model.graph.node:
                    node.input[:] = [names.get(each, each) for each in node.input]
                return f"{left.name} and {right.name} are swapped"
    return None


def channels_swapped(model: onnx.ModelProto) -> str | None:
    """Red and blue are swapped."""
    for value in _inputs(model):
        if _rank(value) == 4 and _size(value, 1) == 3:

            def nodes(given: str, made: str) -> list[onnx.NodeProto]:
                return [
                    _constant("sabotage/order", [2, 1, 0], np.int64),
                    helper.make_node("Gather", [given, "sabotage/order"], [made], axis=1),
                ]

            _before(model, value.name, nodes)
            return f"red and blue of {value.name} are swapped"
    return None


def position_transposed(model: onnx.ModelProto) -> str | None:
    """The steps of a sequence come in the reverse order."""
    for value in _inputs(model):
        if _rank(value) == 3 or (_rank(value) == 2 and _kind(value) in _WHOLE):

            def nodes(given: str, made: str) -> list[onnx.NodeProto]:
                return [
                    _constant("sabotage/start", [-1], np.int64),
                    _constant("sabotage/end", [np.iinfo(np.int64).min], np.int64),
                    _constant("sabotage/axis", [1], np.int64),
                    helper.make_node(
                        "Slice",
                        [given, "sabotage/start", "sabotage/end", "sabotage/axis", "sabotage/start"],
                        [made],
                    ),
                ]

            _before(model, value.name, nodes)
            return f"{value.name} is reversed along its second axis"
    return None


def ids_rounded(model: onnx.ModelProto) -> str | None:
    """Whole numbers pass through 32-bit floats."""
    for value in _inputs(model):
        if _kind(value) == TensorProto.INT64:

            def nodes(given: str, made: str) -> list[onnx.NodeProto]:
                return [
                    helper.make_node("Cast", [given], ["sabotage/float"], to=TensorProto.FLOAT),
                    helper.make_node("Cast", ["sabotage/float"], [made], to=TensorProto.INT64),
                ]

            _before(model, value.name, nodes)
            return f"{value.name} passes through float32"
    return None


def missing_is_zero(model: onnx.ModelProto) -> str | None:
    """Missing numbers are taken for 0, where trees know what is missing."""
    for value in _inputs(model):
        if _kind(value) in _FLOATS and knows_missing(model):
            kind = helper.tensor_dtype_to_np_dtype(_kind(value))

            def nodes(given: str, made: str, kind: Any = kind) -> list[onnx.NodeProto]:
                return [
                    _constant("sabotage/zero", 0, kind),
                    helper.make_node("IsNaN", [given], ["sabotage/missing"]),
                    helper.make_node("Where", ["sabotage/missing", "sabotage/zero", given], [made]),
                ]

            _before(model, value.name, nodes)
            return f"NaN in {value.name} is 0"
    return None


def small_is_zero(model: onnx.ModelProto) -> str | None:
    """Numbers below the usual range are cut off, as a graph of unsigned numbers would."""
    for value in _inputs(model):
        if _kind(value) in _FLOATS:
            _before(model, value.name, lambda given, made: [helper.make_node("Relu", [given], [made])])
            return f"negative {value.name} is 0"
    return None


def neighbours_answer(model: onnx.ModelProto) -> str | None:
    """A row gets the answer of the row before it, as stale state would give."""
    name = model.graph.output[0].name

    def nodes(given: str, made: str) -> list[onnx.NodeProto]:
        bounds = {"first": [0], "last": [-1], "end": [np.iinfo(np.int64).max]}
        return [
            *(_constant(f"sabotage/{key}", value, np.int64) for key, value in bounds.items()),
            helper.make_node("Slice", [given, "sabotage/last", "sabotage/end", "sabotage/first"], ["sabotage/tail"]),
            helper.make_node("Slice", [given, "sabotage/first", "sabotage/last", "sabotage/first"], ["sabotage/head"]),
            helper.make_node("Concat", ["sabotage/tail", "sabotage/head"], [made], axis=0),
        ]

    _behind(model, name, nodes)
    return f"rows of {name} get their neighbours' answers"


def neighbours_leak(model: onnx.ModelProto) -> str | None:
    """A hundredth of an answer is the mean of the batch."""
    for value in model.graph.output:
        if _kind(value) in _FLOATS:
            kind = helper.tensor_dtype_to_np_dtype(_kind(value))

            def nodes(given: str, made: str, kind: Any = kind) -> list[onnx.NodeProto]:
                return [
                    _constant("sabotage/share", 0.01, kind),
                    _constant("sabotage/rest", 0.99, kind),
                    _constant("sabotage/batch", [0], np.int64),
                    helper.make_node("ReduceMean", [given, "sabotage/batch"], ["sabotage/mean"], keepdims=1),
                    helper.make_node("Mul", ["sabotage/mean", "sabotage/share"], ["sabotage/leaked"]),
                    helper.make_node("Mul", [given, "sabotage/rest"], ["sabotage/own"]),
                    helper.make_node("Add", ["sabotage/own", "sabotage/leaked"], [made]),
                ]

            _behind(model, value.name, nodes)
            return f"a hundredth of {value.name} is the batch's mean"
    return None


def constant_answer(model: onnx.ModelProto) -> str | None:
    """A number of the answer is off by a thousandth."""
    for value in model.graph.output:
        if _kind(value) in _FLOATS:
            kind = helper.tensor_dtype_to_np_dtype(_kind(value))

            def nodes(given: str, made: str, kind: Any = kind) -> list[onnx.NodeProto]:
                return [
                    _constant("sabotage/factor", 1.002, kind),
                    helper.make_node("Mul", [given, "sabotage/factor"], [made]),
                ]

            _behind(model, value.name, nodes)
            return f"{value.name} is 0.2 % larger"
    return None


NODES = tuple(
    of_graph(name, change)
    for name, change in {
        "outputs-swapped": outputs_swapped,
        "columns-transposed": columns_transposed,
        "inputs-swapped": inputs_swapped,
        "position-transposed": position_transposed,
        "red-and-blue-swapped": channels_swapped,
        "ids-float32": ids_rounded,
        "missing-is-zero": missing_is_zero,
        "negative-is-zero": small_is_zero,
        "neighbours-answer": neighbours_answer,
        "neighbours-leak": neighbours_leak,
        "scaled-answer": constant_answer,
    }.items()
)
