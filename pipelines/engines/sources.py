"""The project's source as files that refer to each other, and the closure of a step: the files that decide its result.

Other installed packages don't count. Every module of a closure must be present as source.
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
    """The project below `root`, the folder of its package. Each file is read once, when it is first reached.

    Files are named by their path below `root`: `runtime/host/scan.py`.
    """

    def __init__(self, root: Path = Path(shiplift.__file__).parent) -> None:
        self._root = root
        self._files: dict[str, str | None] = {}
        self._digests: dict[str, str] = {}
        self._refers_to: dict[str, tuple[str, ...]] = {}

    def digest(self, step: Callable[..., Any]) -> str:
        """The SHA-256, in hex, of a step's closure: names and contents, wherever the project is installed.

        Raises:
            ShipliftError: a file of the closure is missing.
        """
        lines = "".join(f"{name} {self._digests[name]}\n" for name in sorted(self.closure(step)))
        return hashlib.sha256(lines.encode()).hexdigest()

    def closure(self, step: Callable[..., Any]) -> set[str]:
        """Every file that decides what a step does. A step outside the project (a test's) appears as its module's name.

        Raises:
            ShipliftError: a file of the closure is missing.
        """
        module = step.__module__
        if module.partition(".")[0] != PROJECT:
            self._read(module, Path(inspect.getfile(step)))
            pending = [module]
        else:
            pending = [*self._module(module)]
        reached = set[str]()
        while pending:
            if (name := pending.pop()) not in reached:
                reached.add(name)
                pending += self._read(name, self._root / name)
        return reached

    def file_of(self, module: str) -> str | None:
        """A module's file; None if the project has no source for it."""
        if module not in self._files:
            project, *parts = module.split(".")
            path = "/".join(parts)
            names = (f"{path}.py", f"{path}/__init__.py") if parts else ("__init__.py",)
            existing = (name for name in names if project == PROJECT and (self._root / name).is_file())
            self._files[module] = next(existing, None)
        return self._files[module]

    def _read(self, name: str, file: Path) -> tuple[str, ...]:
        """Digests a file once; returns the files that it refers to."""
        if name not in self._refers_to:
            body = file.read_bytes()
            self._digests[name] = hashlib.sha256(body).hexdigest()
            self._refers_to[name] = tuple(self._references(name, body)) if file.suffix == ".py" else ()
        return self._refers_to[name]

    def _references(self, name: str, body: bytes) -> Iterator[str]:
        referred = references(body, module_of(name), package=name.endswith("__init__.py"))
        for module in referred.imported:
            yield from self._module(module)
        for member in referred.members:
            if self._is_module(member):
                yield from self._module(member)
        for named in referred.named:
            yield from self._named(named)
        for module, path in referred.paths:
            if file := self.file_of(module):
                yield from self._path(posixpath.normpath(f"{file}/{path}"))

    def _module(self, module: str) -> Iterator[str]:
        """A module's file, and those of its parent packages, which are imported first."""
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            file = self.file_of(".".join(parts[:end]))
            if file is None:
                raise _missing(module)
            yield file

    def _is_module(self, name: str) -> bool:
        """Whether a dotted name is a module, perhaps without source, rather than a member of a module."""
        package = self.file_of(name.rpartition(".")[0])
        if package is not None and not package.endswith("__init__.py"):
            return False
        path = self._root.joinpath(*name.split(".")[1:])
        return self.file_of(name) is not None or any(Path(f"{path}{suffix}").is_file() for suffix in _COMPILED)

    def _named(self, name: str) -> Iterator[str]:
        """The module that a string names, itself or a member; every file of a package, whose data a name can read."""
        module = name if self._is_module(name) else name.rpartition(".")[0]
        if module == PROJECT or not self._is_module(module):
            return  # not a module, such as `shiplift.yaml`
        files = [*self._module(module)]
        yield from files
        if module == name and files[-1].endswith("/__init__.py"):
            yield from self._path(posixpath.dirname(files[-1]))

    def _path(self, name: str) -> Iterator[str]:
        """A file, or every file below a folder. The project's root or above is a search path for modules, not data."""
        if name.startswith("."):
            return
        path = self._root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        if not path.exists():
            raise _missing(name)
        for file in files:
            if file.is_file() and file.suffix != ".pyc":
                yield file.relative_to(self._root).as_posix()


def module_of(name: str) -> str:
    """The module of a file; a module's name stays as it is."""
    if not name.endswith(".py"):
        return name
    parts = [PROJECT, *name.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _missing(name: str) -> ShipliftError:
    return ShipliftError(
        f"the source of {name} is missing, and cache keys are computed from it",
        do="Install Shiplift from its wheel or its repository, with all of its files.",
    )
