"""Graphs that compute in FP64: what skl2onnx writes in double, made right where ONNX or ONNX Runtime lack a double.

Operators for machine learning answer in FP32 whatever they take, and some converters mix both types. The trees of
scikit-learn's forests round features to FP32 first, those of its histogram boosting don't.
"""

from collections.abc import Collection, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

_FLOAT, _DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
_LEARNING = "ai.onnx.ml"
_OPSET = 15  # the newest that onnxmltools writes
_IN_FLOAT = {  # the output that is FP32 in any case
    "TreeEnsembleClassifier": 1,
    "TreeEnsembleRegressor": 0,
    "SVMClassifier": 1,
    "SVMRegressor": 0,
    "LinearClassifier": 1,
    "LinearRegressor": 0,
    "Scaler": 0,
    "Normalizer": 0,
    "OneHotEncoder": 0,
}
_FLAGS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Xor", "IsNaN", "IsInf")
_FIXED = dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"), int(TensorProto.INT64))
_FIXED |= dict.fromkeys(_FLAGS, int(TensorProto.BOOL))
_TYPED_BY = {"Where": 1, "OneHot": 2}  # the input that has the output's type; of others, the first

Types = dict[str, int]


def consistent(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a cast wherever FP32 meets FP64, or comes out of an operator that is declared to answer FP64."""
    graph = model.graph
    types: Types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes += _widened(node, types)
        nodes.append(node)
        nodes += _answered(node, types)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.elem_type = types.get(output.name) or output.type.tensor_type.elem_type
    return model


def with_types(model: onnx.ModelProto, inputs: Mapping[str, int], *, wide: bool) -> onnx.ModelProto:
    """The model with other types in place of FP64 where clients send or get these; inside, nothing changes.

    `inputs` has ONNX's number of the type that clients send, by input; `wide` says whether they get FP64.
    """
    graph = model.graph
    nodes = list(graph.node)
    for value in graph.input:
        sent = inputs.get(value.name, _DOUBLE)
        if sent != _DOUBLE and _type_of(value) == _DOUBLE:
            _rename(nodes, value.name, inner := f"{value.name}/double")
            value.type.tensor_type.elem_type = sent
            nodes.insert(0, _cast(value.name, inner, _DOUBLE))
    for value in graph.output if not wide else ():
        if _type_of(value) == _DOUBLE:
            _rename(nodes, value.name, inner := f"{value.name}/double")
            value.type.tensor_type.elem_type = _FLOAT
            nodes.append(_cast(inner, value.name, _FLOAT))
    del graph.node[:]
    graph.node.extend(nodes)
    return with_own_operators(model)


def with_wide_inputs(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    """The model with FP64 in place of FP32 in these inputs, which are rounded inside."""
    nodes = list(model.graph.node)
    for value in model.graph.input:
        if value.name in names:
            _rename(nodes, value.name, inner := f"{value.name}/float")
            value.type.tensor_type.elem_type = _DOUBLE
            nodes.insert(0, _cast(value.name, inner, _FLOAT))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return with_own_operators(model)


def with_own_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a version of ONNX's own operators, which a graph of trees alone does not declare."""
    if all(entry.domain for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", _OPSET))
    return model


def rounding(model: onnx.ModelProto, trees: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """The model with features rounded to FP32 before these ensembles of trees compare them, still as FP64."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node in trees:
            source, name = node.input[0], node.output[0]
            nodes += [
                _cast(source, f"{name}/rounded", _FLOAT),
                _cast(f"{name}/rounded", f"{name}/features", _DOUBLE),
            ]
            node.input[0] = f"{name}/features"
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def computes_in_double(graph: onnx.GraphProto) -> bool:
    """Whether the graph's weights are FP64."""
    kinds = {tensor.data_type for tensor in graph.initializer if len(tensor.dims) and max(tensor.dims) > 1}
    return _DOUBLE in kinds and not kinds & {_FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def _widened(node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto]:
    """Casts of the inputs in FP32 of a node that has others in FP64."""
    kinds = {types.get(name) for name in node.input}
    if node.domain == _LEARNING or node.op_type in ("Cast", "Pow") or not {_FLOAT, _DOUBLE} <= kinds:
        return []
    casts = []
    for at, name in enumerate(node.input):
        if types.get(name) == _FLOAT:
            node.input[at] = f"{node.output[0]}/double_{at}"
            casts.append(_cast(name, node.input[at], _DOUBLE))
    return casts


def _answered(node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto]:
    """Notes the types of a node's outputs; returns the cast of one that is FP32 in any case to FP64."""
    at = _IN_FLOAT.get(node.op_type)
    if node.domain == _LEARNING and at is not None:
        name = node.output[at]
        node.output[at] = f"{name}/float"
        types[name] = _DOUBLE
        return [_cast(node.output[at], name, _DOUBLE)]
    kind = _kind(node, types)
    types.update((name, kind) for name in node.output if kind)
    return []


def _kind(node: onnx.NodeProto, types: Types) -> int:
    """The type of a node's output; 0: unknown."""
    fields = {field.name: field for field in node.attribute}
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type == "Cast":
        return int(fields["to"].i)
    if node.op_type in ("Constant", "ConstantOfShape"):
        return int(fields["value"].t.data_type) if "value" in fields else 0
    if node.op_type == "LabelEncoder":
        return int(_FLOAT) if "values_floats" in fields else 0
    kinds = [types.get(name, 0) for name in node.input]
    joined = _DOUBLE in kinds and node.op_type not in ("Gather", "ArrayFeatureExtractor", "Pow", "OneHot")
    return int(_DOUBLE) if joined else [*kinds, 0][_TYPED_BY.get(node.op_type, 0)]


def _cast(source: str, to: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [to], to=kind)


def _rename(nodes: Sequence[onnx.NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _type_of(value: onnx.ValueInfoProto) -> int:
    return int(value.type.tensor_type.elem_type)
