"""What each name serves on a machine: written after every move of production, and read by whoever asks about it."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record
from shiplift.runtime.records.serving import Package


class Served(Record):
    """What answers under a model's name."""

    package: Package


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
    write_atomically(_file(home, package.model), Served(package=package).model_dump_json())


def _file(home: Path, model: str) -> Path:
    return home / "production" / "served" / f"{serving_name(model)}.json"
