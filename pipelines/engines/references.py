"""What a module's source refers to in the project, read from its syntax tree without running it.

A module refers to another by importing it, even inside a function, unless only type checkers see the import; or by its
dotted name in a string, as in a sandbox's entry or after `python -m`. It refers to a file by a path from `__file__`.
Paths are followed as far as they are constant: for `Path(__file__).parent / name`, every file of the folder counts.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import resolve_name
from typing import Any

PROJECT = __name__.partition(".")[0]
_NAMED = re.compile(rf"({PROJECT}(?:\.\w+)+)(?::\w+)?")  # `shiplift.a.b`, `shiplift.a.b:function`, `shiplift.a.b.Class`
_QUOTED = tuple(f"{quote}{PROJECT}.".encode() for quote in "'\"")  # skips most modules, which name no other


@dataclass(frozen=True)
class References:
    """What a module refers to.

    `imported` are modules. `members`, such as `a.b.c` for `from a.b import c`, and `named` are modules or members of
    modules. A path is relative to a module's file: `Path(__file__).with_name("b.txt")` in `shiplift.a` is
    `("shiplift.a", "../b.txt")`.
    """

    imported: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    paths: set[tuple[str, str]] = field(default_factory=set)


def references(source: bytes, module: str, *, package: bool = False) -> References:
    """What the source of `module` refers to; `package` if it is a package's `__init__.py`."""
    tree = ast.parse(source)
    imports = _Imports(module if package else module.rpartition(".")[0])
    for statement in _statements(tree.body):
        imports.read(statement)
    if any(quoted in source for quoted in _QUOTED):
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        matches = (_NAMED.fullmatch(text) for text in strings if isinstance(text, str))
        imports.references.named.update(match[1] for match in matches if match)
    if b"__file__" in source:
        _Paths(module, imports).visit(tree)
    return imports.references


def _statements(body: Iterable[Any]) -> Iterator[ast.AST]:
    """Every statement, including those inside functions, except those that only type checkers see."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _statements(node.orelse)
            continue
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from _statements(getattr(node, part, ()))


class _Imports:
    """The imports of project modules; `aliases` maps names in the source to the modules they stand for."""

    def __init__(self, package: str) -> None:
        self._package = package
        self.references = References()
        self.aliases: dict[str, str] = {}

    def read(self, node: ast.AST) -> None:
        """Adds what a statement imports."""
        if isinstance(node, ast.Import):
            for name in node.names:
                self._whole(name)
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), self._package)
            if _ours(module):
                self.references.imported.add(module)
                self._parts(module, node.names)

    def _whole(self, name: ast.alias) -> None:
        """`import a.b`, `import a.b as c`."""
        if _ours(name.name):
            self.references.imported.add(name.name)
            bound = name.name if name.asname else PROJECT
            self.aliases[name.asname or bound] = bound

    def _parts(self, module: str, names: Iterable[ast.alias]) -> None:
        """`from a.b import c`, `from . import c`."""
        for name in names:
            self.references.members.add(f"{module}.{name.name}")
            self.aliases[name.asname or name.name] = f"{module}.{name.name}"


class _Paths(ast.NodeVisitor):
    """Paths from `__file__`, each up to its last constant part."""

    def __init__(self, module: str, imports: _Imports) -> None:
        self._module = module
        self._aliases = imports.aliases
        self._paths = imports.references.paths

    def visit(self, node: ast.AST) -> None:
        """Stops at the outermost expression that is a path: there is no other inside it."""
        path = self._path(node)
        if path is None:
            self.generic_visit(node)
        else:
            self._paths.add(path)

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
        """The file of a module that an import bound to this name."""
        first, dot, rest = name.partition(".")
        return (self._aliases[first] + dot + rest, ".") if first in self._aliases else None


def _step(node: ast.AST) -> tuple[ast.AST, str] | None:
    """The path that an expression extends, and the constant part it adds; None if that part is not constant."""
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
