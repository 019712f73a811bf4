"""Which versions bake on this machine. Each note is a file, so that the watch goes on after any restart."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import locked, write_atomically
from shiplift.runtime.records.baking import Baking
from shiplift.runtime.serving.machine.served import served


def baking(home: Path, model: str) -> Baking | None:
    """The last bake of a model, over or not; None if it had none."""
    with suppress(FileNotFoundError, ValidationError):
        return Baking.model_validate_json(_file(home, model).read_bytes())
    return None


def everything(home: Path) -> Iterator[Baking]:
    """The last bake of each model."""
    for file in sorted((home / "production" / "baking").glob("*.json")):
        with suppress(FileNotFoundError, ValidationError):
            yield Baking.model_validate_json(file.read_bytes())


def under_way(home: Path, model: str) -> Baking | None:
    """The bake of a model that is not over: the version that bakes serves."""
    known = baking(home, model)
    return known if known and known.active and bakes(home, known) else None


def bakes(home: Path, known: Baking) -> bool:
    """Whether what bakes still serves: a rollback, a retirement or another promotion ends a bake."""
    state = served(home, known.model)
    return state is not None and state.package.repository.sha256 == known.package


def begin(home: Path, new: Baking) -> Baking:
    """Notes that a version bakes. A promotion that was killed and runs again keeps what is known of its bake."""
    with _locked(home, new.model):
        known = baking(home, new.model)
        if known and known.is_of(new.package, new.requested_at):
            return known
        return _write(home, new)


def change(home: Path, known: Baking, after: Callable[[Baking], Baking]) -> Baking | None:
    """Changes what is known of a bake; None if another one has taken its place."""
    with _locked(home, known.model):
        now = baking(home, known.model)
        if now is None or not now.is_of(known.package, known.requested_at):
            return None
        changed = after(now)
        return now if changed == now else _write(home, changed)


def _locked(home: Path, model: str) -> AbstractContextManager[None]:
    return locked(_file(home, model).with_suffix(".lock"))


def _write(home: Path, known: Baking) -> Baking:
    write_atomically(_file(home, known.model), known.model_dump_json())
    return known


def _file(home: Path, model: str) -> Path:
    return home / "production" / "baking" / f"{serving_name(model)}.json"
