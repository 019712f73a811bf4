"""skops files: the types that they would build, and the classes that would build them, against the lists of frameworks.

skops has its own list of trusted types. But asking it imports scikit-learn, and there has been a vulnerability where
its audit and its loader read a file differently. So every node is judged here.
"""

import zipfile
from collections.abc import Iterator
from typing import Any

from shiplift.runtime.admission import allowed
from shiplift.runtime.admission.formats.json_files import NotJson, mappings, member

# The loaders that only build what their node's type says. MethodNode, OperatorFuncNode and ReduceNode are left out.
_LOADERS = {
    "BytearrayNode",
    "BytesNode",
    "CachedNode",
    "DTypeNode",
    "DefaultDictNode",
    "DictNode",
    "FunctionNode",
    "JsonNode",
    "ListNode",
    "LossNode",
    "MaskedArrayNode",
    "NdArrayNode",
    "ObjectNode",
    "PartialNode",
    "QuantileForestNode",
    "RandomGeneratorNode",
    "RandomStateNode",
    "SGDNode",
    "SetNode",
    "SliceNode",
    "SparseMatrixNode",
    "TreeNode",
    "TupleNode",
    "TypeNode",
}
_MEMBERS = (".npy", ".npz", ".bin")


def problems(archive: zipfile.ZipFile, limit_bytes: int) -> Iterator[str]:
    """Why a skops file must not be loaded."""
    yield from (f"it holds {name}" for name in archive.namelist() if not _expected(name))
    try:
        schema = member(archive, "schema.json", limit_bytes)
    except NotJson as error:
        yield str(error)
        return
    yield from dict.fromkeys(problem for node in mappings(schema) for problem in _node(node))


def type_problem(name: str) -> str:
    """Why a type, as `module.Class`, may not be trusted; empty if it may."""
    module, _, short = name.rpartition(".")
    return "" if trusted(module, short) else f"{name} is not on the list of allowed names"


def trusted(module: str, name: str) -> bool:
    """Whether a skops file may build or name this."""
    return allowed.is_framework((module, name)) and not allowed.by_value((module, name))


def _expected(name: str) -> bool:
    return name == "schema.json" or ("/" not in name and name.endswith(_MEMBERS))


def _node(node: dict[str, Any]) -> Iterator[str]:
    if "__loader__" not in node and "__class__" not in node and "__module__" not in node:
        return
    module, name, loader = (str(node.get(f"__{key}__")) for key in ("module", "class", "loader"))
    if loader not in _LOADERS:
        yield f"its loader {loader} is not on the list"
    if not trusted(module, name):
        yield f"it names {module}.{name}, which is not on the list of allowed names"
