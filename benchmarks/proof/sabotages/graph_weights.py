"""Sabotages of what a graph knows: weights, tables, categories, classes, and the nodes of its trees."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.proof.sabotages.mutation import Files, Mutation

_FEW = 4  # values that make a tensor of weights
_TABLE = 8  # rows that make a table

Change = Callable[[onnx.ModelProto], str | None]


def of_graph(name: str, change: Change, *, subtle: bool = False) -> Mutation:
    """A mutation that changes the graph of an export."""

    def apply(files: Files) -> str | None:
        model = onnx.load(files.graph)
        what = change(model)
        if what:
            onnx.save(model, files.graph)
        return what

    return Mutation(name=name, of="graph", apply=apply, subtle=subtle)


def _weights(model: onnx.ModelProto, least: int = _FEW) -> Iterator[tuple[onnx.TensorProto, NDArray[Any]]]:
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind == "f" and array.size >= least and np.any(array):
            yield tensor, array.copy()


def _put(tensor: onnx.TensorProto, array: NDArray[Any]) -> None:
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def weight_flipped(model: onnx.ModelProto) -> str | None:
    """The sign of the largest weight of the last tensor."""
    found = list(_weights(model))
    if not found:
        return None
    tensor, array = found[-1]
    at = int(np.abs(array).argmax())
    array.flat[at] = -array.flat[at]
    _put(tensor, array)
    return f"the sign of weight {at} of {tensor.name}"


def usual_weight_flipped(model: onnx.ModelProto) -> str | None:
    """The sign of a weight of usual size of the first tensor."""
    found = [(tensor, array) for tensor, array in _weights(model) if array.ndim > 1]
    if not found:
        return None
    tensor, array = found[0]
    at = int(np.argsort(np.abs(array), axis=None)[int(0.75 * array.size)])
    array.flat[at] = -array.flat[at]
    _put(tensor, array)
    return f"the sign of weight {at} of {tensor.name}"


def bias_missing(model: onnx.ModelProto) -> str | None:
    """A vector of weights becomes zeros."""
    found = [(tensor, array) for tensor, array in _weights(model, least=2) if array.ndim == 1]
    if not found:
        return None
    tensor, array = found[-1]
    _put(tensor, np.zeros_like(array))
    return f"{tensor.name} is zeros"


def other_weights(model: onnx.ModelProto) -> str | None:
    """All weights are those of another version: 1 % off."""
    rng, found = np.random.default_rng(0), list(_weights(model, least=2))
    for tensor, array in found:
        _put(tensor, (array * (1 + rng.normal(scale=0.01, size=array.shape))).astype(array.dtype))
    return f"{len(found)} tensors are 1 % off" if found else None


def table_shifted(model: onnx.ModelProto) -> str | None:
    """Ids are off by one: the rows of the table that a Gather reads."""
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    for tensor, array in _weights(model):
        if tensor.name in tables and array.ndim == 2 and len(array) >= _TABLE:
            _put(tensor, np.roll(array, 1, axis=0))
            return f"the rows of {tensor.name} are shifted by one"
    return None


def _attribute(model: onnx.ModelProto, names: tuple[str, ...], operators: str = "") -> Iterator[Any]:
    for node in model.graph.node:
        if not operators or node.op_type.startswith(operators):
            yield from (attribute for attribute in node.attribute if attribute.name in names)


def classes_shifted(model: onnx.ModelProto) -> str | None:
    """The classes of a classifier are in another order."""
    for attribute in _attribute(model, ("classlabels_int64s", "classlabels_ints", "classlabels_strings")):
        for values in (attribute.ints, attribute.strings):
            if len(values) > 1:
                values[:] = [*values[1:], values[0]]
                return f"{attribute.name} are shifted by one"
    return None


def category_shifted(model: onnx.ModelProto) -> str | None:
    """The categories of an encoder are off by one."""
    for attribute in _attribute(model, ("cats_strings", "cats_int64s", "keys_strings", "keys_int64s")):
        for values in (attribute.ints, attribute.strings):
            if len(values) > 2:
                values[:] = [*values[1:], values[0]]
                return f"{attribute.name} are shifted by one"
    return None


def _floats(model: onnx.ModelProto, *names: str) -> Iterator[tuple[NDArray[Any], Callable[[NDArray[Any]], None]]]:
    """Attributes of tree ensembles that hold floats, and how to replace them."""
    for attribute in _attribute(model, (*names, *(f"{name}_as_tensor" for name in names)), "TreeEnsemble"):
        if attribute.floats:

            def put(array: NDArray[Any], attribute: Any = attribute) -> None:
                attribute.floats[:] = array.tolist()

            yield np.array(attribute.floats, np.float32), put
        elif attribute.t.dims:

            def put_tensor(array: NDArray[Any], attribute: Any = attribute) -> None:
                attribute.t.CopyFrom(numpy_helper.from_array(array))

            yield numpy_helper.to_array(attribute.t).copy(), put_tensor


def _branches(model: onnx.ModelProto) -> NDArray[np.intp]:
    for attribute in _attribute(model, ("nodes_modes",), "TreeEnsemble"):
        return np.flatnonzero([mode != b"LEAF" for mode in attribute.strings])
    return np.array([], np.intp)


def threshold_moved(model: onnx.ModelProto) -> str | None:
    """One threshold is one unit in the last place higher."""
    return _moved(model, np.inf, lambda count: count // 3)


def root_moved(model: onnx.ModelProto) -> str | None:
    """The first threshold is one unit in the last place lower."""
    return _moved(model, -np.inf, lambda _: 0)


def _moved(model: onnx.ModelProto, towards: float, choose: Callable[[int], int]) -> str | None:
    """One finite threshold is one unit in the last place nearer to `towards`."""
    branches = _branches(model)
    for values, put in _floats(model, "nodes_values"):
        finite = branches[np.isfinite(values[branches])]
        if len(finite):
            at = int(finite[choose(len(finite))])
            values[at] = np.nextafter(values[at], values.dtype.type(towards))
            put(values)
            return f"the threshold of node {at} is one ulp {'higher' if towards > 0 else 'lower'}"
    return None


def leaf_changed(model: onnx.ModelProto) -> str | None:
    """The largest leaf is 5 % larger."""
    for values, put in _floats(model, "target_weights", "class_weights"):
        at = int(np.abs(values).argmax())
        values[at] *= 1.05
        put(values)
        return f"leaf {at} is 5 % larger"
    return None


def knows_missing(model: onnx.ModelProto) -> bool:
    """Whether a tree takes missing values to its left branch somewhere."""
    names = ("nodes_missing_value_tracks_true",)
    return any(any(attribute.ints) for attribute in _attribute(model, names, "TreeEnsemble"))


def missing_dropped(model: onnx.ModelProto) -> str | None:
    """Missing values take the other branch everywhere."""
    for attribute in _attribute(model, ("nodes_missing_value_tracks_true",), "TreeEnsemble"):
        if any(attribute.ints):
            attribute.ints[:] = [0] * len(attribute.ints)
            return "missing values never take the left branch"
    return None


def strict_branches(model: onnx.ModelProto) -> str | None:
    """A value on a threshold takes the other branch."""
    for attribute in _attribute(model, ("nodes_modes",), "TreeEnsemble"):
        swapped = {b"BRANCH_LEQ": b"BRANCH_LT", b"BRANCH_LT": b"BRANCH_LEQ"}
        modes = [swapped.get(mode, mode) for mode in attribute.strings]
        if modes != list(attribute.strings):
            attribute.strings[:] = modes
            return "values on thresholds take the other branch"
    return None


def transform_missing(model: onnx.ModelProto) -> str | None:
    """The softmax or sigmoid of a classifier's scores is missing."""
    for node in model.graph.node:
        if node.op_type in ("Softmax", "Sigmoid", "LogSoftmax"):
            del node.attribute[:]
            kind, node.op_type = node.op_type, "Identity"
            return f"{kind} is missing"
        for attribute in node.attribute:
            if attribute.name == "post_transform" and attribute.s not in (b"NONE", b""):
                was, attribute.s = attribute.s.decode(), b"NONE"
                return f"post_transform {was} is missing"
    return None


WEIGHTS = tuple(
    of_graph(name, change, subtle=name.endswith("one-ulp"))
    for name, change in {
        "weight-flipped": weight_flipped,
        "usual-weight-flipped": usual_weight_flipped,
        "bias-missing": bias_missing,
        "other-versions-weights": other_weights,
        "ids-off-by-one": table_shifted,
        "classes-shifted": classes_shifted,
        "category-shifted": category_shifted,
        "threshold-one-ulp": threshold_moved,
        "root-one-ulp": root_moved,
        "leaf-changed": leaf_changed,
        "missing-branch-dropped": missing_dropped,
        "branches-strict": strict_branches,
        "softmax-missing": transform_missing,
    }.items()
)
