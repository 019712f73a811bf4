"""What an ONNX graph says about its inputs: tables that ids look up, categories, and trees on a matrix."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from shiplift.runtime.model.reading.found import LEAF, OTHER, Found, Tree, of_trees, together
from shiplift.runtime.model.reading.recording import Column, of_matrix, recorded
from shiplift.runtime.model.reading.rounding import below_float32, up_to_float32
from shiplift.runtime.records.facts import ModelFacts
from shiplift.runtime.records.tensor import TensorSpec

_SAME = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand")  # each element stays as it is
_TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
_TO_LEFT = {"BRANCH_LEQ": up_to_float32, "BRANCH_LT": below_float32}


def facts_of(graph: onnx.GraphProto, inputs: tuple[TensorSpec, ...]) -> ModelFacts:
    """What the nodes right behind the inputs say; those behind other nodes say nothing."""
    try:
        return _facts(graph, inputs)
    except Exception as error:  # the author's graph may say anything, and facts only help
        return ModelFacts(inputs=inputs, notes=(f"The graph could not be read: {' '.join(str(error).split())[:200]}.",))


def _facts(graph: onnx.GraphProto, inputs: tuple[TensorSpec, ...]) -> ModelFacts:
    sources = _sources(graph, {spec.name: at for at, spec in enumerate(inputs)})
    sizes = {tensor.name: int(tensor.dims[0]) for tensor in graph.initializer if len(tensor.dims) > 1}
    found = together(each for node in graph.node for each in _of_node(node, sources, sizes))
    matrix = of_matrix(inputs[0]) if len(inputs) == 1 and len(inputs[0].shape) == 2 else []
    columns: list[Column] = [*((spec.name, None) for spec in inputs), *matrix]
    in_matrix = {at: len(inputs) + at for at in range(len(matrix))}
    split = replace(found.at(in_matrix), tables={}, categories={})
    return recorded(together([replace(found, trees=()), split]), inputs, columns)


def _sources(graph: onnx.GraphProto, columns: Mapping[str, int]) -> dict[str, int]:
    """The values whose elements are an input's, by the input's place; nodes are in the order of computation."""
    sources = dict(columns)
    for node in graph.node:
        if node.op_type in _SAME and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
    return sources


def _of_node(node: onnx.NodeProto, sources: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[Found]:
    taken = next((sources[name] for name in node.input if name in sources), None)
    if taken is None:
        return
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Gather" and node.input[0] in sizes and not attributes.get("axis", 0):
        yield Found(tables={taken: sizes[node.input[0]]})
    elif node.op_type in ("LabelEncoder", "OneHotEncoder"):
        names = ("keys_strings", "keys_int64s", "keys_floats", "cats_strings", "cats_int64s")
        values = [value for name in names for value in attributes.get(name, ())]
        yield Found(categories={taken: tuple(v.decode() if isinstance(v, bytes) else v for v in values)})
    elif node.op_type in _TREES:
        yield of_trees(list(_trees(attributes)))


def _trees(attributes: Mapping[str, Any]) -> Iterator[Tree]:
    """The trees of an ensemble, whose nodes are in lists one after the other."""
    of_tree = np.array(attributes["nodes_treeids"])
    for tree in np.unique(of_tree):
        nodes = np.flatnonzero(of_tree == tree)
        part = {name: np.asarray(attributes[f"nodes_{name}"])[nodes] for name in _FIELDS}
        places = {int(node): place for place, node in enumerate(part["nodeids"])}
        modes = [mode.decode() for mode in part["modes"]]
        values = np.asarray(part["values"], np.float64)
        bounds = [_TO_LEFT[mode](values[at : at + 1])[0] if mode in _TO_LEFT else 0.0 for at, mode in enumerate(modes)]
        kinds = [
            LEAF if mode == "LEAF" else int(column) if mode in _TO_LEFT else OTHER
            for mode, column in zip(modes, part["featureids"], strict=True)
        ]
        yield Tree(
            feature=np.array(kinds, np.int64),
            bound=np.array(bounds),
            left=np.array([places[int(node)] for node in part["truenodeids"]]),
            right=np.array([places[int(node)] for node in part["falsenodeids"]]),
        )


_FIELDS = ("nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
