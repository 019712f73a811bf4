"""Programs stored as JSON: torch.export's (pt2) and Keras models. Their loaders evaluate or import what they name.

torch evaluates a shape's `expr_str` and a program's `guards_code` as Python, and looks operators up by their dotted
names. Keras imports the `module` of every layer.
"""

import ast
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from shiplift.runtime.admission import allowed
from shiplift.runtime.admission.formats.json_files import NotJson, mappings, member

_PYTHON_OPERATORS = {
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "neg",
    "pos",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "and_",
    "or_",
    "xor",
    "not_",
    "lshift",
    "rshift",
    "getitem",
}
_SYMBOLIC = {
    "sym_float",
    "sym_int",
    "sym_ite",
    "sym_max",
    "sym_min",
    "sym_not",
    "sym_sum",
    "sym_sqrt",
    "sym_constrain_range",
}
_HIGHER_ORDER = {
    "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "cond",
    "scan",
    "while_loop",
    "map_impl",
}
_FUNCTIONS = {
    "Symbol",
    "Integer",
    "Float",
    "Rational",
    "Max",
    "Min",
    "Mod",
    "PythonMod",
    "FloorDiv",
    "CleanDiv",
    "CeilDiv",
    "ModularIndexing",
    "Where",
    "Pow",
    "Abs",
    "Add",
    "Mul",
    "IntTrueDiv",
    "FloatTrueDiv",
    "TruncToInt",
    "TruncToFloat",
    "FloorToInt",
    "CeilToInt",
    "RoundToInt",
    "RoundDecimal",
    "ToFloat",
    "Identity",
    "Eq",
    "Ne",
    "Lt",
    "Le",
    "Gt",
    "Ge",
    "Equality",
    "Unequality",
    "StrictLessThan",
    "LessThan",
    "StrictGreaterThan",
    "GreaterThan",
    "And",
    "Or",
    "Not",
    "Piecewise",
    "ceiling",
    "floor",
    "sqrt",
    "log",
    "exp",
    "PowByNatural",
    "FloatPow",
    "len",
}
_METHODS = {
    "size",
    "stride",
    "storage_offset",
    "dim",
    "numel",
    "isnan",
}
_SHAPE_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.Constant,
    ast.Name,
    ast.Load,
    ast.Call,
    ast.keyword,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.Subscript,
    ast.Attribute,
    ast.Tuple,
    ast.List,
)
_MAX_EXPRESSION = 2000
_PAYLOADS = re.compile(r"(?P<folder>data/(weights|constants))/[^/]+_config\.json$")


def raw_members(archive: zipfile.ZipFile, limit_bytes: int) -> frozenset[str]:
    """The members of a pt2 file that torch reads only as a tensor's numbers, whatever they resemble.

    Random numbers occasionally begin like a script, a compressed file or a pickle. The file says for each tensor
    whether it is pickled; a member that is pickled for one tensor is not raw.
    """
    raw: dict[str, bool] = {}
    for name in archive.namelist():
        if match := _PAYLOADS.search(name):
            try:
                config = member(archive, name, limit_bytes)
            except NotJson:  # `problems` reports it
                continue
            for entry in mappings(config):
                path = f"{name[: match.start()]}{match['folder']}/{entry.get('path_name')}"
                if "path_name" in entry:
                    raw[path] = raw.get(path, True) and entry.get("use_pickle") is False
    return frozenset(path for path, never_pickled in raw.items() if never_pickled)


def problems(archive: zipfile.ZipFile, limit_bytes: int) -> Iterator[str]:
    """Why a pt2 file must not be loaded."""
    names = [name for name in archive.namelist() if name.endswith(".json")]
    if not any("/models/" in name for name in names):
        yield "it has no program as JSON: log it with torch 2.9 or newer"
    for name in archive.namelist():
        if re.search(r"/(aotinductor|custom_obj)|custom_objs?_", name):
            yield f"it holds {name}, which is code or an object of a custom class"
    for name in names:
        try:
            value = member(archive, name, limit_bytes)
        except NotJson as error:
            yield str(error)
            continue
        yield from dict.fromkeys(problem for mapping in mappings(value) for problem in _mapping(mapping))


def _mapping(mapping: dict[str, Any]) -> Iterator[str]:
    for key in ("target", "as_operator"):
        name = mapping.get(key) if "inputs" in mapping or key == "as_operator" else None
        if isinstance(name, str) and not _operator(name):
            yield f"its program uses {name[:100]}, which is not on the list of operators"
    expressions = [mapping["expr_str"]] if "expr_str" in mapping else []
    if "guards_code" in mapping:
        expressions += mapping["guards_code"] if isinstance(mapping["guards_code"], list) else [None]
    for text in expressions:
        if not _is_shape(text):
            yield f"an expression of a shape is code: {str(text)[:100]!r}"
    if mapping.get("as_custom_obj"):
        yield "its program uses an object of a custom class"


def _operator(target: str) -> bool:
    parts = target.split(".")
    if parts[:3] == ["torch", "ops", "aten"]:
        return len(parts) in (4, 5) and (parts[3] in allowed.operators("aten") or parts[3].startswith("sym_"))
    if parts[:3] == ["torch", "ops", "higher_order"]:
        return len(parts) == 4 and parts[3] in _HIGHER_ORDER
    if parts[0] == "torch":
        return len(parts) == 2 and (parts[1] in _SYMBOLIC or parts[1].removeprefix("_") in _SYMBOLIC)
    if parts[0] in ("_operator", "math"):
        return len(parts) == 2 and (parts[1] in _PYTHON_OPERATORS or parts[1] in ("ceil", "floor", "sqrt", "trunc"))
    return False


def _is_shape(text: Any) -> bool:
    """Whether a text only computes with sizes: numbers, names, arithmetic, and a few functions."""
    if not isinstance(text, str) or len(text) > _MAX_EXPRESSION:
        return False
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(isinstance(node, _SHAPE_NODES) and _plain(node) for node in nodes)


def _plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            return function.id in _FUNCTIONS
        return isinstance(function, ast.Attribute) and function.attr in _METHODS
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return isinstance(node.right, ast.Constant) and isinstance(node.right.value, int) and abs(node.right.value) < 64
    if isinstance(node, ast.Attribute):
        return not node.attr.startswith("_")
    return not (isinstance(node, ast.Name) and node.id.startswith("_"))


def keras_problems(archive: zipfile.ZipFile, limit_bytes: int) -> Iterator[str]:
    """Why a `.keras` file must not be loaded."""
    try:
        config = member(archive, "config.json", limit_bytes)
    except NotJson as error:
        yield str(error)
        return
    yield from dict.fromkeys(problem for mapping in mappings(config) for problem in _layer(mapping))


def _layer(mapping: dict[str, Any]) -> Iterator[str]:
    name, module = mapping.get("class_name"), mapping.get("module")
    if name in ("Lambda", "__lambda__", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer", "__numpy__"):
        yield f"it has a layer {name}, which runs its author's code"
    ours = module is None or str(module).split(".")[0] == "keras" or (module == "builtins" and name == "function")
    if name is not None and not ours:
        yield f"it names {module}.{name}, which is not Keras' own"
    if name is not None and str(mapping.get("registered_name") or "").partition(">")[0] not in ("", name, "function"):
        yield f"it names the registered class {mapping['registered_name']}, which is not Keras' own"
