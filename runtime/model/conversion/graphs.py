"""ONNX models whose weights are too large to hold twice, or for one protobuf (2 GiB).

Only the graph is loaded. The weights are moved or copied as files next to the place where the model will be written.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from shiplift.runtime.model.onnx_models import INLINE_BYTES

_AXES = "shiplift/samples_axis"


def load(file: Path, to: Path, *, move: bool = False) -> onnx.ModelProto:
    """The model in a file with its weights or, if those exceed `INLINE_BYTES`, with references to them.

    The referenced weights are copied (or moved) into the folder `to`, and the model must then be written there.
    """
    model = onnx.load(file, load_external_data=False)
    outside = [tensor for tensor in external_data_helper._get_all_tensors(model) if _location(tensor)]
    sources = sorted({_location(tensor) for tensor in outside})
    if sum((file.parent / source).stat().st_size for source in sources) <= INLINE_BYTES:
        external_data_helper.load_external_data_for_model(model, str(file.parent))
        return model
    names = {source: f"weights-{index}.bin" for index, source in enumerate(sources)}
    for source, name in names.items():
        (shutil.move if move else shutil.copyfile)(file.parent / source, to / name)
    for tensor in outside:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model. Weights that exceed `INLINE_BYTES` go into a separate file.

    Raises:
        onnx.checker.ValidationError: the model is not valid.
    """
    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > INLINE_BYTES
    onnx.save(model, path, save_as_external_data=large, location="weights.bin" if large else None)
    onnx.checker.check_model(str(path))


def with_samples_axis(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The model with an axis of size 1 in front of each input and output that has one axis less than in `shapes`.

    If there is any such tensor, all sizes in the graph become those of `shapes`.
    """
    graph = model.graph
    values = [value for value in (*graph.input, *graph.output) if value.name in shapes]
    lacking = [value for value in values if _rank(value) == len(shapes[value.name]) - 1]
    if not lacking:
        return model
    graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), _AXES))
    inner = {value.name: f"{value.name}/one_sample" for value in lacking}
    _rename(graph, inner)
    inputs = {value.name for value in graph.input}
    for name, renamed in inner.items():
        if name in inputs:
            graph.node.insert(0, helper.make_node("Squeeze", [name, _AXES], [renamed]))
        else:
            graph.node.append(helper.make_node("Unsqueeze", [renamed, _AXES], [name]))
    for value in values:
        dims = [None if size == -1 else size for size in shapes[value.name]]
        value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, dims))
    return model


def with_known_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the sizes that its exporter knew, where a Reshape to a computed shape leaves one to be inferred.

    OpenVINO knows less than the exporter wrote down: it takes a size that follows from others for a dynamic one.
    """
    graph = model.graph
    known = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in graph.value_info}
    inferred = {t.name for t in graph.initializer if t.data_type == TensorProto.INT64 and _is_minus_one(t)}
    shapes = {node.output[0]: node for node in graph.node if node.op_type == "Concat"}
    for at, node in reversed(list(enumerate(graph.node))):
        shape = shapes.get(node.input[1]) if node.op_type == "Reshape" else None
        sizes = known.get(node.output[0], [])
        if shape is None or len(shape.input) != len(sizes):
            continue
        parts = [
            _known(graph, size) if name in inferred and size else name
            for name, size in zip(shape.input, sizes, strict=True)
        ]
        node.input[1] = f"{node.output[0]}/shape"
        graph.node.insert(at, helper.make_node("Concat", parts, [node.input[1]], axis=0))
    return model


def _is_minus_one(tensor: TensorProto) -> bool:
    return list(tensor.dims) == [1] and int(numpy_helper.to_array(tensor)[0]) == -1


def _known(graph: onnx.GraphProto, size: int) -> str:
    name = f"shiplift/size_{size}"
    if name not in {tensor.name for tensor in graph.initializer}:
        graph.initializer.append(numpy_helper.from_array(np.array([size], np.int64), name))
    return name


def _rank(value: onnx.ValueInfoProto) -> int | None:
    kind = value.type.tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Renames tensors where nodes use them, also in inner graphs: in ONNX, an inner graph can't redefine a name."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                _rename(inner, names)
                for output in inner.output:
                    output.name = names.get(output.name, output.name)


def _location(tensor: TensorProto) -> str:
    if tensor.data_location != TensorProto.EXTERNAL:
        return ""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
