"""Mutants of a module: mutmut's operators at every site, and a sample of sites that an edit elsewhere does not change.

A site is a node of the syntax tree. It is known by its function and its number there, so neither a reformatted file nor
another function's edit changes which sites a sample has. Left out is what can't show a weak test: texts for people,
annotations of types, and arguments by position, without which a call fails at once.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import CodeType

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_NEVER = (cst.Decorator, cst.Import, cst.ImportFrom, cst.NameItem)
_TEXTS = ("description", "title")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of a module: where it is, what it replaces by what, and the module's whole source with it.

    `function` is empty for what runs when the module is imported; `lines` are those of the changed statement.
    """

    module: str
    scope: str
    function: str
    operator: str
    line: int
    lines: tuple[int, int]
    before: str
    after: str
    source: str


@dataclass(frozen=True, kw_only=True)
class _Site:
    scope: str
    function: str
    number: int
    node: cst.CSTNode
    line: int
    lines: tuple[int, int]
    changes: tuple[tuple[str, cst.CSTNode], ...]


def sample(checkout: Path, module: str, most: int, seed: int = 0) -> tuple[int, tuple[Mutant, ...]]:
    """The number of sites of a module, and mutants at up to `most` of them, the same ones for the same seed."""
    source = (checkout / module).read_text()
    visitor = _Sites()
    wrapper = MetadataWrapper(cst.parse_module(source))
    wrapper.visit(visitor)
    ranked = sorted(visitor.sites, key=lambda site: _rank(seed, module, site.scope, site.number))
    mutants = (_mutant(wrapper.module, module, site, seed) for site in ranked)
    chosen = [mutant for mutant, _ in zip(filter(None, mutants), range(most), strict=False)]
    return len(visitor.sites), tuple(sorted(chosen, key=lambda mutant: mutant.line))


def swapped(mutant: Mutant, source: str) -> tuple[tuple[CodeType, CodeType], ...]:
    """The code of the mutant's function as it is and as it becomes; empty if it can't be swapped in place."""
    if not mutant.function:
        return ()
    both = (functions(text, mutant.module, mutant.function) for text in (source, mutant.source))
    pairs = tuple(zip(*both, strict=True))
    return pairs if all(old.co_freevars == new.co_freevars for old, new in pairs) else ()


def functions(source: str, file: str, name: str) -> Iterator[CodeType]:
    """The code of the functions of a qualified name; a property and its setter share one."""
    yield from (code for code in _codes(compile(source, file, "exec")) if code.co_qualname == name)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _mutant(module: cst.Module, path: str, site: _Site, seed: int) -> Mutant | None:
    """The mutant of a site; None if every change there leaves the code as it is, or is not valid Python."""
    for operator, node in sorted(site.changes, key=lambda each: _rank(seed, each[0], module.code_for_node(each[1]))):
        changed = module.deep_replace(site.node, node)
        source = changed.code if isinstance(changed, cst.Module) else ""
        if _differs(module.code, source):
            return Mutant(
                module=path,
                scope=site.scope,
                function=site.function,
                operator=operator,
                line=site.line,
                lines=site.lines,
                before=module.code_for_node(site.node).strip(),
                after=module.code_for_node(node).strip(),
                source=source,
            )
    return None


def _differs(source: str, mutated: str) -> bool:
    try:
        return compile(source, "", "exec") != compile(mutated, "", "exec")
    except SyntaxError:
        return False


def _rank(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class _Sites(cst.CSTVisitor):
    """Collects the sites of a module."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.sites: list[_Site] = []
        self._path: list[cst.CSTNode] = []
        self._numbers: dict[str, Iterator[int]] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, _NEVER):
            return False
        self._path.append(node)
        if not self._is_type(node):
            self._collect(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._path and self._path[-1] is original_node:
            self._path.pop()

    def _collect(self, node: cst.CSTNode) -> None:
        changes = tuple(_changes(node))
        if not changes:
            return
        scope, function = self._scope()
        own = self._lines(node)
        statement = next((each for each in reversed(self._path) if isinstance(each, cst.SimpleStatementLine)), node)
        number = next(self._numbers.setdefault(scope, count()))
        self.sites.append(
            _Site(
                scope=scope,
                function=function,
                number=number,
                node=node,
                line=own[0],
                lines=self._lines(statement),
                changes=changes,
            )
        )

    def _scope(self) -> tuple[str, str]:
        """The qualified name around the current node, and the function that runs it, which defaults don't belong to."""
        names: list[str] = []
        for node, inner in zip(self._path, self._path[1:], strict=False):
            if isinstance(node, cst.ClassDef | cst.FunctionDef):
                names.append(node.name.value)
            if isinstance(node, cst.FunctionDef) and inner is node.body:
                return ".".join(names), ".".join(names)
        return ".".join(names), ""

    def _is_type(self, node: cst.CSTNode) -> bool:
        """Whether the node is part of a type: an annotation, outside its calls, or a union that gets a name."""
        noted = next((at for at, each in enumerate(self._path) if isinstance(each, cst.Annotation)), None)
        if noted is not None and not any(isinstance(each, cst.Call) for each in self._path[noted:]):
            return True
        return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr) and not self._scope()[1]

    def _lines(self, node: cst.CSTNode) -> tuple[int, int]:
        place = self.get_metadata(PositionProvider, node)
        return place.start.line, place.end.line


def _changes(node: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    """What mutmut's operators make of a node, with the operators' names."""
    for kind, operator in mutation_operators:
        if isinstance(node, kind) and not _is_text(node):
            name = operator.__name__.removeprefix("operator_")
            yield from ((name, changed) for changed in operator(node) if not _trivial(name, node, changed))


def _is_text(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleString) and any(space in node.value for space in " \n")


def _trivial(operator: str, node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether an argument becomes None, or a positional one is left out: most calls then fail under any test."""
    if operator != "arg_removal" or not isinstance(node, cst.Call) or not isinstance(changed, cst.Call):
        return False
    gone = _named(node.args) - _named(changed.args)
    return len(node.args) == len(changed.args) or not gone or bool(gone & set(_TEXTS))


def _named(arguments: Iterable[cst.Arg]) -> set[str]:
    return {argument.keyword.value for argument in arguments if argument.keyword}
