"""What the reference reads in the sources themselves, where no object at run time knows it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("pipelines", "steps", "runtime")


@cache
def trees(word: str) -> tuple[tuple[str, ast.Module], ...]:
    """Each module of the rooms that has the word, parsed, with its path from the root."""
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    texts = ((path.relative_to(ROOT).as_posix(), path.read_text()) for path in paths)
    return tuple((path, ast.parse(source)) for path, source in texts if word in source)


def calls(word: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in a module that has the word, with the path of the module."""
    for path, tree in trees(word):
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def text(node: ast.AST | None) -> str:
    """A string constant's value; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def keyword(call: ast.Call, name: str) -> ast.AST | None:
    """A keyword argument's value."""
    return next((each.value for each in call.keywords if each.arg == name), None)
