"""Which promotion moves a model's traffic on this machine, so that a person can abort it until it is committed.

An order to abort and the commit are both writes under the same lock: whichever comes second sees the first.
"""

from contextlib import AbstractContextManager, suppress
from pathlib import Path

from pydantic import ValidationError

from shiplift.runtime.base.names import serving_name
from shiplift.runtime.base.storage import locked, write_atomically
from shiplift.runtime.records.promotion import Abort, Moving


def moving(home: Path, model: str) -> Moving | None:
    """The promotion whose traffic moves, or that ended and is not concluded; None if there is none."""
    with suppress(FileNotFoundError, ValidationError):
        return Moving.model_validate_json(_file(home, model).read_bytes())
    return None


def begin(home: Path, model: str, promotion: Moving) -> Moving:
    """Notes that a promotion begins; one that was killed and begins again keeps what is known of it."""
    with _locked(home, model):
        known = moving(home, model)
        if known and known.is_of(promotion.version, promotion.requested_at):
            return known if known.begun else _write(home, model, known.model_copy(update={"begun": True}))
        return _write(home, model, promotion)


def abort(home: Path, model: str, order: Abort, *, before: Moving | None = None) -> Moving | None:
    """Orders an abort, unless one is ordered or the promotion is committed; returns what is known then.

    `before` is a promotion that may begin in a moment: it will find the order.
    """
    with _locked(home, model):
        known = moving(home, model)
        if before and not (known and known.is_of(before.version, before.requested_at)):
            known = before.model_copy(update={"begun": False})
        if known is None or known.committed or known.abort:
            return known
        return _write(home, model, known.model_copy(update={"abort": order}))


def commit(home: Path, model: str) -> Moving | None:
    """Notes that a promotion can't be aborted any more, unless it was; returns what is known then."""
    with _locked(home, model):
        known = moving(home, model)
        if known is None or known.abort:
            return known
        return _write(home, model, known.model_copy(update={"committed": True}))


def forget(home: Path, model: str, version: int) -> None:
    """Removes the note about the promotion of a version, once its release is concluded."""
    with _locked(home, model):
        known = moving(home, model)
        if known and known.version == version:
            _file(home, model).unlink(missing_ok=True)


def _locked(home: Path, model: str) -> AbstractContextManager[None]:
    return locked(_file(home, model).with_suffix(".lock"))


def _write(home: Path, model: str, promotion: Moving) -> Moving:
    write_atomically(_file(home, model), promotion.model_dump_json())
    return promotion


def _file(home: Path, model: str) -> Path:
    return home / "production" / "moving" / f"{serving_name(model)}.json"
