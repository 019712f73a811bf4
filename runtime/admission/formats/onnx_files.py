"""ONNX files: operators by allow-list, and weights that must lie inside the model."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from shiplift.runtime.admission import allowed

_STANDARD, _LEARNING = {"", "ai.onnx"}, "ai.onnx.ml"
_NEVER = {"ImageDecoder"}  # its decoder depends on how the server was built
_MAX_DEPTH = 32


def problems(path: Path) -> Iterator[str]:
    """Why an ONNX file must not be opened: it is not ONNX, its weights are elsewhere, or an operator is not allowed."""
    import onnx  # noqa: PLC0415 - in the sandbox only
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        yield "it is truncated, or not an ONNX file"
        return
    if not model.graph.node:
        yield "its graph is empty: it is truncated, or not an ONNX file"
    for tensor in onnx.external_data_helper._get_all_tensors(model):
        info = {entry.key: entry.value for entry in tensor.external_data}
        if "location" in info:
            yield from _location_problems(info["location"], tensor.name, path.parent)
    yield from dict.fromkeys(_operator_problems(model))


def _location_problems(location: str, tensor: str, folder: Path) -> Iterator[str]:
    outside = PurePosixPath(location).is_absolute() or ".." in PurePosixPath(location).parts or "\\" in location
    if outside:
        yield f"the external data of {tensor!r} are outside the model: {location!r}"
    elif not (folder / location).is_file() or (folder / location).is_symlink():
        yield f"the external data of {tensor!r} are missing: {location!r}"


def _operator_problems(model: Any) -> Iterator[str]:
    functions = {(function.domain, function.name) for function in model.functions}
    pending = [(model.graph.node, 0), *((function.node, 0) for function in model.functions)]
    while pending:
        nodes, depth = pending.pop()
        if depth > _MAX_DEPTH:
            yield f"its graphs are nested deeper than {_MAX_DEPTH} levels"
            return
        for node in nodes:
            if (node.domain, node.op_type) not in functions and not _known(node.domain, node.op_type):
                name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
                yield f"it uses the operator {name[:100]}, which is not on the list of operators"
            for attribute in node.attribute:
                inner = [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs
                pending.extend((graph.node, depth + 1) for graph in inner)


def _known(domain: str, operator: str) -> bool:
    if domain == "com.microsoft":
        return operator in allowed.operators("com.microsoft")
    if domain in _STANDARD:
        return operator in _standard("") and operator not in _NEVER
    return domain == _LEARNING and operator in _standard(_LEARNING)


@cache
def _standard(domain: str) -> frozenset[str]:
    """The operators of the standard, in all its versions."""
    import onnx  # noqa: PLC0415

    return frozenset(schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == domain)
