"""What each name serves on a machine: written after every move of production, and read by whoever asks about it.

Beside it is what was put into the server for a name, noted before that happens, so that a kill leaves nothing unknown.
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


class Served(Record):
    """What answers under a model's name; `former` are the member models of the package that answered before."""

    package: Package
    former: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The member models that stay loaded: requests that the package before took may still be under way."""
        return (*self.former, *self.package.member_models)


def served(home: Path, model: str) -> Served | None:
    """What production in a home serves under a model's name; None if nothing."""
    try:
        return Served.model_validate_json(_file(home, model).read_bytes())
    except (FileNotFoundError, ValidationError):  # never served, or cut off by a crash of the machine
        return None


def served_version(home: Path, model: str) -> int:
    """The version that production in a home serves under a model's name; 0 if none."""
    state = served(home, model)
    return state.package.version if state else 0


def every_served(home: Path) -> Iterator[Served]:
    """What production in a home serves, of every model."""
    for file in sorted((home / "production" / "served").glob("*.json")):
        with suppress(FileNotFoundError, ValidationError):
            yield Served.model_validate_json(file.read_bytes())


def note_served(home: Path, package: Package) -> None:
    """Notes that production serves a package now."""
    before = served(home, package.model)
    moved = before is not None and before.package.member_models != package.member_models
    former = () if before is None else before.package.member_models if moved else before.former
    write_atomically(_file(home, package.model), Served(package=package, former=former).model_dump_json())


def member_models(home: Path, model: str) -> tuple[str, ...]:
    """Every member model that was put into the server for a model, in the order of loading."""
    try:
        return tuple(map(str, json.loads(_member_models(home, model).read_text())))
    except (FileNotFoundError, ValueError):  # none ever, or cut off by a crash of the machine
        return ()


def note_member_models(home: Path, model: str, names: Iterable[str]) -> None:
    """Notes all member models that are, or are about to be, in the server for a model."""
    write_atomically(_member_models(home, model), json.dumps(list(dict.fromkeys(names))))


def _member_models(home: Path, model: str) -> Path:
    return home / "production" / "companions" / f"{serving_name(model)}.json"


def _file(home: Path, model: str) -> Path:
    return home / "production" / "served" / f"{serving_name(model)}.json"
