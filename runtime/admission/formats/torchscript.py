"""TorchScript archives: the operators that their programs call, read as text and never compiled."""

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path

from shiplift.runtime.admission import allowed

MAX_CODE_BYTES = 16 << 20
# What the serialized language has in addition to operators: types and conversions.
_BUILTINS = {
    "annotate",
    "unchecked_cast",
    "uninitialized",
    "int",
    "float",
    "bool",
    "str",
    "list",
    "dict",
    "tuple",
    "len",
    "range",
    "isinstance",
    "min",
    "max",
    "abs",
    "round",
    "complex",
}
_NEVER = {"save", "from_file", "load", "set_data", "_print"}  # as a tensor's method too, whatever defines it


def file_problems(file: Path) -> Iterator[str]:
    """The same for a file. A file that is not an archive is a problem too."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield from problems(archive)
    except (zipfile.BadZipFile, OSError, ValueError, RuntimeError) as error:
        yield f"it can't be read as TorchScript: {error}"


def problems(archive: zipfile.ZipFile) -> Iterator[str]:
    """Why the program of a TorchScript archive must not run."""
    sources = [
        member for member in archive.infolist() if "/code/" in member.filename and member.filename.endswith(".py")
    ]
    size = sum(member.file_size for member in sources)
    if size > MAX_CODE_BYTES:
        yield f"its program has {size} bytes, the limit is {MAX_CODE_BYTES}"
        return
    trees = {}
    for member in sources:
        try:
            trees[member.filename] = ast.parse(archive.read(member))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            yield f"{member.filename} can't be read: {type(error).__name__}"
    defined = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    used = dict.fromkeys(name for tree in trees.values() for name in _uses(tree, defined))
    yield from (f"its program uses {name}, which is not on the list of operators" for name in used)


def _uses(tree: ast.AST, defined: set[str]) -> Iterator[str]:
    """Everything that the program uses and that is not allowed."""
    local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield "an import"
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Attribute | ast.Name) and not isinstance(node, ast.Attribute):
                name = _dotted(child)
                if name and not _allowed(name):
                    yield name
        if isinstance(node, ast.Call) and not (_callable(node.func, defined, local) or _gets_attribute(node)):
            yield _dotted(node.func) or f"a method {getattr(node.func, 'attr', 'of a value')}"


def _callable(function: ast.AST, defined: set[str], local: set[str]) -> bool:
    if isinstance(function, ast.Name):
        return function.id in _BUILTINS | local | defined
    if not isinstance(function, ast.Attribute):
        return False
    if _dotted(function).split(".")[0] in ("torch", "ops", "__torch__"):
        return True  # it is judged as a name
    return function.attr not in _NEVER and (function.attr in defined or function.attr in allowed.operators("aten"))


def _gets_attribute(call: ast.Call) -> bool:
    """`getattr(self, "0")`, as the attributes of a Sequential are written."""
    named = isinstance(call.func, ast.Name) and call.func.id == "getattr" and len(call.args) == 2
    name = call.args[1] if named else None
    return isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value not in _NEVER


def _dotted(node: ast.AST) -> str:
    """`torch.ops.x` for the attributes of a plain name; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _allowed(name: str) -> bool:
    """Whether a dotted name is a listed operator, or not an operator at all. A bare namespace could be renamed."""
    head, _, rest = name.partition(".")
    if head == "torch":
        return rest in allowed.operators("aten")
    if head == "ops":
        namespace, _, operator = rest.partition(".")
        return namespace in ("aten", "prim") and operator in allowed.operators(namespace)
    return True
