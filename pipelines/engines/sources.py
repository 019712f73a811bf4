"""The project's source as files that lead to each other, and the closure of a step: all that decides what it does.

Packages that are installed from elsewhere have no part in it. Every module along the way must be there as source.
"""

import hashlib
import inspect
import posixpath
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import shiplift
from shiplift.pipelines.engines.references import PROJECT, references
from shiplift.runtime.base.errors import ShipliftError

_COMPILED = (".pyc", ".so", "/__init__.pyc")


class Sources:
    """The project below `root`, the folder of its one package. Each file is read once, when it is first reached.

    Files are named by their path below `root`: `runtime/host/scan.py`.
    """

    def __init__(self, root: Path = Path(shiplift.__file__).parent) -> None:
        self._root = root
        self._files: dict[str, str | None] = {}
        self._digests: dict[str, str] = {}
        self._leads_to: dict[str, tuple[str, ...]] = {}

    def digest(self, step: Callable[..., Any]) -> str:
        """The SHA-256, in hex, of a step's closure: names and contents, wherever the project lies.

        Raises:
            ShipliftError: a file of it is not there.
        """
        lines = "".join(f"{name} {self._digests[name]}\n" for name in sorted(self.closure(step)))
        return hashlib.sha256(lines.encode()).hexdigest()

    def closure(self, step: Callable[..., Any]) -> set[str]:
        """Every file that decides what a step does. One from elsewhere, as a test's, begins with its module's name.

        Raises:
            ShipliftError: a file of it is not there.
        """
        module = step.__module__
        if module.partition(".")[0] != PROJECT:
            self._read(module, Path(inspect.getfile(step)))
            waiting = [module]
        else:
            waiting = [*self._module(module)]
        seen = set[str]()
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += self._read(name, self._root / name)
        return seen

    def file_of(self, module: str) -> str | None:
        """A module's file; None: the project has no source of it."""
        if module not in self._files:
            project, *parts = module.split(".")
            at = "/".join(parts)
            names = (f"{at}.py", f"{at}/__init__.py") if parts else ("__init__.py",)
            there = (name for name in names if project == PROJECT and (self._root / name).is_file())
            self._files[module] = next(there, None)
        return self._files[module]

    def _read(self, name: str, file: Path) -> tuple[str, ...]:
        """Digests a file once; gives those it leads to."""
        if name not in self._leads_to:
            body = file.read_bytes()
            self._digests[name] = hashlib.sha256(body).hexdigest()
            self._leads_to[name] = tuple(self._references(name, body)) if file.suffix == ".py" else ()
        return self._leads_to[name]

    def _references(self, name: str, body: bytes) -> Iterator[str]:
        refers = references(body, module_of(name), package=name.endswith("__init__.py"))
        for module in refers.imported:
            yield from self._module(module)
        for member in refers.members:
            if self._is_module(member):
                yield from self._module(member)
        for named in refers.named:
            yield from self._named(named)
        for module, path in refers.paths:
            if file := self.file_of(module):
                yield from self._path(posixpath.normpath(f"{file}/{path}"))

    def _module(self, module: str) -> Iterator[str]:
        """A module's file, and those of the packages it lies in: they are imported first."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            file = self.file_of(".".join(parts[:end]))
            if file is None:
                raise _missing(module)
            yield file

    def _is_module(self, name: str) -> bool:
        """Whether a dotted name is a module, if only a compiled one, and not something in a module."""
        package = self.file_of(name.rpartition(".")[0])
        if package is not None and not package.endswith("__init__.py"):
            return False
        at = self._root.joinpath(*name.split(".")[1:])
        return self.file_of(name) is not None or any(Path(f"{at}{suffix}").is_file() for suffix in _COMPILED)

    def _named(self, name: str) -> Iterator[str]:
        """A module that a string names, also by what is in it; of a package all files, since a name reads its data."""
        module = name if self._is_module(name) else name.rpartition(".")[0]
        if module == PROJECT or not self._is_module(module):
            return  # `shiplift.yaml`
        files = [*self._module(module)]
        yield from files
        if module == name and files[-1].endswith("/__init__.py"):
            yield from self._path(posixpath.dirname(files[-1]))

    def _path(self, name: str) -> Iterator[str]:
        """A file, or all below a folder. The project as a whole, or what is above it, is where to look for modules."""
        if name.startswith("."):
            return
        at = self._root / name
        files = sorted(at.rglob("*")) if at.is_dir() else [at]
        if not at.exists():
            raise _missing(name)
        for file in files:
            if file.is_file() and file.suffix != ".pyc":
                yield file.relative_to(self._root).as_posix()


def module_of(name: str) -> str:
    """The module of a file; a module's name is one already."""
    if not name.endswith(".py"):
        return name
    parts = [PROJECT, *name.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _missing(name: str) -> ShipliftError:
    return ShipliftError(
        f"the source of {name} is not there, and cache keys are made from it",
        do="Install Shiplift from its wheel or its repository, with all of its files.",
    )
