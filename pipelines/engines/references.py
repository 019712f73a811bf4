"""What one module's source refers to in the project, read from its syntax tree without running it.

A module refers to another by importing it, inside a function too, but not for type checkers alone; by its dotted name
in a string, as a sandbox's entry or after `python -m`; or to a file by a path from `__file__`. Paths are followed as
far as they are constant: of `Path(__file__).parent / name` all files of the folder count.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import resolve_name
from typing import Any

PROJECT = __name__.partition(".")[0]
_NAMED = re.compile(rf"({PROJECT}(?:\.\w+)+)(?::\w+)?")  # `shiplift.a.b`, `shiplift.a.b:function`, `shiplift.a.b.Class`
_QUOTED = tuple(f"{quote}{PROJECT}.".encode() for quote in "'\"")  # most modules name none, and are read faster


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
    imports = _Imports(module if package else module.rpartition(".")[0])
    for statement in _statements(tree.body):
        imports.read(statement)
    seen = imports.seen
    if any(quoted in source for quoted in _QUOTED):
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        matches = (_NAMED.fullmatch(text) for text in strings if isinstance(text, str))
        seen.named.update(match[1] for match in matches if match)
    if b"__file__" in source:
        _Paths(module, imports).visit(tree)
    return seen


def _statements(body: Iterable[Any]) -> Iterator[ast.AST]:
    """Every statement, in functions too; not those that only type checkers see."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _statements(node.orelse)
            continue
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _statements(getattr(node, part, ()))


class _Imports:
    """Imports of the project; `aliases` says which module a name in the source stands for."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.seen = References()
        self.aliases: dict[str, str] = {}

    def read(self, node: ast.AST) -> None:
        """Takes in what a statement imports."""
        if isinstance(node, ast.Import):
            for name in node.names:
                self._whole(name)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), self._package)
            if _ours(module):
                self.seen.imported.add(module)
                self._parts(module, node.names)

    def _whole(self, name: ast.alias) -> None:
        """`import a.b`, `import a.b as c`."""
        if _ours(name.name):
            self.seen.imported.add(name.name)
            bound = name.name if name.asname else PROJECT
            self.aliases[name.asname or bound] = bound

    def _parts(self, module: str, names: Iterable[ast.alias]) -> None:
        """`from a.b import c`, `from . import c`."""
        for name in names:
            self.seen.members.add(f"{module}.{name.name}")
            self.aliases[name.asname or name.name] = f"{module}.{name.name}"


class _Paths(ast.NodeVisitor):
    """Paths from `__file__`, each as long as it is constant."""

    def __init__(self, module: str, imports: _Imports) -> None:
        self._module = module
        self._aliases = imports.aliases
        self._seen = imports.seen.paths

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
