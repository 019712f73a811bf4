"""The digest of a graph without its weights: versions of a model that differ only in weights share it."""

import hashlib
from pathlib import Path

import onnx


def graph_digest(model: Path) -> str:
    """The digest of a graph: operators, attributes, edges, shapes and types, but no weights."""
    loaded = onnx.load(model, load_external_data=False)
    digest = hashlib.sha256()
    for tensor in loaded.graph.initializer:
        digest.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}\n".encode())
    for node in loaded.graph.node:
        attributes = [_describe(attribute) for attribute in node.attribute]
        digest.update(f"{node.op_type} {list(node.input)} {list(node.output)} {attributes}\n".encode())
    return digest.hexdigest()


def _describe(attribute: onnx.AttributeProto) -> str:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return f"{attribute.name} {attribute.t.data_type} {list(attribute.t.dims)}"
    return str(attribute.SerializeToString(deterministic=True))
