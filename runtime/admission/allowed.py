"""Lists of the names that model files may contain: Python's classes and functions, and operators."""

from functools import cache
from pathlib import Path
from typing import Literal

GLOBALS = Path(__file__).with_name("globals.txt")
OPERATORS = Path(__file__).with_name("operators.txt")

Pickle = Literal["refuse", "sandbox"]
Name = tuple[str, str]  # a module, and a name in it
_OLD_NAMES = {"__builtin__": "builtins", "copy_reg": "copyreg", "numpy.core.multiarray": "numpy._core.multiarray"}


@cache
def python_names(section: Literal["data", "framework"]) -> frozenset[Name]:
    """The globals of a section of `globals.txt`."""
    return frozenset((module, name) for module, names in _tables(_section(section)).items() for name in names)


@cache
def modules() -> frozenset[str]:
    """The modules that a class pickled by value may refer to."""
    return frozenset(_section("modules").split())


@cache
def operators(domain: Literal["aten", "prim", "com.microsoft"]) -> frozenset[str]:
    """The allowed operators of a domain."""
    return frozenset(_tables(OPERATORS.read_text())[domain])


def is_data(name: Name) -> bool:
    """Whether a global only builds arrays, tensors and containers."""
    return _current(name) in python_names("data")


def is_framework(name: Name) -> bool:
    """Whether a global is data, or a class that a known framework pickles."""
    return is_data(name) or _current(name) in python_names("framework")


def by_value(name: Name) -> bool:
    """Whether a global belongs to pickles that carry their author's code."""
    return name[0] == "cloudpickle.cloudpickle"


def _current(name: Name) -> Name:
    """Translates Python 2's names, which pickles of protocol 2 still use, into today's."""
    return _OLD_NAMES.get(name[0], name[0]), name[1]


def _section(name: str) -> str:
    _, _, rest = GLOBALS.read_text().partition(f"\n[{name}]")
    body, _, _ = rest.partition("\n[")
    return body.partition("\n")[2]


def _tables(text: str) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    names: list[str] = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if not line.startswith("  "):
            names = tables.setdefault(line.partition(":")[0], [])
        names.extend(line.partition(":")[2].split() if not line.startswith("  ") else line.split())
    return tables
