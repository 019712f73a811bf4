"""The result of the last golden request to each model in production, from the prober to `shiplift status`."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import write_atomically
from shiplift.runtime.records.base import Record


class Pulse(Record):
    """When a served model last answered correctly (seconds since the epoch; 0: never), and what went wrong since."""

    verified_at: float = 0.0
    finding: str = ""


_PULSES = TypeAdapter(dict[str, Pulse])


def write(home: Path, pulses: Mapping[str, Pulse]) -> None:
    """Replaces the pulses of all served models, by their served names."""
    write_atomically(_file(home), _PULSES.dump_json(dict(pulses)))


def read(home: Path, model: str) -> Pulse:
    """The pulse of a model; an empty one if it has none."""
    return every(home).get(serving_name(model), Pulse())


def every(home: Path) -> dict[str, Pulse]:
    """The pulses of all served models, by their served names."""
    try:
        return _PULSES.validate_json(_file(home).read_bytes())
    except (FileNotFoundError, ValidationError):
        return {}


def _file(home: Path) -> Path:
    return home / "production" / "pulses.json"
