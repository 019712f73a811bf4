"""What one module's source refers to in the project, read from its syntax tree without running it.

A module refers to another by importing it, inside a function too, but not for type checkers alone; by its dotted name
in a string, as a sandbox's entry or after `python -m`; or to a file by a path from `__file__`. Paths are followed as
far as they are constant: of `Path(__file__).parent / name` all files of the folder count.
"""

import ast
import re
from dataclasses import dataclass, field
from importlib.util import resolve_name

PROJECT = __name__.partition(".")[0]
_NAMED = re.compile(rf"({PROJECT}(?:\.\w+)+)(?::\w+)?")  # `shiplift.a.b`, `shiplift.a.b:function`, `shiplift.a.b.Class`


@dataclass(frozen=True)
class References:
    """`imported` are modules; `members`, as the `a.b.c` of `from a.b import c`, and `named` may also be part of one.

    A path is relative to a module's file: `Path(__file__).with_name("b.txt")` in `shiplift.a` is
    `("shiplift.a", "../b.txt")`.
    """

    imported: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    paths: set[tuple[str, str]] = field(default_factory=set)


def references(source: bytes, module: str, *, package: bool = False) -> References:
    """What the source of `module` refers to; `package`: it is one's `__init__.py`."""
    tree = ast.parse(source)
    reader = _Reader(module if package else module.rpartition(".")[0])
    reader.visit(tree)
    if b"__file__" in source:
        _Paths(module, reader).visit(tree)
    return reader.seen


class _Reader(ast.NodeVisitor):
    """Imports and names in strings; `aliases` says which module a name in the source stands for."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.seen = References()
        self.aliases: dict[str, str] = {}

    def visit_If(self, node: ast.If) -> None:
        """Leaves out what only type checkers see."""
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        for statement in node.orelse:
            self.visit(statement)

    def visit_Import(self, node: ast.Import) -> None:
        """`import a.b`, `import a.b as c`."""
        for name in node.names:
            if _ours(name.name):
                self.seen.imported.add(name.name)
                bound = name.name if name.asname else name.name.partition(".")[0]
                self.aliases[name.asname or bound] = bound

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """`from a.b import c`, `from . import c`."""
        module = resolve_name("." * node.level + (node.module or ""), self._package)
        if not _ours(module):
            return
        self.seen.imported.add(module)
        for name in node.names:
            self.seen.members.add(f"{module}.{name.name}")
            self.aliases[name.asname or name.name] = f"{module}.{name.name}"

    def visit_Constant(self, node: ast.Constant) -> None:
        """A string that is a module's dotted name, with or without something in it."""
        if isinstance(node.value, str) and (match := _NAMED.fullmatch(node.value)):
            self.seen.named.add(match[1])


class _Paths(ast.NodeVisitor):
    """Paths from `__file__`, each as long as it is constant."""

    def __init__(self, module: str, reader: _Reader) -> None:
        self._module = module
        self._aliases = reader.aliases
        self._seen = reader.seen.paths

    def visit(self, node: ast.AST) -> None:
        """The outermost expression that is a path; there is no other within it."""
        path = self._path(node)
        if path is None:
            self.generic_visit(node)
        else:
            self._seen.add(path)

    def _path(self, node: ast.AST) -> tuple[str, str] | None:
        match node:
            case ast.Name(id="__file__"):
                return self._module, "."
            case ast.Attribute(value=module, attr="__file__"):
                return self._file(ast.unparse(module))
            case ast.Call(func=ast.Name(id="Path"), args=[inner]):
                return self._path(inner)
        step = _step(node)
        start = self._path(step[0]) if step else None
        return (start[0], f"{start[1]}/{step[1]}") if start and step else None

    def _file(self, name: str) -> tuple[str, str] | None:
        """The file of what an import of the project bound."""
        first, dot, rest = name.partition(".")
        return (self._aliases[first] + dot + rest, ".") if first in self._aliases else None


def _step(node: ast.AST) -> tuple[ast.AST, str] | None:
    """What a path goes on from, and where to, if that is constant."""
    match node:
        case ast.Attribute(value=inner, attr="parent"):
            return inner, ".."
        case ast.BinOp(left=inner, op=ast.Div(), right=ast.Constant(value=str(name))):
            return inner, name
        case ast.Call(func=ast.Attribute(value=inner, attr="with_name"), args=[ast.Constant(value=str(name))]):
            return inner, f"../{name}"
    return None


def _ours(module: str) -> bool:
    return module.partition(".")[0] == PROJECT
