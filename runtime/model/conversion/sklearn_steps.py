"""Functions with steps, as skl2onnx does not write them: it compares in FP32, or takes the wrong side at the step."""

import math
from typing import Any

import numpy as np
from onnx import TensorProto


def register() -> None:
    """Replaces skl2onnx's converters of these transformers."""
    from skl2onnx import update_registered_converter  # noqa: PLC0415 - only for sklearn models
    from sklearn.preprocessing import Binarizer, KBinsDiscretizer  # noqa: PLC0415

    update_registered_converter(Binarizer, "ShipliftBinarizer", _binarized, _convert_binarizer)
    update_registered_converter(KBinsDiscretizer, "ShipliftBins", _binned, _convert_bins)


def _binarized(operator: Any) -> None:
    """As many columns as there are, of the type that is compared."""
    operator.outputs[0].type = _floats(operator)(operator.inputs[0].type.shape)


def _binned(operator: Any) -> None:
    """A column for each feature, or for each bin."""
    bins, kind = operator.raw_operator, _floats(operator)
    width = len(bins.n_bins_) if bins.encode == "ordinal" else int(bins.n_bins_.sum())
    operator.outputs[0].type = kind([operator.inputs[0].get_first_dimension(), width])


def _convert_binarizer(scope: Any, operator: Any, container: Any) -> None:
    """1 above the threshold, and 0 elsewhere."""
    graph = _Nodes(scope, operator, container)
    above = graph.add("Greater", graph.start, graph.constant([float(operator.raw_operator.threshold)]))
    graph.finish(graph.cast(above))


def _convert_bins(scope: Any, operator: Any, container: Any) -> None:
    """How many of the inner edges a value reaches: the number of its bin, or a column of ones and zeros for each."""
    graph, bins = _Nodes(scope, operator, container), operator.raw_operator
    parts = []
    for at, edges in enumerate(bins.bin_edges_):
        column = graph.add("Gather", graph.start, graph.whole([at]), axis=1)
        inner = [float(edge) for edge in edges[1:-1]]
        reached = graph.cast(graph.add("GreaterOrEqual", column, graph.constant(inner or [math.inf])))
        number = graph.add("ReduceSum", reached, graph.whole([1]), keepdims=1)
        if bins.encode != "ordinal":
            known = graph.constant([float(each) for each in range(len(edges) - 1)])
            number = graph.cast(graph.add("Equal", number, known))
        parts.append(number)
    graph.finish(graph.add("Concat", *parts, axis=1))


def _floats(operator: Any) -> Any:
    """The type in which it computes: FP64 for numbers in FP64, else FP32."""
    from skl2onnx.common import data_types as kinds  # noqa: PLC0415

    given = operator.inputs[0].type
    return kinds.DoubleTensorType if isinstance(given, kinds.DoubleTensorType) else kinds.FloatTensorType


class _Nodes:
    """Writes the nodes between an operator's inputs, side by side, and its output."""

    def __init__(self, scope: Any, operator: Any, container: Any) -> None:
        self._scope, self._container = scope, container
        self._out = operator.outputs[0].full_name
        self._kind = operator.outputs[0].type.to_onnx_type().tensor_type.elem_type
        names = [self.cast(each.full_name) for each in operator.inputs]
        self.start = self.add("Concat", *names, axis=1) if len(names) > 1 else names[0]

    def add(self, name: str, *inputs: str, **fields: Any) -> str:
        """An operator's output."""
        out = self._scope.get_unique_variable_name(name.lower())
        self._container.add_node(name, list(inputs), out, name=self._scope.get_unique_operator_name(name), **fields)
        return str(out)

    def cast(self, name: str) -> str:
        """A tensor as the numbers in which it computes."""
        return self.add("Cast", name, to=self._kind)

    def constant(self, values: list[float]) -> str:
        """Numbers in a row."""
        return self._initial(self._kind, values)

    def whole(self, values: list[int]) -> str:
        """Whole numbers in a row."""
        return self._initial(TensorProto.INT64, values)

    def finish(self, name: str) -> None:
        """Makes a tensor the operator's output."""
        self._container.add_node("Identity", [name], self._out, name=self._scope.get_unique_operator_name("Out"))

    def _initial(self, kind: int, values: list[Any]) -> str:
        name = self._scope.get_unique_variable_name("steps")
        self._container.add_initializer(name, kind, [len(values)], np.asarray(values).tolist())
        return str(name)
