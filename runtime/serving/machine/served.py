"""Records what each name serves on a machine: written after every move of production, and read by everyone else.

A second file notes which member models are in the server for a name. It is written before they are loaded, so that a
kill leaves no model that is unknown.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.kinds.package import Package


class ServedPackage(Record):
    """The package that answers under a model's name; `former` are the member models of the previous package."""

    package: Package
    former: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The member models that stay loaded: requests to the previous package may still be under way."""
        return (*self.former, *self.package.member_models)


def served(home: Path, model: str) -> ServedPackage | None:
    """What production in a home serves under a model's name; None if it serves nothing."""
    try:
        return ServedPackage.model_validate_json(_file(home, model).read_bytes())
    except (FileNotFoundError, ValidationError):  # never served, or truncated by a crash of the machine
        return None


def served_version(home: Path, model: str) -> int:
    """The version that production in a home serves under a model's name; 0 if none."""
    state = served(home, model)
    return state.package.version if state else 0


def every_served(home: Path) -> Iterator[ServedPackage]:
    """What production in a home serves, for every model."""
    for file in sorted((home / "production" / "served").glob("*.json")):
        with suppress(FileNotFoundError, ValidationError):
            yield ServedPackage.model_validate_json(file.read_bytes())


def note_served(home: Path, package: Package) -> None:
    """Notes that production serves a package now."""
    before = served(home, package.model)
    moved = before is not None and before.package.member_models != package.member_models
    former = () if before is None else before.package.member_models if moved else before.former
    write_atomically(_file(home, package.model), ServedPackage(package=package, former=former).model_dump_json())


def forget_served(home: Path, model: str) -> None:
    """Notes that production serves nothing under a model's name any more; its member models may still be loaded."""
    _file(home, model).unlink(missing_ok=True)


def forget(home: Path, model: str) -> None:
    """Notes that production serves nothing under a model's name, and has none of its member models."""
    forget_served(home, model)
    _member_models(home, model).unlink(missing_ok=True)


def names_in_server(package: Package) -> set[str]:
    """The names of a package's models in the server."""
    return {*(serving_name(package.model) + ending for ending in package.endings), *package.member_models}


def member_models(home: Path, model: str) -> tuple[str, ...]:
    """Every member model that was loaded into the server for a model, in the order of loading."""
    try:
        return tuple(map(str, json.loads(_member_models(home, model).read_text())))
    except (FileNotFoundError, ValueError):  # never written, or truncated by a crash of the machine
        return ()


def note_member_models(home: Path, model: str, names: Iterable[str]) -> None:
    """Notes all member models that are, or are about to be, in the server for a model."""
    write_atomically(_member_models(home, model), json.dumps(list(dict.fromkeys(names))))


def _member_models(home: Path, model: str) -> Path:
    return home / "production" / "companions" / f"{serving_name(model)}.json"


def _file(home: Path, model: str) -> Path:
    return home / "production" / "served" / f"{serving_name(model)}.json"
